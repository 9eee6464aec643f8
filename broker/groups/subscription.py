"""A group's selection of messages of a topic: an expression over tags or properties, and the filter for pulls.

A tag filter compares only hashes; the client compares the tags themselves again. An SQL92 filter reads the properties
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
TAGS_LENGTH_MAX = 65_536
"""Of a tag expression in a heartbeat; one of a pull is bounded by its header, too."""

TagFilter = Callable[[int], bool]
"""Whether a message with this tags code is selected."""

RecordFilter = Callable[[memoryview], bool]
"""Whether this record is selected."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to one topic, from its last heartbeat.

    Attributes:
        version: the client's time (ms) when it subscribed; a pull may ask for one at least as new.
        tag_filter: None when the selection does not depend on tags.
        record_filter: None when the selection does not depend on properties.
        fault: why the expression cannot be used; a pull with it is refused.
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
        """Return whether the expressions differ."""
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
            Refusal: MALFORMED_FIELD or SUBSCRIPTION_PARSE_FAILED, names what is wrong.
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
    """Return a subscription with its filter; one whose SQL cannot be parsed has a `fault`.

    Raises:
        Refusal: SUBSCRIPTION_PARSE_FAILED, a tag expression without a tag or too long.
    """
    if expression_type == TAG:
        if len(expression) > TAGS_LENGTH_MAX:
            remark = f"a tag expression of {len(expression)} characters, {TAGS_LENGTH_MAX} are the most"
            raise Refusal(Cause.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {remark}")
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
    """Return the subscription in a request; raises what `make_subscription` raises. Cached, since clients repeat it."""
    return make_subscription(topic, expression, expression_type)


def check_usable(subscription: Subscription, *, sql: bool, fault: Cause) -> None:
    """Check that messages can be selected by a subscription.

    Args:
        subscription: as the client sent it.
        sql: whether filters over properties are allowed.
        fault: cause of the refusal of one that cannot be parsed.

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
    """Return the tags of `A||B`, in order; none for `*` and for an empty expression, which select everything.

    Raises:
        Refusal: SUBSCRIPTION_PARSE_FAILED, separators without a tag.
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
    """Return the test of a tag expression; None when it selects everything. Raises what `parse_tags` raises. Cached."""
    tags = parse_tags(expression)
    return TagCodes(frozenset(map(_code_of, tags))) if tags else None


def sql_filter(expression: str) -> RecordFilter:
    """Return the test of a record for an SQL92 expression.

    Raises:
        SqlSyntaxError: the expression is not valid.
    """
    compiled = compile_filter(expression)
    matches = compiled.matches
    return HintedFilter(lambda record: matches(encoded_properties(record)), compiled.hints)


def _code_of(tag: str) -> int:
    # `tags_code` caches its results, so it is not used for long tags
    return tags_code(tag) if len(tag) <= SHORT_MAX else java_string_hash(tag)


def _version(value: Any) -> int:
    return value if isinstance(value, int) else 0
