"""What a broker asks of nameservers about its own name, and about masters of other names."""

import random
import time
from typing import Final, NamedTuple

from broker.config import BrokerConfig
from broker.state.names import RETRY_PREFIX
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.route import LEADER_ID, parse_broker, parse_route

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

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._known: dict[str, tuple[float, list[OtherMaster]]] = {}
        self.client: RemotingClient | None = None

    async def members(self) -> list[dict[int, str]]:
        """The living members of the own broker name by broker id, as each nameserver that answers has them."""
        config = self._config
        fields = {"clusterName": config.cluster_name, "brokerName": config.broker_name}
        found = []
        for namesrv in config.namesrv_addrs:
            body = await self._ask(namesrv, Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext=fields))
            try:
                if body is not None:
                    group = load_json(body)["brokerMemberGroup"]
                    found.append({int(number): str(address) for number, address in group["brokerAddrs"].items()})
            except (Refusal, LookupError, ValueError, TypeError, AttributeError):
                continue
        return found

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
        body = await self._ask_any(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields))
        try:
            route = parse_route(topic, body or b"")
        except ValueError:
            return []
        counts: dict[str, int] = {}
        for queue in route.write_queues:
            counts[queue.broker] = counts.get(queue.broker, 0) + 1
        return [
            OtherMaster(name, broker.leader, counts[name])
            for name, broker in route.brokers.items()
            if name != self._config.broker_name and name in counts and broker.leader is not None
        ]

    async def _all(self) -> list[OtherMaster]:
        body = await self._ask_any(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        try:
            table = load_json(body or b"{}")["brokerAddrTable"].values()
            brokers = [parse_broker(data) for data in table]
        except (Refusal, LookupError, ValueError, TypeError, AttributeError):
            return []
        config = self._config
        return [
            OtherMaster(broker.name, broker.addresses[LEADER_ID], 0)
            for broker in brokers
            if broker.name != config.broker_name
            and broker.cluster == config.cluster_name
            and LEADER_ID in broker.addresses
        ]

    async def _ask_any(self, command: Command) -> bytes | None:
        for namesrv in self._config.namesrv_addrs:
            body = await self._ask(namesrv, command)
            if body is not None:
                return body
        return None

    async def _ask(self, namesrv: str, command: Command) -> bytes | None:
        if self.client is None:
            return None
        try:
            answer = await self.client.request(namesrv, Command(command.code, ext=command.ext), _ASK_S)
        except RemotingError:
            return None
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None
