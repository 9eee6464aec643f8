"""Which messages of a topic a consumer wants: `*`, tags joined by `||`, or a condition on properties in SQL92.

The broker compares hashes of tags, so that a message with another tag of the same hash may pass; `wants` compares the
strings. A message without a tag matches `*` only. Only the broker evaluates conditions (its `enablePropertyFilter`).

Source: apache/rocketmq `common/.../filter/FilterAPI.java`, `client/.../consumer/PullAPIWrapper.java`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ledgermq.client.core.checks import check_no_bytes, check_text, check_topic
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.group.start_position import Start, wire_name
from ledgermq.message.hashing import java_string_hash
from ledgermq.wall_clock import wall_clock_ms

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
RETRY_TOPIC_PREFIX = "%RETRY%"


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition on a message's properties: `Sql("price > 5 AND colour IN ('red', 'blue')")`."""

    condition: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and the filter for its messages.

    Attributes:
        topic: the topic's name.
        expression: as the user wrote it, `*` for all messages.
        tags: the tags of the expression; empty for all messages, and for a condition.
        version: Unix milliseconds; of two subscriptions of a group, brokers take the one with the larger version.
        kind: `TAG`, or `SQL92` when the expression is a condition.
    """

    topic: str
    expression: str
    tags: frozenset[bytes]
    version: int
    kind: str = TAG

    def wants(self, tag: bytes | None) -> bool:
        """Return whether a message with this tag (UTF-8) passes."""
        return not self.tags or tag in self.tags

    def to_wire(self) -> dict[str, object]:
        """Return RocketMQ's SubscriptionData, as heartbeats carry it."""
        tags = sorted(tag.decode() for tag in self.tags)
        return {
            "classFilterMode": False,
            "codeSet": [java_string_hash(tag) for tag in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }


def parse_subscription(topic: str, expression: str | Sql, version: int) -> Subscription:
    """Parse a tag expression: `*` or empty for all, else tags separated by `||`, blanks around them ignored.

    A condition is not parsed: the broker does that.

    Raises:
        InvalidArgumentError: only separators without a tag, or an empty condition.
    """
    if isinstance(expression, Sql):
        check_text(expression.condition, f"condition for topic {topic!r}")
        if not expression.condition.strip():
            raise InvalidArgumentError(f"the condition for topic {topic!r} is empty")
        return Subscription(topic, expression.condition, frozenset(), version, SQL92)
    check_text(expression, f"tag expression of topic {topic!r}")
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, frozenset(), version)
    tags = frozenset(tag.strip().encode() for tag in text.split("||") if tag.strip())
    if not tags:
        raise InvalidArgumentError(f"tag expression {expression!r} of topic {topic!r} names no tag")
    return Subscription(topic, text, tags, version)


Topics = str | Iterable[str] | Mapping[str, str | Sql]
"""A topic, several, or a mapping from topic to its filter: a tag expression or a condition."""

Mode = Literal["clustering", "broadcasting"]
"""Whether the members of a group share the messages, or each member gets all of them."""


def subscribe(group: str, topics: Topics, mode: Mode = "clustering") -> dict[str, Subscription]:
    """Return the subscriptions of a consumer by topic, the group's retry topic included.

    In broadcasting there is no retry topic, since nothing is retried.

    Raises:
        InvalidArgumentError: no topic, or a malformed name or expression.
    """
    named = [topics] if isinstance(topics, str) else topics
    check_no_bytes(topics=topics)
    try:
        expressions: dict[str, str | Sql] = dict(named) if isinstance(named, Mapping) else dict.fromkeys(named, ALL)
    except TypeError:
        raise InvalidArgumentError(
            f"topics are {topics!r}: neither a name, nor names, nor expressions by name"
        ) from None
    if not expressions:
        raise InvalidArgumentError("no topic to subscribe to")
    for topic in expressions:
        check_topic(topic)
    if mode == "clustering":
        expressions[RETRY_TOPIC_PREFIX + group] = ALL
    version = wall_clock_ms()
    return {topic: parse_subscription(topic, expression, version) for topic, expression in expressions.items()}


def consumer_heartbeat(
    client_id: str, group: str, start: Start, subscriptions: Iterable[Subscription], mode: Mode = "clustering"
) -> dict[str, Any]:
    """Return HeartbeatData of one consumer."""
    data = {
        "consumeFromWhere": wire_name(start),
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": mode.upper(),
        "subscriptionDataSet": [subscription.to_wire() for subscription in subscriptions],
        "unitMode": False,
    }
    return {
        "clientID": client_id,
        "consumerDataSet": [data],
        "heartbeatFingerprint": 0,
        "producerDataSet": [],
        "withoutSub": False,
    }
