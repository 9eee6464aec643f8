"""Administration of topics."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ledgermq.client.admin.base import AdminBase, by_queue, flag, union
from ledgermq.client.admin.results import QueueStats, TopicConfig, parse_names, parse_queue_key, parse_topic_config
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.checks import check_count, check_flag, check_text, check_text_map, check_topic, given
from ledgermq.client.errors import DeadlineExceededError, InvalidArgumentError, LedgerMQError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.route import PERM_READ, PERM_WRITE, QUEUES_MAX, TopicRoute

DEFAULT_QUEUE_COUNT: Final = 8
ROUTE_POLL_S: Final = 0.02
PERM_MAX: Final = 7


class TopicAdmin(AdminBase):
    """Creates, changes, deletes and lists topics."""

    async def create_topic(
        self,
        topic: str,
        queue_count: int = DEFAULT_QUEUE_COUNT,
        *,
        cluster: str | None = None,
        permission: int = PERM_READ | PERM_WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Create a topic on every broker (of that cluster), or change its number of queues.

        Args:
            topic: its name.
            queue_count: per broker.
            cluster: name of the cluster; None for the brokers of all clusters.
            permission: 4 may be read, 2 may be written, 6 both.
            ordered: the flag `order` of the topic's configuration, which clients read.
            attributes: of RocketMQ 5, such as `{"message.type": "FIFO"}`.

        Returns:
            The topic's route, once a nameserver has it with all of its brokers.

        Raises:
            NoBrokerError: no broker has registered at the nameservers within `deadline_s` seconds.
        """
        check_topic(topic)
        check_count(most=QUEUES_MAX, queue_count=queue_count)
        check_count(least=0, most=PERM_MAX, permission=permission)
        check_flag(ordered=ordered)
        check_text_map(**given(attributes=attributes))
        config = TopicConfig(topic, queue_count, queue_count, permission, ordered, {})
        brokers = await self._broker_names(cluster, awaits_one=True)
        added = {f"+{name}": value for name, value in (attributes or {}).items()}
        for broker in brokers:
            await self._put_topic(broker, config, added)
        if not permission & PERM_WRITE:
            return await self.route(topic)
        return await self._route_with(topic, frozenset(brokers), queue_count)

    async def update_topic(
        self,
        topic: str,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        permission: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change a topic at every broker that has it; None keeps a setting.

        Args:
            topic: its name.
            read_queue_count: per broker.
            write_queue_count: per broker.
            permission: 4 may be read, 2 may be written, 6 both.
            ordered: see `create_topic`.
            attributes: new values; None deletes an attribute.

        Raises:
            TopicNotFoundError: a broker of its route does not know it.
        """
        counts = given(read_queue_count=read_queue_count, write_queue_count=write_queue_count)
        check_count(least=0, most=QUEUES_MAX, **counts)
        check_count(least=0, most=PERM_MAX, **given(permission=permission))
        check_flag(**given(ordered=ordered))
        check_text_map(may_delete=True, **given(attributes=attributes))
        changed = {f"{'-' if value is None else '+'}{name}": value for name, value in (attributes or {}).items()}
        for broker, old in (await self.topic_config(topic)).items():
            new = replace(old, **counts, **given(permission=permission, is_ordered=ordered))
            await self._put_topic(broker, new, changed)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages from every broker (of that cluster) and from every nameserver."""
        check_topic(topic)
        await self._at_leaders(await self._broker_names(cluster), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        ext = {"topic": topic} | ({} if cluster is None else {"clusterName": cluster})
        await self._at_nameservers(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)

    async def topics(self, *, cluster: str | None = None) -> tuple[str, ...]:
        """Return the names of all topics of a cluster (None: of all), sorted; system and retry topics included."""
        if cluster is None:
            answer = await self._at_a_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        else:
            check_text(cluster, "cluster")
            answer = await self._at_a_nameserver(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        return tuple(sorted(read_body("nameserver", "list of topics", answer.body, parse_names("topicList"))))

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's configuration, by the name of each broker of its route."""
        brokers = (await self.route(topic)).brokers
        code, what = RequestCode.GET_TOPIC_CONFIG, f"configuration of {topic}"
        return await self._read_at_leaders(brokers, code, {"topic": topic}, what, parse_topic_config)

    async def topic_stats(self, topic: str) -> tuple[QueueStats, ...]:
        """Return first offset, end and time of the newest message of each queue of a topic, sorted."""
        brokers = (await self.route(topic)).brokers
        code, what = RequestCode.GET_TOPIC_STATS_INFO, f"statistics of {topic}"
        return by_queue(await self._read_at_leaders(brokers, code, {"topic": topic}, what, _parse_stats))

    async def consumers_of(self, topic: str) -> tuple[str, ...]:
        """Return the groups that have committed offsets in a topic or subscribe to it now, sorted."""
        brokers = (await self.route(topic)).brokers
        code, what = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, f"groups of {topic}"
        return union(await self._read_at_leaders(brokers, code, {"topic": topic}, what, parse_names("groupList")))

    # -- internals

    async def _put_topic(self, broker: str, config: TopicConfig, changed: Mapping[str, str | None]) -> None:
        ext = {
            "topic": config.topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(config.read_queue_count),
            "writeQueueNums": str(config.write_queue_count),
            "perm": str(config.permission),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": flag(config.is_ordered),
        }
        if changed:
            ext["attributes"] = attributes_text(changed)
        await self._at_leader(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    async def _route_with(self, topic: str, brokers: frozenset[str], queue_count: int) -> TopicRoute:
        """Return the topic's route once it has the queues of all brokers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        while True:
            try:
                route = await self.route(topic)
                if sum(queue.broker in brokers for queue in route.write_queues) >= queue_count * len(brokers):
                    return route
            except LedgerMQError:
                if loop.time() >= deadline:
                    raise
            if loop.time() >= deadline:
                raise DeadlineExceededError(f"route of new topic {topic!r}", self._deadline_s, 0, ())
            await asyncio.sleep(ROUTE_POLL_S)


def attributes_text(changed: Mapping[str, str | None]) -> str:
    """Encode changes of attributes for a request: `+name=value,-name`.

    Raises:
        InvalidArgumentError: a separator in a name or a value.
    """
    for name, value in changed.items():
        if any(separator in name + (value or "") for separator in ",="):
            raise InvalidArgumentError(f"attribute {name[1:]!r} is {value!r}: `,` and `=` separate attributes")
    return ",".join(name if value is None else f"{name}={value}" for name, value in changed.items())


def _parse_stats(data: dict[str, dict[str, dict[str, int]]]) -> list[QueueStats]:
    return [
        QueueStats(parse_queue_key(key), int(one["minOffset"]), int(one["maxOffset"]), int(one["lastUpdateTimestamp"]))
        for key, one in data["offsetTable"].items()
    ]
