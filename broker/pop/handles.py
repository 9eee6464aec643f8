"""Texts that POP writes into answers and reads back from acknowledgements; names of its retry topics. Pure.

| text | form |
|---|---|
| handle (`extraInfo`, property `POP_CK`) | `start popTime invisibleTime reviveQueue retry broker queue [offset]` |
| `startOffsetInfo` | `retry queue start`, joined by `;` |
| `msgOffsetInfo` | `retry queue offset,offset,...`, joined by `;` |
| `orderCountInfo` | `retry qo<queue>%<offset> times` and `retry queue times`, joined by `;` |

`retry` is 0 for the topic itself, 1 for the group's retry topic under its older name, 2 under its newer name.

Source: apache/rocketmq `remoting/.../protocol/header/ExtraInfoUtil.java`, `common/.../KeyBuilder.java`.
"""

from collections.abc import Sequence
from typing import Final

from ledgermq.message import pop_handle
from ledgermq.message.pop_handle import PopHandle, retry_flag, retry_topic
from ledgermq.remoting.refusal import Cause, Refusal

ANY_QUEUE: Final = -1
"""The queue id that means all queues of a broker."""

_SHOWN_MAX: Final = 100


def parse_handle(text: str) -> PopHandle:
    """Read the field `extraInfo`.

    Raises:
        Refusal: MALFORMED_FIELD, not a handle.
    """
    try:
        return pop_handle.parse_handle(text)
    except ValueError:
        shown = f"field extraInfo is no POP handle: {text[:_SHOWN_MAX]!r}"
        raise Refusal(Cause.MALFORMED_FIELD, shown) from None


def handle_text(handle: PopHandle, topic: str, offset: int) -> str:
    """Return the property `POP_CK` of one message of `topic`, which may be a retry topic."""
    head = f"{handle.start} {handle.pop_ms} {handle.invisible_ms} {handle.revive_queue}"
    return f"{head} {retry_flag(topic)} {handle.broker} {handle.queue_id} {offset}"


def retry_topics(topic: str, group: str, *, newer: bool, older: bool) -> tuple[str, ...]:
    """Return the retry topics that may have messages of `topic` that `group` did not acknowledge.

    Args:
        topic: the topic itself.
        group: the consumer group.
        newer: new messages go to the topic with the newer name (enableRetryTopicV2). Without it that topic is returned,
            too: it may have messages of a time when `newer` was set, which RocketMQ does not deliver.
        older: the topic with the older name may still have messages (retrieveMessageFromPopRetryTopicV1).
    """
    first, second = retry_topic(topic, group, is_v2=newer), retry_topic(topic, group, is_v2=not newer)
    return (first, second) if older or not newer else (first,)


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic that a retry flag means.

    Raises:
        Refusal: MALFORMED_FIELD, an unknown flag.
    """
    try:
        return pop_handle.real_topic(topic, group, retry)
    except ValueError as error:
        raise Refusal(Cause.MALFORMED_FIELD, str(error)) from None


def start_info(topic: str, queue_id: int, start: int) -> str:
    """Return one queue's part of `startOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {start}"


def offsets_info(topic: str, queue_id: int, offsets: Sequence[int]) -> str:
    """Return one queue's part of `msgOffsetInfo`."""
    return f"{retry_flag(topic)} {queue_id} {','.join(map(str, offsets))}"


def count_info(topic: str, queue_id: int, counts: Sequence[tuple[int, int]], least: int) -> str:
    """Return one queue's part of `orderCountInfo`.

    Args:
        topic: the queue's topic.
        queue_id: the queue.
        counts: pairs of queue offset and number of earlier deliveries.
        least: the least number of earlier deliveries of the queue's messages; older clients read no other.
    """
    flag = retry_flag(topic)
    parts = [f"{flag} qo{queue_id}%{offset} {times}" for offset, times in counts]
    return ";".join([*parts, f"{flag} {queue_id} {least}"])
