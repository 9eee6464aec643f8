"""What a group wants of a topic: an expression over tags or over properties, and the filters that pulls use.

A tag filter compares hashes only; the client compares the tags themselves again. An SQL92 filter reads the properties
of each record.

Source: apache/rocketmq `common/.../filter/FilterAPI.java`, `broker/.../filter/ExpressionMessageFilter.java`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.sql import SqlSyntaxError, compile_filter
from broker.sql.text_cache import SHORT_MAX, text_cache
from ledgermq.message.hashing import java_string_hash, tags_code
from ledgermq.message.record import encoded_properties
from ledgermq.remoting.refusal import Cause, Refusal
from store.queues.hinted_filter import HintedFilter
from store.queues.tag_codes import TagCodes

TAG = "TAG"
SQL = "SQL92"
ALL = "*"

TagFilter = Callable[[int], bool]
"""Whether a message with this tags code is wanted."""

RecordFilter = Callable[[memoryview], bool]
"""Whether this record is wanted."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic, as its last heartbeat told it.

    Attributes:
        version: the client's clock (ms) when it subscribed; a pull may ask for one at least as new.
        tag_filter: None when tags decide nothing.
        record_filter: None when properties decide nothing.
        fault: why the expression cannot be used; a pull under it is refused.
    """

    topic: str
    expression: str
    expression_type: str
    version: int
    class_filter: bool
    tags: tuple[str, ...]
    tag_filter: TagFilter | None = None
    record_filter: RecordFilter | None = None
    fault: str | None = None

    def differs_from(self, other: "Subscription") -> bool:
        """Whether it selects by another expression."""
        return (self.expression, self.expression_type) != (other.expression, other.expression_type)

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": [_code_of(tag) for tag in self.tags],
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
            Refusal: MALFORMED_FIELD or SUBSCRIPTION_PARSE_FAILED, naming what is bad.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("topic"), str):
            raise Refusal(Cause.MALFORMED_FIELD, f"a subscription without a topic: {str(value)[:200]}")
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
    """A subscription with its filter; one whose SQL does not parse has a `fault`.

    Raises:
        Refusal: SUBSCRIPTION_PARSE_FAILED, a tag expression without a tag.
    """
    if expression_type == TAG:
        tags = parse_tags(expression)
        by_tag = None if class_filter else tag_filter(expression)
        return Subscription(topic, expression, expression_type, version, class_filter, tags, by_tag)
    by_record, fault = None, None
    if expression_type != SQL:
        fault = f"unknown expression type {expression_type[:40]!r}"
    else:
        try:
            by_record = sql_filter(expression)
        except SqlSyntaxError as error:
            fault = str(error)
    return Subscription(
        topic, expression, expression_type, version, class_filter, (), record_filter=by_record, fault=fault
    )


@text_cache
def asked_subscription(topic: str, expression: str, expression_type: str) -> Subscription:
    """The subscription that a request itself holds; errors as `make_subscription`. Cached: clients repeat it."""
    return make_subscription(topic, expression, expression_type)


def check_usable(subscription: Subscription, *, sql: bool, fault: Cause) -> None:
    """See that messages can be chosen by a subscription.

    Args:
        subscription: as a client told it.
        sql: filters over properties are allowed.
        fault: cause of the refusal of one that does not parse.

    Raises:
        Refusal: SYSTEM_ERROR, SQL that is not allowed; or `fault`.
    """
    if subscription.expression_type != TAG and not sql:
        raise Refusal(
            Cause.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    if subscription.fault is not None:
        raise Refusal(fault, f"parse the consumer's subscription failed: {subscription.fault}")


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


@text_cache
def tag_filter(expression: str) -> TagFilter | None:
    """The test for a tag expression; None when it wants all. Errors as `parse_tags`. Cached: clients repeat it."""
    tags = parse_tags(expression)
    return TagCodes(frozenset(map(_code_of, tags))) if tags else None


def sql_filter(expression: str) -> RecordFilter:
    """The test of a record for an SQL92 expression.

    Raises:
        SqlSyntaxError: it is none.
    """
    compiled = compile_filter(expression)
    matches = compiled.matches
    return HintedFilter(lambda record: matches(encoded_properties(record)), compiled.hints)


def _code_of(tag: str) -> int:
    return tags_code(tag) if len(tag) <= SHORT_MAX else java_string_hash(tag)  # which keeps no long one


def _version(value: Any) -> int:
    return value if isinstance(value, int) else 0
