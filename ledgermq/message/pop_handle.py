"""POP's handles, and the names of the topics that they may mean. No I/O.

    handle      start popTime invisibleTime reviveQueue retry broker queue [offset]
    retry       0 the topic itself, 1 and 2 the group's retry topic of it, by its older and newer name

Source: apache/rocketmq `remoting/.../protocol/header/ExtraInfoUtil.java`, `common/.../KeyBuilder.java`.
"""

from typing import Final, NamedTuple

POP_CK: Final = "POP_CK"
"""The property that carries a handle."""

RETRY_PREFIX: Final = "%RETRY%"

ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in handles of messages that are taken in order."""

_FIELDS: Final = 7
_OFFSET_DIGITS_MAX: Final = 19
_I32_MAX: Final = (1 << 31) - 1
_I64_MAX: Final = (1 << 63) - 1


class PopHandle(NamedTuple):
    """The content of a POP handle: one delivery of a message.

    Attributes:
        start: queue offset at which the messages of the POP request begin.
        pop_ms: time of the request, Unix milliseconds.
        invisible_ms: milliseconds for which no other consumer gets the messages.
        revive_queue: queue in which a Java broker keeps the checkpoint; `ORDER_REVIVE_QUEUE` for ordered POP.
        retry: flag of the topic, see the module.
        broker: broker name.
        queue_id: of that topic.
        offset: the message's queue offset; -1 in handles without one.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int
    offset: int = -1

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @property
    def is_ordered(self) -> bool:
        """Whether the messages were taken by ordered POP."""
        return self.revive_queue == ORDER_REVIVE_QUEUE


def parse_handle(text: str) -> PopHandle:
    """Parse a handle; an offset that is not a number counts as missing.

    Raises:
        ValueError: not a handle.
    """
    parts = text.split(" ")
    if len(parts) < _FIELDS:
        raise ValueError(f"has {len(parts)} words, must have {_FIELDS}")
    start, pop_ms, invisible_ms, revive_queue, queue_id = map(int, (*parts[:4], parts[6]))
    if max(abs(start), abs(pop_ms), abs(invisible_ms)) > _I64_MAX or max(abs(revive_queue), abs(queue_id)) > _I32_MAX:
        raise ValueError("has a number that is out of range")
    offset = parts[_FIELDS] if len(parts) > _FIELDS else ""
    if not offset.isdecimal() or len(offset) > _OFFSET_DIGITS_MAX:
        offset = "-1"
    return PopHandle(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id, int(offset))


def retry_topic(topic: str, group: str, *, is_v2: bool) -> str:
    """Return the retry topic for messages of `topic` that `group` took and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def retry_flag(topic: str) -> str:
    """Return the flag of a topic in handles: 0, 1 or 2."""
    if not is_retry_topic(topic):
        return "0"
    return "2" if "+" in topic else "1"


def real_topic(topic: str, group: str, retry: str) -> str:
    """Return the topic that a retry flag means.

    Raises:
        ValueError: an unknown flag.
    """
    if retry == "0":
        return topic
    if retry in ("1", "2"):
        return retry_topic(topic, group, is_v2=retry == "2")
    raise ValueError(f"retry flag {retry[:100]!r} is not one of 0, 1, 2")
