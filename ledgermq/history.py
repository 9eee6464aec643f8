"""The outcomes of sends as JSON Lines: the history that an audit compares with the logs. `Producer` writes it.

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
"""

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

FIELDS_SQL: Final = (
    "producer string, sequence bigint, key string, topic string, queue_id int, queue_offset bigint, body_crc bigint,"
    " outcome string, tries int"
)
"""The columns of a history, for Spark's JSON reader."""


class Outcome(enum.StrEnum):
    """The outcome of one message, as its producer knows it."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class HistoryError(ValueError):
    """A line of a history is not one."""


@dataclass(frozen=True, slots=True)
class Send:
    """One message, sent once or tried several times."""

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
    """Return the message that a line tells of.

    Raises:
        HistoryError: it is no JSON object with these fields.
    """
    try:
        fields: dict[str, Any] = {**orjson.loads(line)}
        send = Send(**{**fields, "outcome": Outcome(fields["outcome"])})
    except (ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"{line[:200]!r}: {error}") from None
    if send.outcome is Outcome.OK and (send.queue_id is None or send.queue_offset is None):
        raise HistoryError(f"{line[:200]!r}: acknowledged without queue_id and queue_offset")
    return send
