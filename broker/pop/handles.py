"""What POP writes into answers and reads back from acknowledgements, and how its retry topics are called. Pure.

| text | form |
|---|---|
| handle (`extraInfo`, property `POP_CK`) | `start popTime invisibleTime reviveQueue retry broker queue [offset]` |
| `startOffsetInfo` | `retry queue start`, joined by `;` |
| `msgOffsetInfo` | `retry queue offset,offset,...`, joined by `;` |
| `orderCountInfo` | `retry qo<queue>%<offset> times` and `retry queue times`, joined by `;` |

`retry` says which topic is meant: 0 the topic itself, 1 and 2 the group's retry topic by its older and newer name.

Source: apache/rocketmq `remoting/.../protocol/header/ExtraInfoUtil.java`, `common/.../KeyBuilder.java`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.names import RETRY_PREFIX
from ledgermq.remoting.fields import I32_MAX, I64_MAX
from ledgermq.remoting.refusal import Cause, Refusal

ORDER_REVIVE_QUEUE: Final = 999
"""Stands in the handles of messages that are taken in order."""

ANY_QUEUE: Final = -1
"""Stands for a queue where all of a broker's are meant."""

_FIELDS_MIN: Final = 7
_SHOWN_MAX: Final = 100


class Handle(NamedTuple):
    """What a consumer shows to acknowledge a message.

    Attributes:
        start: queue offset at which the checkpoint begins.
        pop_ms: when it was taken, ms since the epoch.
        invisible_ms: for how long nobody else gets it.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int

    @property
    def is_ordered(self) -> bool:
        """Whether it was taken in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE


def parse_handle(text: str) -> Handle:
    """Read the field `extraInfo`.

    Raises:
        Refusal: MALFORMED_FIELD, not a handle.
    """
    parts = text.split(" ")
    if len(parts) < _FIELDS_MIN:
        raise _bad(text)
    try:
        start, pop_ms, invisible_ms, revive_queue, queue_id = map(int, (*parts[:4], parts[6]))
    except ValueError:
        raise _bad(text) from None
    if max(abs(start), abs(pop_ms), abs(invisible_ms)) > I64_MAX or max(abs(revive_queue), abs(queue_id)) > I32_MAX:
        raise _bad(text)
    return Handle(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id)


def handle_text(handle: Handle, topic: str, offset: int) -> str:
    """The property `POP_CK` of one message of `topic`, which may be a retry topic."""
    head = f"{handle.start} {handle.pop_ms} {handle.invisible_ms} {handle.revive_queue}"
    return f"{head} {retry_flag(topic)} {handle.broker} {handle.queue_id} {offset}"


def retry_topic(topic: str, group: str, *, is_v2: bool) -> str:
    """Where messages of `topic` go that `group` took and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def retry_topics(topic: str, group: str, *, newer: bool, older: bool) -> tuple[str, ...]:
    """Where messages of `topic` that `group` did not acknowledge are looked for.

    They are put under the newer name if `newer` (enableRetryTopicV2); if `older` (retrieveMessageFromPopRetryTopicV1),
    some may lie under the older one still. Without `newer`, some may lie under the newer one of when it was set, where
    RocketMQ leaves them.
    """
    first, second = retry_topic(topic, group, is_v2=newer), retry_topic(topic, group, is_v2=not newer)
    return (first, second) if older or not newer else (first,)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic that a retry flag means.

    Raises:
        Refusal: MALFORMED_FIELD, an unknown flag.
    """
    if retry == "0":
        return topic
    if retry in ("1", "2"):
        return retry_topic(topic, group, is_v2=retry == "2")
    raise Refusal(Cause.MALFORMED_FIELD, f"retry flag {retry[:_SHOWN_MAX]!r} is none of 0, 1, 2")


def retry_flag(topic: str) -> str:
    """0, 1 or 2."""
    if not is_retry_topic(topic):
        return "0"
    return "2" if "+" in topic else "1"


def start_info(topic: str, queue_id: int, start: int) -> str:
    """One queue's part of `startOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {start}"


def offsets_info(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """One queue's part of `msgOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {','.join(map(str, offsets))}"


def count_info(topic: str, queue_id: int, counts: Sequence[tuple[int, int]], least: int) -> str:
    """One queue's part of `orderCountInfo`: `counts` says how often each offset was given before.

    Older clients read `least` only, how often any of the queue's messages was given before.
    """
    flag = retry_flag(topic)
    parts = [f"{flag} qo{queue_id}%{offset} {times}" for offset, times in counts]
    return ";".join([*parts, f"{flag} {queue_id} {least}"])


def _bad(text: str) -> Refusal:
    return Refusal(Cause.MALFORMED_FIELD, f"field extraInfo is no POP handle: {text[:_SHOWN_MAX]!r}")
