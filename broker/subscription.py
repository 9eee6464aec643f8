"""What a group wants of a topic: the tag expression, and the filter over tag codes that pulls use.

The filter compares hashes only; the client compares the tags themselves again. SQL92 expressions are stored and shown,
but a pull under one is refused: this release filters by tags.

Source: apache/rocketmq `common/.../filter/FilterAPI.java`, `broker/.../filter/ExpressionMessageFilter.java`.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ledgermq.message.hashing import tags_code
from ledgermq.remoting.refusal import Cause, Refusal

TAG = "TAG"
ALL = "*"

TagFilter = Callable[[int], bool]
"""Whether a message with this tags code is wanted."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic, as its last heartbeat told it.

    Attributes:
        version: the client's clock (ms) when it subscribed; a pull may ask for one at least as new.
        tag_filter: None when every message is wanted.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    class_filter: bool
    tags: tuple[str, ...]
    tag_filter: TagFilter | None

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": [tags_code(tag) for tag in self.tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Subscription":
        """Read a subscription of a heartbeat.

        Raises:
            Refusal: INVALID_PARAMETER or SUBSCRIPTION_PARSE_FAILED, naming what is bad.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("topic"), str):
            raise Refusal(Cause.INVALID_PARAMETER, f"a subscription without a topic: {str(value)[:200]}")
        return make_subscription(
            value["topic"],
            str(value.get("subString") or ALL),
            str(value.get("expressionType") or TAG),
            _version(value.get("subVersion")),
            class_filter=bool(value.get("classFilterMode")),
        )


def make_subscription(
    topic: str, expression: str, expression_type: str = TAG, version: int = 0, *, class_filter: bool = False
) -> Subscription:
    """A subscription with its filter.

    Raises:
        Refusal: SUBSCRIPTION_PARSE_FAILED, a tag expression without a tag.
    """
    by_tag = expression_type == TAG
    tags = parse_tags(expression) if by_tag else ()
    chosen = tag_filter(expression) if by_tag and not class_filter else None
    return Subscription(topic, expression, expression_type, version, class_filter, tags, chosen)


def parse_tags(expression: str) -> tuple[str, ...]:
    """The tags of `A||B`, in order; none for `*` and for an empty expression, which want all.

    Raises:
        Refusal: SUBSCRIPTION_PARSE_FAILED, separators and no tag.
    """
    if expression in ("", ALL):
        return ()
    tags = tuple(dict.fromkeys(tag.strip() for tag in expression.split("||") if tag.strip()))
    if not tags:
        raise Refusal(
            Cause.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {expression[:200]!r} names no tag",
        )
    return tags


@functools.lru_cache(maxsize=4096)
def tag_filter(expression: str) -> TagFilter | None:
    """The test for a tag expression; None when it wants all. Errors as `parse_tags`. Cached: clients repeat it."""
    tags = parse_tags(expression)
    return frozenset(map(tags_code, tags)).__contains__ if tags else None


def _version(value: Any) -> int:
    return value if isinstance(value, int) else 0
