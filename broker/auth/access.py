"""The resources and actions that a request needs, from its code, header fields and body. Pure.

A request code that is in no table needs the permission to update the cluster, so that a new request is closed until a
table has it. RocketMQ 5.3.3 has no rule for the broker's settings (25, 26), groups (200), and the tables of topics,
groups and offsets (21, 43, 201), and lets every user send these. On the other hand, whoever may read a topic may here
ask for its offsets and single messages (29 to 33), as consumers do, for which RocketMQ demands the action Get.

Source: apache/rocketmq `auth/.../authorization/builder/DefaultAuthorizationContextBuilder.java`, and `@RocketMQAction`
of the request headers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from broker.auth.policy import NeededAccess
from broker.state import names
from broker.state.users import CLUSTER, GROUP, TOPIC, Resource
from ledgermq.message.errors import InvalidMessageIdError
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.remoting.codec.codes import RequestCode as Code
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import Fields, long
from ledgermq.remoting.codec.lenient_json import request_object
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import QUEUES_MAX

PUB: Final = ("Pub",)
SUB: Final = ("Sub",)
GET: Final = ("Get",)
UPDATE: Final = ("Update",)
CREATE: Final = ("Create",)
DELETE: Final = ("Delete",)
SUB_GET: Final = ("Sub", "Get")
SUB_UPDATE: Final = ("Sub", "Update")

TopicAt = Callable[[int], str | None]
"""Returns the topic of the record at a physical offset; for a record that waits, its real topic."""

_BY_FIELDS: Final[Mapping[int, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]] = {
    # code: actions, fields that name topics, fields that name groups
    Code.PULL_MESSAGE: (SUB, ("topic",), ("consumerGroup",)),
    Code.LITE_PULL_MESSAGE: (SUB, ("topic",), ("consumerGroup",)),
    Code.QUERY_MESSAGE: (SUB_GET, ("topic",), ()),
    Code.QUERY_CONSUMER_OFFSET: (SUB_GET, ("topic",), ("consumerGroup",)),
    Code.UPDATE_CONSUMER_OFFSET: (SUB_UPDATE, ("topic",), ("consumerGroup",)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: (SUB_GET, ("topic",), ()),
    Code.GET_MAX_OFFSET: (SUB_GET, ("topic",), ()),
    Code.GET_MIN_OFFSET: (SUB_GET, ("topic",), ()),
    Code.GET_EARLIEST_MSG_STORETIME: (SUB_GET, ("topic",), ()),
    Code.RECALL_MESSAGE: (PUB, ("topic",), ()),
    Code.GET_CONSUMER_LIST_BY_GROUP: (SUB_GET, (), ("consumerGroup",)),
    Code.UPDATE_AND_CREATE_TOPIC: (CREATE, ("topic",), ()),
    Code.DELETE_TOPIC_IN_BROKER: (DELETE, ("topic",), ()),
    Code.GET_TOPIC_CONFIG: (GET, ("topic",), ()),
    Code.GET_TOPIC_STATS_INFO: (GET, ("topic",), ()),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: (GET, ("topic",), ()),
    Code.DELETE_SUBSCRIPTIONGROUP: (DELETE, (), ("groupName",)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (GET, (), ("group",)),
    Code.QUERY_TOPICS_BY_CONSUMER: (GET, (), ("group",)),
    Code.GET_CONSUMER_CONNECTION_LIST: (GET, (), ("consumerGroup",)),
    Code.GET_CONSUMER_RUNNING_INFO: (GET, (), ("consumerGroup",)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (GET, ("topic",), ("group",)),
    Code.QUERY_CONSUME_TIME_SPAN: (GET, ("topic",), ("group",)),
    Code.QUERY_CONSUME_QUEUE: (GET, ("topic",), ("consumerGroup",)),
    Code.QUERY_CORRECTION_OFFSET: (GET, ("topic",), ("filterGroups", "compareGroup")),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (UPDATE, ("topic",), ("group",)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (GET, ("topic",), ("group",)),
    Code.CLONE_GROUP_OFFSET: (UPDATE, ("topic",), ("destGroup",)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (UPDATE, ("topic",), ("group",)),
    Code.GET_CONSUME_STATS: (GET, ("topic", "topicList"), ("consumerGroup",)),
    Code.POP_MESSAGE: (SUB, ("topic",), ("consumerGroup",)),
    Code.ACK_MESSAGE: (SUB, ("topic",), ("consumerGroup",)),
    Code.PEEK_MESSAGE: (SUB, ("topic",), ("consumerGroup",)),
    Code.CHANGE_MESSAGE_INVISIBLETIME: (SUB, ("topic",), ("consumerGroup",)),
    Code.NOTIFICATION: (SUB, ("topic",), ("consumerGroup",)),
    Code.POLLING_INFO: (GET, ("topic",), ("consumerGroup",)),
}
_DELETED_TIMER: Final = re.compile(rb"TIMER_DEL_UNIQKEY\x01([^+\x02]*)\+")
"""The topic of the timer that a message's property deletes."""
_SEPARATORS: Final = {"topicList": ";", "filterGroups": ","}

_OF_CLUSTER_GET: Final = frozenset(
    {
        *(Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_ALL_CONSUMER_OFFSET),
        *(Code.GET_ALL_DELAY_OFFSET, Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS),
        *(Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_BROKER_HA_STATUS),
        *(Code.GET_BROKER_EPOCH_CACHE, Code.GET_COLD_DATA_FLOW_CTR_INFO, Code.GET_ALL_MESSAGE_REQUEST_MODE),
        *(Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_CONSUME_STATS, Code.GET_ALL_PRODUCER_INFO),
        *(Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
        *(Code.AUTH_GET_USER, Code.AUTH_LIST_USER, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL),
    }
)
FOR_EVERY_USER: Final = frozenset(
    {Code.CHECK_CLIENT_CONFIG, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.UNREGISTER_CLIENT}
)
"""Requests that only concern what the same client began, and need no permission.

Exceptions: UNREGISTER_CLIENT of a consumer needs its group, and a reply that is stored in any topic but the cluster's
reply topic is a send; one that deletes a timer needs the right to the timer's topic.
"""


_REPLIES: Final = frozenset({Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2})


def accesses(command: Command, cluster: str, topic_at: TopicAt) -> list[NeededAccess]:
    """Return all accesses that a request needs; each must be allowed.

    Raises:
        Refusal: MALFORMED_FIELD, the body or the offset that names a resource cannot be read.
    """
    code, fields = command.code, command.ext
    by_fields = _BY_FIELDS.get(code)
    if by_fields is not None:
        return list(_of_fields(fields, *by_fields)) or [NeededAccess(Resource(CLUSTER, cluster), by_fields[0])]
    special = _SPECIAL.get(code)
    if special is not None:
        return list(special(command))
    if code in _REPLIES:
        is_free = _sent_topic(command) == names.reply_topic(cluster)
        return list(_deleted_timers(command) if is_free else _send(command))
    of_record = _OF_RECORD.get(code)
    if of_record is not None:
        return list(of_record(fields, topic_at))
    actions = GET if code in _OF_CLUSTER_GET else UPDATE
    return [] if code in FOR_EVERY_USER else [NeededAccess(Resource(CLUSTER, cluster), actions)]


def of_topic(topic: str, actions: tuple[str, ...]) -> NeededAccess:
    """Return the access to a topic; for a retry topic, the access to its group."""
    if topic.startswith(names.RETRY_PREFIX):
        return of_group(topic, actions)
    return NeededAccess(Resource(TOPIC, topic), actions)


def of_group(group: str, actions: tuple[str, ...]) -> NeededAccess:
    """Return the access to a group; for a retry topic in its place, the access to that topic's group."""
    return NeededAccess(Resource(GROUP, group.removeprefix(names.RETRY_PREFIX)), actions)


def _of_fields(
    fields: Fields, actions: tuple[str, ...], topics: tuple[str, ...], groups: tuple[str, ...]
) -> Iterator[NeededAccess]:
    for names_, make in ((topics, of_topic), (groups, of_group)):
        for name in names_:
            value = fields.get(name, "")
            separator = _SEPARATORS.get(name)
            for part in value.split(separator) if separator else [value]:
                if part or (make is of_group and name in fields):  # a group without a name is one, too
                    yield make(part, actions)


def _view(fields: Fields, topic_at: TopicAt) -> Iterator[NeededAccess]:
    if topic := _topic_at(fields, "offset", topic_at):
        yield of_topic(topic, SUB_GET)


def _send_back(fields: Fields, topic_at: TopicAt) -> Iterator[NeededAccess]:
    yield of_group(fields.get("group", ""), SUB)
    if topic := _topic_at(fields, "offset", topic_at):
        yield of_topic(topic, SUB)


def _end_transaction(fields: Fields, topic_at: TopicAt) -> Iterator[NeededAccess]:
    for topic in {fields.get("topic", "").strip(), _topic_at(fields, "commitLogOffset", topic_at) or ""}:
        if topic:
            yield NeededAccess(Resource(TOPIC, topic), PUB)


def _consume_directly(fields: Fields, topic_at: TopicAt) -> Iterator[NeededAccess]:
    yield of_group(fields.get("consumerGroup", ""), SUB)
    try:
        _, offset = parse_offset_message_id(fields.get("msgId", ""))
    except InvalidMessageIdError:
        return
    if offset >= 0 and (topic := topic_at(offset)):
        yield of_topic(topic, SUB)


def _topic_at(fields: Fields, name: str, topic_at: TopicAt) -> str | None:
    """Return the topic of the record at the offset in field `name`, or None; it may differ from the request's topic."""
    offset = long(fields, name) if name in fields else -1
    return topic_at(offset) if offset >= 0 else None


_OF_RECORD: Final[Mapping[int, Callable[[Fields, TopicAt], Iterator[NeededAccess]]]] = {
    Code.VIEW_MESSAGE_BY_ID: _view,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.END_TRANSACTION: _end_transaction,
}


def _send(command: Command) -> Iterator[NeededAccess]:
    """Yield the access to the topic that stores the send; of a retry topic, to the group in its name, not field `a`."""
    topic = _sent_topic(command)
    yield of_topic(topic, SUB if topic.startswith(names.RETRY_PREFIX) else PUB)
    yield from _deleted_timers(command)


def _deleted_timers(command: Command) -> Iterator[NeededAccess]:
    """Yield the accesses to the topics whose timers a send deletes."""
    properties = command.ext.get("i" if _is_short(command) else "properties", "")
    for name in _DELETED_TIMER.findall(properties.encode(errors="replace")):
        yield of_topic(name.decode(errors="replace"), PUB)
    is_batch = "true" in (command.ext.get("m"), command.ext.get("batch"))
    if is_batch or command.code == Code.SEND_BATCH_MESSAGE:  # its messages have properties of their own
        for name in set(_DELETED_TIMER.findall(command.body)):
            yield of_topic(name.decode(errors="replace"), PUB)


def _sent_topic(command: Command) -> str:
    return command.ext.get("b" if _is_short(command) else "topic", "")


def _is_short(command: Command) -> bool:
    """Return whether a send is read by its one-letter field names; the others are ignored."""
    return "b" in command.ext and command.code != Code.SEND_MESSAGE


def _unregister(command: Command) -> Iterator[NeededAccess]:
    if group := command.ext.get("consumerGroup", "").strip():
        yield of_group(group, SUB)


def _heartbeat(command: Command) -> Iterator[NeededAccess]:
    for consumer in _list(request_object(command), "consumerDataSet"):
        yield of_group(_name(consumer, "groupName"), SUB)
        for topic in _names(_list(consumer, "subscriptionDataSet"), "topic"):
            if not topic.startswith(names.RETRY_PREFIX):
                yield of_topic(topic, SUB)


def _lock(command: Command) -> Iterator[NeededAccess]:
    body = request_object(command)
    yield of_group(_name(body, "consumerGroup"), SUB)
    for topic in _names(_list(body, "mqSet"), "topic"):
        if not topic.startswith(names.RETRY_PREFIX):
            yield of_topic(topic, SUB)


def _topic_list(command: Command) -> Iterator[NeededAccess]:
    for topic in _list(request_object(command), "topicConfigList"):
        yield of_topic(_name(topic, "topicName"), CREATE)


def _group(command: Command) -> Iterator[NeededAccess]:
    yield of_group(_name(request_object(command), "groupName"), CREATE)


def _group_list(command: Command) -> Iterator[NeededAccess]:
    for group in _list(request_object(command), "groupConfigList"):
        yield of_group(_name(group, "groupName"), CREATE)


def _batch_ack(command: Command) -> Iterator[NeededAccess]:
    for ack in _list(request_object(command), "acks"):
        yield of_group(_name(ack, "c"), SUB)
        yield of_topic(_name(ack, "t"), SUB)


def _assignment(command: Command) -> Iterator[NeededAccess]:
    body = request_object(command)
    yield of_topic(_name(body, "topic"), SUB)
    yield of_group(_name(body, "consumerGroup"), SUB)


_SPECIAL: Final[Mapping[int, Callable[[Command], Iterator[NeededAccess]]]] = {
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send,
    Code.SEND_BATCH_MESSAGE: _send,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.HEART_BEAT: _heartbeat,
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.QUERY_ASSIGNMENT: _assignment,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refusal(Cause.MALFORMED_FIELD, f"the body holds {type(value).__name__} where an object belongs")
    return value


def _list(value: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = value.get(name) or []
    if not isinstance(items, list):
        raise Refusal(Cause.MALFORMED_FIELD, f"field {name} of the body is not a list")
    if len(items) > QUEUES_MAX:
        raise Refusal(Cause.INVALID_PARAMETER, f"{name} has {len(items)} elements, {QUEUES_MAX} are the most")
    return [_object(item) for item in items]


def _names(items: list[Mapping[str, Any]], name: str) -> Iterable[str]:
    """Return each of the names once."""
    return dict.fromkeys(_name(item, name) for item in items)


def _name(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""
