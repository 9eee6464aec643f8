"""What a consumer subscribes to, and how brokers are told: the consumer's part of a heartbeat.

Source: apache/rocketmq `remoting/.../protocol/heartbeat/{HeartbeatData,ConsumerData}.java`.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ledgermq.client.core.checks import check_no_bytes
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.group.start_position import Start, wire_name
from ledgermq.client.group.subscription import ALL, RETRY_TOPIC_PREFIX, Sql, Subscription, parse_subscription
from ledgermq.client.producer.outgoing import check_topic

Topics = str | Iterable[str] | Mapping[str, str | Sql]
"""A topic, several, or by topic what is wanted of it: a tag expression or a condition."""

Mode = Literal["clustering", "broadcasting"]
"""Whether the members of a group share the messages, or each gets all of them."""


def subscribe(group: str, topics: Topics, mode: Mode = "clustering") -> dict[str, Subscription]:
    """Subscriptions by topic.

    The group's retry topic is among them, as all members subscribe to the same; not in broadcasting, which retries
    nothing.

    Raises:
        InvalidArgumentError: no topic, a malformed name or expression.
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
    version = time.time_ns() // 1_000_000
    return {topic: parse_subscription(topic, expression, version) for topic, expression in expressions.items()}


def consumer_heartbeat(
    client_id: str, group: str, start: Start, subscriptions: Iterable[Subscription], mode: Mode = "clustering"
) -> dict[str, Any]:
    """HeartbeatData of one consumer."""
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
