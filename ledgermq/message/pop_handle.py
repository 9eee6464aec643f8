"""What POP's handle says, and how the topics are called to which it may point. Pure.

    handle      start popTime invisibleTime reviveQueue retry broker queue [offset]
    retry       0 the topic itself, 1 and 2 the group's retry topic of it, by its older and newer name

Source: apache/rocketmq `remoting/.../protocol/header/ExtraInfoUtil.java`, `common/.../KeyBuilder.java`.
"""

from typing import Final, NamedTuple

POP_CK: Final = "POP_CK"
"""The property that carries a handle."""

RETRY_PREFIX: Final = "%RETRY%"

_FIELDS: Final = 7
_I32_MAX: Final = (1 << 31) - 1
_I64_MAX: Final = (1 << 63) - 1


class Taking(NamedTuple):
    """Which taking of messages of a queue it was.

    Attributes:
        start: queue offset at which it begins.
        pop_ms: when, ms since the epoch.
        invisible_ms: for how long nobody else gets them.
        revive_queue: where the broker keeps its checkpoint.
        retry: which topic is meant.
        broker: name.
    """

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker: str
    queue_id: int


def parse_handle(text: str) -> tuple[Taking, str]:
    """The taking, and the message's offset as it is written; empty when there is none.

    Raises:
        ValueError: not a handle.
    """
    parts = text.split(" ")
    if len(parts) < _FIELDS:
        raise ValueError(f"has {len(parts)} words, must have {_FIELDS}")
    start, pop_ms, invisible_ms, revive_queue, queue_id = map(int, (*parts[:4], parts[6]))
    if max(abs(start), abs(pop_ms), abs(invisible_ms)) > _I64_MAX or max(abs(revive_queue), abs(queue_id)) > _I32_MAX:
        raise ValueError("has a number that is out of range")
    return Taking(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id), "".join(parts[_FIELDS:8])


def retry_topic(topic: str, group: str, *, is_v2: bool) -> str:
    """Where messages of `topic` go that `group` took and did not acknowledge."""
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def retry_flag(topic: str) -> str:
    """0, 1 or 2."""
    if not is_retry_topic(topic):
        return "0"
    return "2" if "+" in topic else "1"


def real_topic(topic: str, group: str, retry: str) -> str:
    """The topic that a retry flag means.

    Raises:
        ValueError: an unknown flag.
    """
    if retry == "0":
        return topic
    if retry in ("1", "2"):
        return retry_topic(topic, group, is_v2=retry == "2")
    raise ValueError(f"retry flag {retry[:100]!r} is not one of 0, 1, 2")
