"""Which queues a query reads, from where to where, and how a stream writes that down. No I/O but the client's.

    options --> queues --> start and end of each queue --> ranges of about equal bytes, one task each
                                  |
    a stream's offset  {"from":{"T/b/0":5},"q":{"T/b/0":9},"v":1}     keys sorted: it is compared as text

`from` pins where a queue begins that is first seen in this batch, or begins anew: a batch that is run again after a
crash reads the same offsets, though "latest" or a timestamp would mean something else by then.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from ledgermq.remoting.route import MessageQueue
from ledgermq.spark.errors import DataLossError, OptionError
from ledgermq.spark.options import Options
from ledgermq.spark.topic_client import TopicClient

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
GROUP_PREFIX: Final = "group:"
VERSION: Final = 1
SPLIT_BYTES: Final = 64 << 20
PARTS_MAX: Final = 10_000

_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1
_SHOWN_MAX: Final = 20
_SYSTEM_TOPICS: Final = re.compile(
    r"(%|rmq_sys_|RMQ_SYS_|SCHEDULE_TOPIC_|CHECKPOINT_TOPIC|TBW102|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|BenchmarkTest)"
)

Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of one queue."""

    queue: MessageQueue
    start: int
    end: int


class Selection:
    """The queues that the options `subscribe`, `subscribePattern` or `assign` name; exactly one of them is given.

    Raises:
        OptionError: none or several, or no such value.
    """

    NAMES: Final = ("subscribe", "subscribePattern", "assign")

    def __init__(self, options: Options) -> None:
        given = [name for name in self.NAMES if options.has(name)]
        if len(given) != 1:
            raise OptionError(f"give one of subscribe, subscribePattern, assign; given: {', '.join(given) or 'none'}")
        self._topics = options.names("subscribe")
        self._pattern: re.Pattern[str] | None = None
        self._assigned: list[MessageQueue] = []
        if given == ["subscribe"] and not self._topics:
            raise OptionError("subscribe names no topic")
        if given == ["subscribePattern"]:
            try:
                self._pattern = re.compile(options.text("subscribePattern"))
            except re.error as error:
                raise OptionError(f"subscribePattern={options.text('subscribePattern')!r}: {error}") from None
        if given == ["assign"]:
            numbers = _queue_numbers("assign", options.text("assign"), lists=True)
            self._assigned = [queue for queue, _ in numbers]

    def queues(self, client: TopicClient) -> list[MessageQueue]:
        """Return the queues as they are now; a pattern must fit the whole name, and fits no topic of the system.

        Raises:
            ClusterError: a topic is not known, or nobody answers.
        """
        if self._assigned:
            known = set(client.queues({queue.topic for queue in self._assigned}))
            absent = [queue for queue in self._assigned if queue not in known]
            if absent:
                raise OptionError(f"assign: there is no queue {', '.join(map(str, absent[:_SHOWN_MAX]))}")
            return sorted(self._assigned)
        if self._pattern is None:
            return client.queues(self._topics)
        fits = self._pattern.fullmatch
        return client.queues([name for name in client.topics() if fits(name) and not _SYSTEM_TOPICS.match(name)])


class Position:
    """Where reading begins or ends in each queue.

    Args:
        options: of the source.
        side: `starting` or `ending`.
        otherwise: of queues without a given offset.

    Raises:
        OptionError: two ways are given, or no such value.
    """

    def __init__(self, options: Options, side: str, otherwise: str) -> None:
        self._name = f"{side}Offsets"
        self._time_ms = options.time_ms(f"{side}Timestamp")
        if self._time_ms is not None and options.has(self._name):
            raise OptionError(f"give {self._name} or {side}Timestamp, not both")
        self._text = options.text(self._name, otherwise)
        self._given: Offsets = {}
        self._otherwise = otherwise
        if self._text.lstrip().startswith("{"):
            self._given = dict(_queue_numbers(self._name, self._text, lists=False))
        elif self._text not in (EARLIEST, LATEST) and not self._group:
            raise OptionError(
                f"{self._name}={self._text!r} is neither {EARLIEST}, {LATEST}, {GROUP_PREFIX}NAME"
                ' nor JSON such as {"topic":{"broker":{"0":12}}}'
            )

    @property
    def _group(self) -> str:
        return self._text[len(GROUP_PREFIX) :] if self._text.startswith(GROUP_PREFIX) else ""

    def resolve(self, client: TopicClient, queues: Sequence[MessageQueue]) -> Offsets:
        """Return the offset in each queue as of now.

        Raises:
            OptionError: an offset is given for a queue that is not read, or lies behind the end of its queue.
            ClusterError: nobody answers.
        """
        if self._time_ms is not None:
            return client.at_time(queues, self._time_ms)
        if not self._given and not self._group:
            return client.firsts(queues) if self._text == EARLIEST else client.ends(queues)
        unread = [str(queue) for queue in self._given if queue not in set(queues)]
        if unread:
            raise OptionError(f"{self._name}: {', '.join(unread[:_SHOWN_MAX])} is not among the queues that are read")
        firsts, ends = client.firsts(queues), client.ends(queues)
        base = firsts if self._otherwise == EARLIEST else ends
        given: Mapping[MessageQueue, int | None] = self._given
        if self._group:
            given = client.committed(self._group, queues)
        found: Offsets = {}
        for queue in queues:
            offset = given.get(queue)
            if offset is None:
                offset = base[queue]
            elif offset < 0:
                offset = firsts[queue] if offset == _EARLIEST_NUMBER else ends[queue]
            if offset > ends[queue]:
                raise OptionError(f"{self._name}: {queue} ends at {ends[queue]}, before {offset}")
            found[queue] = offset
        return found


def _queue_numbers(name: str, text: str, *, lists: bool) -> list[tuple[MessageQueue, int]]:
    """Parse `{"topic":{"broker":{"0":12}}}`, or with lists of queue ids `{"topic":{"broker":[0,1]}}`."""
    shape = '{"topic":{"broker":[0,1]}}' if lists else '{"topic":{"broker":{"0":12}}}'
    found: list[tuple[MessageQueue, int]] = []
    try:
        for topic, brokers in json.loads(text).items():
            for broker, queues in brokers.items():
                pairs = [(queue, 0) for queue in queues] if lists else list(queues.items())
                found += [(MessageQueue(topic, broker, int(queue)), _offset(offset)) for queue, offset in pairs]
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{name}={text!r} is not JSON such as {shape}") from None
    if not found:
        raise OptionError(f"{name}={text!r} names no queue")
    return found


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < _EARLIEST_NUMBER:
        raise ValueError(value)
    return value


# ---- ranges


def gone_ranges(ranges: Iterable[Range], firsts: Mapping[MessageQueue, int]) -> list[Range]:
    """Return what lies before the oldest message of its queue."""
    return [
        Range(each.queue, each.start, min(each.end, firsts[each.queue]))
        for each in ranges
        if each.start < firsts[each.queue]
    ]


def refuse_new_life(ends: Mapping[MessageQueue, int], known: Mapping[MessageQueue, int]) -> None:
    """Raise if queues end before what was read of them: their topic was removed and created again.

    Raises:
        DataLossError: names the queues.
    """
    told = [f"{queue} ends at {ends[queue]}, and was read up to {known[queue]}" for queue in sorted(ends)]
    if told:
        raise DataLossError(
            f"{'; '.join(told[:_SHOWN_MAX])}: a topic was removed and made again. What its queues had that was not read"
            " is gone; with failOnDataLoss=false the query reads the new ones from their beginning"
        )


def loss_text(gone: Sequence[Range]) -> str:
    """Return which messages are gone, in words."""
    shown = [f"{each.queue}: offsets {each.start} to {each.end - 1}" for each in gone[:_SHOWN_MAX]]
    more = f", and {len(gone) - _SHOWN_MAX} more ranges" if len(gone) > _SHOWN_MAX else ""
    return f"{sum(each.end - each.start for each in gone)} messages are gone: {'; '.join(shown)}{more}"


def refuse_loss(gone: Sequence[Range]) -> None:
    """Raise if messages are gone.

    Raises:
        DataLossError: names the ranges.
    """
    if gone:
        raise DataLossError(
            f"{loss_text(gone)}. With failOnDataLoss=false the query reads on, and has a row for each range"
        )


def cut(ranges: Sequence[Range], record_bytes: Mapping[MessageQueue, float], split_bytes: int) -> list[Range]:
    """Divide ranges into pieces of about `split_bytes` each, and at most `PARTS_MAX` in all; 0 divides nothing."""
    total = sum((each.end - each.start) * record_bytes.get(each.queue, 1.0) for each in ranges)
    size = max(split_bytes, total / PARTS_MAX) if split_bytes else 0
    return [piece for each in ranges for piece in _pieces(each, record_bytes.get(each.queue, 1.0), size)]


def _pieces(whole: Range, record_bytes: float, size: float) -> Iterator[Range]:
    count = whole.end - whole.start
    pieces = min(max(round(count * record_bytes / size), 1), count) if size else 1
    bounds = [whole.start + count * number // pieces for number in range(pieces + 1)]
    yield from (Range(whole.queue, low, high) for low, high in pairwise(bounds))


# ---- streams


def encode_offsets(ends: Mapping[MessageQueue, int], pinned: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Return a stream's offset: the ends, and the starts of queues that are new."""
    found: dict[str, Any] = {}
    if pinned:
        found["from"] = _by_text(pinned)
    return found | {"q": _by_text(ends), "v": VERSION}


def _by_text(offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
    return dict(sorted((str(queue), offset) for queue, offset in offsets.items()))


def decode_offsets(offset: Mapping[str, Any]) -> tuple[Offsets, Offsets]:
    """Return the ends, and the starts of new queues, of a stream's offset.

    Raises:
        OptionError: the checkpoint was written by a later version.
    """
    if offset.get("v") != VERSION:
        raise OptionError(f"the checkpoint's offsets have version {offset.get('v')!r}; known is {VERSION}")
    ends, pinned = ({_queue(text): at for text, at in offset.get(name, {}).items()} for name in ("q", "from"))
    return ends, pinned


def _queue(text: str) -> MessageQueue:
    topic, _, rest = text.partition("/")
    broker, _, queue_id = rest.rpartition("/")
    return MessageQueue(topic, broker, int(queue_id))


def ranges_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
    """Return what a micro-batch reads, in order of the queues."""
    before, _ = decode_offsets(start)
    ends, pinned = decode_offsets(end)
    starts = before | pinned
    return [Range(queue, starts[queue], at) for queue, at in sorted(ends.items()) if starts[queue] < at]


def share(backlogs: Mapping[MessageQueue, int], limit: int) -> Offsets:
    """Return how many messages of each backlog to take, `limit` at most in all: one of each, the rest in proportion.

    If there is not one for each, the longest backlogs come first.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    order = sorted(backlogs, key=lambda queue: (-backlogs[queue], queue))
    found = dict.fromkeys(backlogs, 0) | dict.fromkeys(order[:limit], 1)
    rest, others = limit - sum(found.values()), total - len(backlogs)
    if rest:
        found = {queue: one + (backlogs[queue] - 1) * rest // others for queue, one in found.items()}
    left = limit - sum(found.values())
    for queue in order:
        if left and found[queue] < backlogs[queue]:
            found[queue] += 1
            left -= 1
    return found
