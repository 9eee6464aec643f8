"""What clients did, and the outcomes, as JSON Lines.

`Producer` writes the outcomes of its sends, which an audit compares with the logs:

    {"producer":"p1","sequence":7,"key":"7F00...","topic":"orders","queue_id":1,"queue_offset":42,
     "body_crc":305419896,"outcome":"ok","tries":1}

| outcome | meaning |
|---|---|
| ok | acknowledged, at this queue and offset |
| fail | refused: it must not be in the log |
| info | no answer: it may be in the log or not |

`sequence` rises by 1 or more with each message of a producer to one topic; it is null for a message that was sent while
another one was under way, for they may be stored in any order. `key` is the message's unique id (UNIQ_KEY), the same
through all its tries. `queue_id` and `queue_offset` are null unless the outcome is ok. `body_crc` is the CRC-32 of the
body as it is in the log (31 bits), or null.

Drills add a line for every operation, in the order of time; audits skip lines with `op`:

    {"op":"invoke","at_s":12.25,"number":7,"name":"key-3"}
    {"op":"ok","at_s":12.26,"number":7,"queue":"broker-a/1","offset":42,"tries":1}
    {"op":"deliver","at_s":12.27,"number":7,"queue":"broker-a/1","offset":42,"name":"member-0"}

| op | meaning |
|---|---|
| run | the first line: `name` is the workload, `queue` the cluster's mode |
| invoke | a send begins; numbers rise by one from 0; `name` is its order key |
| ok, fail, info | its end, as above; `due_s`: it must not be delivered earlier |
| deliver | a consumer was given a message; `number` is null if its body is not exactly one that was sent |
| ack | a broker has confirmed a member's acknowledgement of one message (POP) |
| share | the members of the group, or their queues, change |
| commit | the group's committed offset of a queue was seen |
| fault | a fault begins or is repaired |

Times are seconds of one monotonic clock. A place (`queue`, `offset`) is empty where the client does not know it.
"""

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

FIELDS_SQL: Final = (
    "producer string, sequence bigint, key string, topic string, queue_id int, queue_offset bigint, body_crc bigint,"
    " outcome string, tries int, op string"
)
"""The columns of a history, for Spark's JSON reader. Lines whose `op` is not null are operations of a drill."""


class Outcome(enum.StrEnum):
    """The outcome of a message for its producer."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class HistoryError(ValueError):
    """A line is not a line of a history."""


@dataclass(frozen=True, slots=True)
class Send:
    """One message with its outcome, after all its tries."""

    producer: str
    sequence: int | None
    key: str
    topic: str
    outcome: Outcome
    queue_id: int | None = None
    queue_offset: int | None = None
    body_crc: int | None = None
    tries: int = 1

    def line(self) -> bytes:
        """Return the JSON line, with its line end."""
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)


def parse_line(line: bytes) -> Send:
    """Parse the line of a message.

    Raises:
        HistoryError: it is not a JSON object with these fields.
    """
    try:
        fields: dict[str, Any] = {**orjson.loads(line)}
        send = Send(**{**fields, "outcome": Outcome(fields["outcome"])})
    except (ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"{line[:200]!r}: {error}") from None
    if send.outcome is Outcome.OK and (send.queue_id is None or send.queue_offset is None):
        raise HistoryError(f"{line[:200]!r}: acknowledged without queue_id and queue_offset")
    return send


class Op(enum.StrEnum):
    """The kind of an operation in a drill's history."""

    RUN = "run"
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"
    DELIVER = "deliver"
    ACK = "ack"
    SHARE = "share"
    COMMIT = "commit"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a drill; the table above has the fields of each `op`."""

    op: Op
    at_s: float
    number: int | None = None
    queue: str = ""
    offset: int = -1
    tries: int = 1
    due_s: float = 0.0
    name: str = ""

    def line(self) -> bytes:
        """Return the JSON line, with its line end."""
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)


_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "at_s": (float, int),
    "number": (int, type(None)),
    "queue": (str,),
    "offset": (int,),
    "tries": (int,),
    "due_s": (float, int),
    "name": (str,),
}


def parse_operation(line: bytes) -> Operation | None:
    """Parse the line of an operation; return None for a producer's line of a send.

    Raises:
        HistoryError: it is not a JSON object with these fields.
    """
    try:
        fields: dict[str, Any] = orjson.loads(line)
        if fields.get("op") is None:
            return None
        for name, value in fields.items():
            if name != "op" and (isinstance(value, bool) or not isinstance(value, _FIELDS[name])):
                raise HistoryError(f"{line[:200]!r}: {name} is {value!r}")
        fields["op"] = Op(fields["op"])
        return Operation(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HistoryError(f"{line[:200]!r}: {error}") from None
