"""Settings of a topic and of a subscription group: frozen values, and the JSON of RocketMQ's clients and files.

Source: apache/rocketmq `common/.../TopicConfig.java`, `remoting/.../subscription/SubscriptionGroupConfig.java` (5.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import PERM_READ_WRITE, QUEUES_MAX

EXTRA_MAX_BYTES = 16 << 10
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic on this broker: queues `[0, write_queues)` take sends, `[0, read_queues)` give messages.

    `extra` has the JSON members that this release does not know, so that they are written back unchanged.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"topic {self.name} (read queues {self.read_queues}, write queues {self.write_queues}, perm {self.perm})"

    def to_json(self) -> dict[str, Any]:
        return {
            **self.extra,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: Any) -> "TopicConfig":
        """Read RocketMQ's JSON; fields that older releases do not write have their defaults.

        Raises:
            Refusal: MALFORMED_FIELD, naming the field that is missing or bad.
        """
        reader = _Reader("topic config", value)
        filter_type = reader.text("topicFilterType", "SINGLE_TAG")
        if filter_type not in _FILTER_TYPES:
            raise reader.bad("topicFilterType", filter_type, f"one of {', '.join(_FILTER_TYPES)}")
        return cls(
            name=reader.text("topicName"),
            read_queues=reader.integer("readQueueNums", 16, high=QUEUES_MAX),
            write_queues=reader.integer("writeQueueNums", 16, high=QUEUES_MAX),
            perm=reader.integer("perm", PERM_READ_WRITE),
            filter_type=filter_type,
            sys_flag=reader.integer("topicSysFlag", 0),
            order=reader.boolean("order", False),
            attributes=reader.texts("attributes"),
            extra={name: kept for name, kept in reader.members.items() if name not in _TOPIC_FIELDS},
        )


_TOPIC_FIELDS = frozenset(
    {
        "attributes",
        "order",
        "perm",
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One subscription group. `extra` has the JSON members that this release does not know, to be written back."""

    name: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    notify_consumer_ids_changed: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    broker_id_when_slow: int = 1
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        whole = {
            **_GROUP_DEFAULTS,
            **self.extra,
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "groupName": self.name,
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.broker_id_when_slow,
        }
        return {name: whole[name] for name in sorted(whole)}

    @classmethod
    def from_json(cls, value: Any) -> "GroupConfig":
        """Read RocketMQ's JSON; fields that older releases do not write have their defaults.

        Raises:
            Refusal: MALFORMED_FIELD, naming the field that is missing or bad.
        """
        reader = _Reader("group config", value)
        return cls(
            name=reader.text("groupName"),
            consume_enable=reader.boolean("consumeEnable", True),
            consume_broadcast_enable=reader.boolean("consumeBroadcastEnable", True),
            notify_consumer_ids_changed=reader.boolean("notifyConsumerIdsChangedEnable", True),
            retry_queues=reader.integer("retryQueueNums", 1, high=QUEUES_MAX),
            retry_max_times=reader.integer("retryMaxTimes", 16),
            broker_id=reader.integer("brokerId", 0),
            broker_id_when_slow=reader.integer("whichBrokerWhenConsumeSlowly", 1),
            sys_flag=reader.integer("groupSysFlag", 0),
            attributes=reader.texts("attributes"),
            extra={name: kept for name, kept in reader.members.items() if _is_extra(name, kept)},
        )


_GROUP_DEFAULTS: Mapping[str, Any] = {
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
}
_GROUP_FIELDS = frozenset(
    {
        "attributes",
        "brokerId",
        "consumeBroadcastEnable",
        "consumeEnable",
        "groupName",
        "groupSysFlag",
        "notifyConsumerIdsChangedEnable",
        "retryMaxTimes",
        "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    }
)


def check_extra(config: TopicConfig | GroupConfig) -> None:
    """Check that what a request says beyond the settings known here is short enough to be kept.

    Raises:
        Refusal: INVALID_PARAMETER, it has more than `EXTRA_MAX_BYTES` as JSON.
    """
    if config.extra and (size := len(dumps(config.extra))) > EXTRA_MAX_BYTES:
        text = f"{config.name} has {size} bytes of further settings, more than {EXTRA_MAX_BYTES}"
        raise Refusal(Cause.INVALID_PARAMETER, text)


def _is_extra(name: str, value: Any) -> bool:
    return name not in _GROUP_FIELDS and (name not in _GROUP_DEFAULTS or _GROUP_DEFAULTS[name] != value)


def data_version(value: Mapping[str, Any]) -> DataVersion:
    """Return the version in parsed JSON; absent members are 0.

    Raises:
        Refusal: MALFORMED_FIELD, names the member.
    """
    reader = _Reader("dataVersion", value)
    return DataVersion(reader.integer("counter", 0), reader.integer("timestamp", 0), reader.integer("stateVersion", 0))


class _Reader:
    """Typed access to a parsed JSON object of a client or of a file."""

    def __init__(self, what: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Refusal(Cause.MALFORMED_FIELD, f"{what} is not a JSON object but {type(value).__name__}")
        self._what = what
        self.members: Mapping[str, Any] = value

    def bad(self, name: str, value: Any, wanted: str) -> Refusal:
        return Refusal(Cause.MALFORMED_FIELD, f"{self._what}: field {name} is {str(value)[:100]!r}, not {wanted}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.members.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, value, "a text")
        return value

    def integer(self, name: str, default: int, *, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> int:
        value = self.members.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.bad(name, value, f"a number in [{low}, {high}]")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.members.get(name, default)
        if not isinstance(value, bool):
            raise self.bad(name, value, "true or false")
        return value

    def texts(self, name: str) -> dict[str, str]:
        value = self.members.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.bad(name, value, "an object of texts")
        return {str(key): str(kept) for key, kept in value.items()}
