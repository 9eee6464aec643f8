"""Administration of consumer groups: settings, members, and the state of single consumers."""

import contextlib
from dataclasses import replace
from typing import Any, Final

import orjson

from ledgermq.client.admin.base import AdminBase, flag, union
from ledgermq.client.admin.results import (
    ConsumerState,
    GroupConfig,
    GroupConnections,
    GroupMember,
    HandledDirectly,
    parse_connections,
    parse_consumer_state,
    parse_group_config,
    parse_members,
    parse_names,
)
from ledgermq.client.admin.topics import attributes_text
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.checks import check_count, check_flag, check_group, check_kind, check_text_map, given
from ledgermq.client.core.message import Message
from ledgermq.client.errors import (
    GroupNotFoundError,
    NotFoundError,
    RefusedError,
    ServerError,
)
from ledgermq.client.group.membership import read_members
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.fields import I32_MAX

FORWARDED_TIMEOUT_S: Final = 12.0  # the broker asks a client, and gives it 10 s


class GroupAdmin(AdminBase):
    """Administration of groups."""

    async def create_group(self, config: GroupConfig | str, *, cluster: str | None = None) -> None:
        """Create a group on every broker (of that cluster), or give it these settings.

        Args:
            config: the settings, or only the group's name for the default settings.
            cluster: whose brokers; None: all.
        """
        check_kind((GroupConfig, str), config=config)
        settings = GroupConfig(config) if isinstance(config, str) else config
        check_group(settings.group)
        brokers = await self._broker_names(cluster, awaits_one=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._at_leaders(brokers, code, {}, body=_group_body(settings))

    async def update_group(
        self,
        group: str,
        *,
        may_consume: bool | None = None,
        may_broadcast: bool | None = None,
        is_ordered: bool | None = None,
        retry_max: int | None = None,
        retry_queue_count: int | None = None,
    ) -> None:
        """Change settings of a group on every broker that knows it, see `GroupConfig`; None keeps a setting.

        Raises:
            GroupNotFoundError: no broker knows the group.
        """
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        flags = given(may_consume=may_consume, may_broadcast=may_broadcast, is_ordered=is_ordered)
        counts = given(retry_max=retry_max, retry_queue_count=retry_queue_count)
        check_flag(**flags)
        check_count(least=0, most=I32_MAX, **counts)
        for broker, old in (await self.group_config(group)).items():
            new = replace(old, attributes=None, **flags, **counts)
            await self._at_leader(broker, code, {}, body=_group_body(new))

    async def delete_group(self, group: str, *, clean_offsets: bool = False, cluster: str | None = None) -> None:
        """Delete a group's settings from every broker (of that cluster), and its offsets if asked for."""
        check_group(group)
        check_flag(clean_offsets=clean_offsets)
        ext = {"groupName": group, "cleanOffset": flag(clean_offsets)}
        await self._at_leaders(await self._broker_names(cluster), RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that any broker has settings for, sorted."""
        brokers, parse = await self._broker_names(None), parse_names("subscriptionGroupTable")
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return union(await self._read_at_leaders(brokers, code, {}, "groups", parse))

    async def group_config(self, group: str) -> dict[str, GroupConfig]:
        """Return a group's settings, by the name of each broker that knows it.

        Raises:
            GroupNotFoundError: no broker knows it.
        """
        check_group(group)
        found = {}
        failure: GroupNotFoundError | None = None
        for broker in await self._broker_names(None):
            try:
                answer = await self._at_leader(broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
            except GroupNotFoundError as error:
                failure = error
                continue
            found[broker] = read_body(broker, f"settings of {group}", answer.body, parse_group_config)
        if failure is not None and not found:
            raise failure
        return found

    async def members(self, group: str) -> tuple[str, ...]:
        """Return client ids of a consumer group's members, sorted; empty when none is connected."""
        check_group(group)
        code, ext = RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
        found: set[str] = set()
        for broker in await self._broker_names(None):
            with contextlib.suppress(ServerError):  # `no consumer for this group`
                found.update(read_members(broker, (await self._at_leader(broker, code, ext, ServerError)).body))
        return tuple(sorted(found))

    async def connections(self, group: str) -> GroupConnections:
        """Return the connected members of a group, and its subscriptions.

        Raises:
            NotFoundError: no member is connected.
        """
        check_group(group)
        code, ext = RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        try:
            where, answer = await self._at_any(await self._broker_names(None), code, ext)
        except RefusedError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            raise NotFoundError(error.address, ResponseCode.CONSUMER_NOT_ONLINE, error.remark) from error
        return read_body(where, f"connections of {group}", answer.body, parse_connections)

    async def producers(self, group: str, topic: str) -> tuple[GroupMember, ...]:
        """Return the connected members of a producer group that send to a topic; empty when there are none."""
        check_kind(str, group=group, topic=topic)
        ext = {"producerGroup": group}
        try:
            brokers = (await self.route(topic)).brokers
            where, answer = await self._at_any(brokers, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext)
        except ServerError:
            return ()
        return read_body(where, f"producers of {group}", answer.body, parse_members)

    async def consumer_state(self, group: str, client_id: str, *, stacks: bool = False) -> ConsumerState:
        """Return the state of one consumer, as it answers itself: settings, queues, rates; with `stacks` its stacks.

        Raises:
            ServerError: it is not connected, or does not answer.
        """
        check_kind(str, group=group, client_id=client_id)
        check_flag(stacks=stacks)
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": flag(stacks)}
        brokers, code = await self._broker_names(None), RequestCode.GET_CONSUMER_RUNNING_INFO
        where, answer = await self._at_any(brokers, code, ext, timeout_s=FORWARDED_TIMEOUT_S)
        return read_body(where, f"state of {client_id}", answer.body, parse_consumer_state)

    async def handle_directly(self, group: str, client_id: str, message: Message) -> HandledDirectly:
        """Let one consumer handle a message now; no offset changes.

        Raises:
            ServerError: it is not connected, does not answer, or has no handler.
        """
        check_kind(str, group=group, client_id=client_id)
        check_kind(Message, message=message)
        broker, code = message.queue.broker, RequestCode.CONSUME_MESSAGE_DIRECTLY
        ext = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": message.offset_message_id,
            "brokerName": broker,
            "topic": message.queue.topic,
        }
        answer = await self._at_leader(broker, code, ext, ServerError, timeout_s=FORWARDED_TIMEOUT_S)
        return read_body(client_id, "what a handler made of a message", answer.body, _parse_handled)

    async def topics_of(self, group: str) -> tuple[str, ...]:
        """Return the topics in which a group has committed offsets, sorted."""
        check_group(group)
        brokers, parse = await self._broker_names(None), parse_names("topicList")
        code, what = RequestCode.QUERY_TOPICS_BY_CONSUMER, f"topics of {group}"
        return union(await self._read_at_leaders(brokers, code, {"group": group}, what, parse))


def _group_body(config: GroupConfig) -> bytes:
    """Return RocketMQ's SubscriptionGroupConfig.

    Raises:
        InvalidArgumentError: a setting is invalid; names it.
    """
    check_flag(may_consume=config.may_consume, may_broadcast=config.may_broadcast, is_ordered=config.is_ordered)
    check_count(least=0, most=I32_MAX, retry_max=config.retry_max, retry_queue_count=config.retry_queue_count)
    check_text_map(**given(attributes=config.attributes))
    body = {
        "brokerId": 0,
        "consumeBroadcastEnable": config.may_broadcast,
        "consumeEnable": config.may_consume,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": config.is_ordered,
        "groupName": config.group,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": config.retry_max,
        "retryQueueNums": config.retry_queue_count,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    if config.attributes:
        attributes_text(config.attributes)  # checks them
        body["attributes"] = {f"+{name}": value for name, value in config.attributes.items()}
    return orjson.dumps(body)


def _parse_handled(data: Any) -> HandledDirectly:
    return HandledDirectly(str(data["consumeResult"]), str(data.get("remark") or ""), int(data["spentTimeMills"]))
