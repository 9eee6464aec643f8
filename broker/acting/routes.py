"""Asks nameservers for the members of the own broker name, and for masters of other names."""

import random
import time
from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from broker.identity import BrokerIdentity
from broker.nameservers import OwnNameservers
from broker.state.names import RETRY_PREFIX
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.route import LEADER_ID, BrokerRoute, parse_broker, parse_route

_ASK_S: Final = 1.0
_FRESH_S: Final = 2.0
_TOPICS_MAX: Final = 10_000


class OtherMaster(NamedTuple):
    """A master of another name that takes messages of a topic.

    Attributes:
        address: `host:port` at which it serves clients.
        queue_count: of the topic there; 0: it makes the topic with the first message.
    """

    name: str
    address: str
    queue_count: int


class MemberRoutes:
    """Asks nameservers; answers about topics are kept for two seconds."""

    def __init__(self, nameservers: OwnNameservers, identity: BrokerIdentity) -> None:
        self._nameservers = nameservers
        self._identity = identity
        self._known: dict[str, tuple[float, list[OtherMaster]]] = {}

    async def members(self) -> list[dict[int, str]]:
        """Return the living members of the own broker name by broker id, as told by each nameserver that answers."""
        command = Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext=self._identity.fields)
        return await self._nameservers.all(command, _ASK_S, _parse_members)

    async def masters_of(self, topic: str) -> list[OtherMaster]:
        """Masters of other names that take messages of the topic, in random order; a retry topic is made by each."""
        since, masters = self._known.get(topic, (0.0, []))
        if not since or time.monotonic() - since > _FRESH_S:
            if len(self._known) >= _TOPICS_MAX:
                self._known.clear()
            masters = await (self._all() if topic.startswith(RETRY_PREFIX) else self._with_topic(topic))
            self._known[topic] = time.monotonic(), masters
        return random.sample(masters, len(masters))

    async def _with_topic(self, topic: str) -> list[OtherMaster]:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields)
        route = await self._nameservers.first(command, _ASK_S, partial(parse_route, topic))
        if route is None:
            return []
        counts = Counter(queue.broker for queue in route.write_queues)
        return [
            OtherMaster(name, broker.leader, counts[name])
            for name, broker in route.brokers.items()
            if name != self._identity.name and name in counts and broker.leader is not None
        ]

    async def _all(self) -> list[OtherMaster]:
        command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = await self._nameservers.first(command, _ASK_S, _parse_brokers)
        return [
            OtherMaster(broker.name, broker.addresses[LEADER_ID], 0)
            for broker in brokers or ()
            if broker.name != self._identity.name
            and broker.cluster == self._identity.cluster
            and LEADER_ID in broker.addresses
        ]


def _parse_members(body: bytes) -> dict[int, str]:
    group = load_json(body)["brokerMemberGroup"]
    return {int(number): str(address) for number, address in group["brokerAddrs"].items()}


def _parse_brokers(body: bytes) -> list[BrokerRoute]:
    return [parse_broker(data) for data in load_json(body)["brokerAddrTable"].values()]
