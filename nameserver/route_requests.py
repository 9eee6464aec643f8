"""Requests of clients and tools: the route of a topic, lists of topics and brokers.

So that clients need not poll during a failover, 105 takes two fields of our own: `knownVersion`, the `routeVersion` of
the last answer (0 for "no route"), and `waitMillis`. While the route has the known version, the answer is held, for at
most that long. Answers to such requests have `routeVersion`, which only this nameserver understands.

RocketMQ's clients poll routes every 30 s and take over a route without a leader. So their requests, too, wait for the
leader of a broker name that has just lost its own, for `LEADER_WAIT_MS` at most: Java's client waits 3 s for an answer.

Source: apache/rocketmq `namesrv/.../processor/ClientRequestProcessor.java`, `DefaultRequestProcessor.java` (5.3).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long, optional_boolean, text
from ledgermq.remoting.codec.java_json import dumps, java_json, standard_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.answer import Answer, Handler
from nameserver.config import NameServerConfig
from nameserver.core.model import TopicRoute
from nameserver.core.routes import RouteTable
from nameserver.core.send_names import MARK, named_group, with_send_names
from nameserver.core.topics import UNIT, UNIT_SUBSCRIPTION
from nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from nameserver.route_waiters import RouteWaiters

_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

LEADER_WAIT_MS = 2000
"""Longest time for which a plain route request waits while a broker name of the route has no leader."""

_FIRST_ASKED = "first asked"
"""Attribute of a connection: when it first asked for the route of each topic that exists, at most `_ASKED_MAX`."""

_ASKED_MAX = 1000

_REFUSED = "refused"
"""Attribute of a connection: whether the topic for which it asked last has no route."""

_IS_PRODUCERS = "is a producer's"
"""Attribute of a connection: its client makes topics by sending to them."""

_TEMPLATE = "TBW102"
_TEMPLATE_SINCE = 435
"""Ordinal of V5_1_1 in MQVersion. Java clients before it, mqadmin too, ask for the template's route every 30 s; later
ones when they send to a topic that has no route."""

_GO = "GO"

_STANDARD_JSON_SINCE = 401
"""Ordinal of V4_9_4 in MQVersion. Clients before it get fastjson's text: old Go clients split it at commas."""


class RouteRequests:
    """The handlers.

    Args:
        config: returns the present configuration.
        age_s: returns the seconds since the start.
        is_led: as `RouteWaiters` asks it.
    """

    def __init__(
        self,
        table: RouteTable,
        kv: KvConfig,
        config: Callable[[], NameServerConfig],
        age_s: Callable[[], float],
        waiters: RouteWaiters,
        is_led: Callable[[str], bool],
    ) -> None:
        self._table = table
        self._kv = kv
        self._config = config
        self._age_s = age_s
        self._waiters = waiters
        self._is_led = is_led

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_subscription_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_subscription_only_topics,
        }

    def _route(self, connection: Connection, command: Command) -> Answer | None:
        config = self._config()
        if config.wait_for_service and self._age_s() < config.wait_for_service_seconds:
            raise Refusal(Cause.SYSTEM_ERROR, "name server not ready")
        topic = text(command.ext, "topic")
        wait_ms = min(long(command.ext, "waitMillis", 0, low=0), config.max_route_wait_ms)
        if wait_ms and self._table.version(topic) == (known := long(command.ext, "knownVersion", 0)):
            self._waiters.hold(connection, command, topic, known, wait_ms / 1000)
            return None
        if not wait_ms and not self._is_led(topic):
            limit_s = min(LEADER_WAIT_MS, config.max_route_wait_ms) / 1000
            self._waiters.hold(connection, command, topic, None, limit_s)
            return None
        return self.answer_route(connection, command)

    def answer_route(self, connection: Connection, command: Command) -> Answer:
        """Return the present route.

        Raises:
            Refusal: TOPIC_NOT_EXIST, with RocketMQ's text.
        """
        topic, config = text(command.ext, "topic"), self._config()
        acting = config.support_acting_master
        route = self._table.route_with_acting_masters(topic) if acting else self._table.route(topic)
        if route is None and config.spread_sends and MARK in topic:
            named = self._table.route(topic.partition(MARK)[2])
            route = named_group(named, topic) if named is not None else None
        connection.attributes[_REFUSED], was_refused = route is None, connection.attributes.get(_REFUSED, False)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{_FAQ}"
            raise Refusal(Cause.TOPIC_NOT_EXIST, remark)
        order = self._kv.get(ORDER_TOPIC_CONFIG, topic) if config.order_message_enable else None
        route = _in_zone(route, command.ext)
        is_ours = "waitMillis" in command.ext  # our clients learn of a new leader at once
        if topic == _TEMPLATE and was_refused and command.version >= _TEMPLATE_SINCE:
            connection.attributes[_IS_PRODUCERS] = True
        if config.spread_sends and order is None and not is_ours and self._is_producers(connection, command, topic):
            route = with_send_names(route, for_go=command.language == _GO)
        standard = optional_boolean(command.ext, "acceptStandardJsonOnly") or command.version >= _STANDARD_JSON_SINCE
        body = (standard_json if standard else java_json)(route.to_json(order))
        return Answer({"routeVersion": str(route.version)} if is_ours else None, body)

    def _is_producers(self, connection: Connection, command: Command, topic: str) -> bool:
        """Return whether a client asks for this route again after some time, as producers do and tools hardly ever.

        Known producers are told at once, and clients in Go, none of which shows routes to people.
        """
        if command.language == _GO or _IS_PRODUCERS in connection.attributes:
            return True
        asked: dict[str, float] = connection.attributes.setdefault(_FIRST_ASKED, {})
        now_s = time.monotonic()
        first_s = asked.get(topic, now_s)
        if topic not in asked and len(asked) < _ASKED_MAX:
            asked[topic] = now_s
        return (now_s - first_s) * 1000 >= self._config().spread_sends_after_ms

    def _cluster_info(self, connection: Connection, command: Command) -> Answer:
        brokers = {group.name: group.to_json() for group in self._table.groups}
        info = {"brokerAddrTable": brokers, "clusterAddrTable": self._table.clusters()}
        return Answer(body=java_json(info))

    def _all_topics(self, connection: Connection, command: Command) -> Answer:
        if not self._config().all_topic_list_enable:
            raise Refusal(Cause.SYSTEM_ERROR, "disable")
        return _topic_list(list(self._table.topics))

    def _topics_of_cluster(self, connection: Connection, command: Command) -> Answer:
        self._check_lists()
        return _topic_list(self._table.topics_of_cluster(command.ext.get("cluster", "")))

    def _system_topics(self, connection: Connection, command: Command) -> Answer:
        names = [name for cluster, brokers in self._table.clusters().items() for name in (cluster, *brokers)]
        first = next(iter(self._table.groups), None)
        return _topic_list(names, next(iter(first.addresses.values())) if first else None)

    def _unit_topics(self, connection: Connection, command: Command) -> Answer:
        self._check_lists()
        return _topic_list(self._table.topics.with_flag(lambda flag: bool(flag & UNIT)))

    def _unit_subscription_topics(self, connection: Connection, command: Command) -> Answer:
        self._check_lists()
        return _topic_list(self._table.topics.with_flag(lambda flag: bool(flag & UNIT_SUBSCRIPTION)))

    def _unit_subscription_only_topics(self, connection: Connection, command: Command) -> Answer:
        self._check_lists()
        both = UNIT | UNIT_SUBSCRIPTION
        return _topic_list(self._table.topics.with_flag(lambda flag: flag & both == UNIT_SUBSCRIPTION))

    def _check_lists(self) -> None:
        if not self._config().topic_list_enable:
            raise Refusal(Cause.SYSTEM_ERROR, "disable")


def _in_zone(route: TopicRoute, ext: Mapping[str, str]) -> TopicRoute:
    """Return the part of a route for a client of one zone: that zone's brokers, and those without a leader.

    It may be empty, since such a client must not use the brokers of another zone.
    """
    zone = ext.get("__ZONE_NAME", "")
    if not zone.strip() or ext.get("__ZONE_MODE", "").lower() != "true":
        return route
    led = {group.name for group in route.groups if group.leader is not None or group.name in route.acting}
    kept = [g for g in route.groups if g.name not in led or (g.zone or "").lower() == zone.lower()]
    names = {group.name for group in kept}
    addresses = {address for group in kept for address in group.addresses.values()}
    return replace(
        route,
        groups=tuple(kept),
        queues=tuple(queue for queue in route.queues if queue.broker_name in names),
        filter_servers={a: servers for a, servers in route.filter_servers.items() if a in addresses},
    )


def _topic_list(topics: list[str], broker_address: str | None = None) -> Answer:
    members = {} if broker_address is None else {"brokerAddr": broker_address}
    return Answer(body=dumps(members | {"topicList": topics}))
