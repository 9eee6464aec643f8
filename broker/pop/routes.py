"""The queues of a topic on all brokers, as the nameservers know them: assignments cover the whole cluster."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from broker.config import BrokerConfig
from broker.state.metadata import Metadata
from broker.state.settings import PERM_READ
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.route import MessageQueue, parse_route

log = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 3.0
_TOPICS_MAX: Final = 10_000


class PopRoutes:
    """Asks the nameservers for routes and caches them for five seconds.

    Attributes:
        client: for requests to nameservers; without one, only this broker's queues are known.
    """

    def __init__(self, config: BrokerConfig, metadata: Metadata) -> None:
        self._config = config
        self._metadata = metadata
        self._known: dict[str, tuple[float, tuple[MessageQueue, ...]]] = {}
        self.client: RemotingClient | None = None

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The readable queues of a topic; None when neither a nameserver nor this broker knows it."""
        known = self._known.get(topic)
        if known is not None and time.monotonic() - known[0] < _FRESH_SECONDS:
            return known[1]
        for address in self._config.namesrv_addrs if self.client is not None else ():
            queues = await self._ask(self.client, address, topic)
            if queues is not None:
                return self._remember(topic, queues)
        return known[1] if known is not None else self._own_queues(topic)

    async def _ask(self, client: RemotingClient | None, address: str, topic: str) -> tuple[MessageQueue, ...] | None:
        if client is None:
            return None
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = await client.request(
                address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields), _ASK_SECONDS
            )
            return parse_route(topic, answer.body).read_queues if answer.code == ResponseCode.SUCCESS else None
        except (RemotingError, ValueError) as error:
            log.warning("nameserver %s did not return a route of topic %s: %s", address, topic, error)
            return None

    def _remember(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        while len(self._known) >= _TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = time.monotonic(), queues
        return queues

    def _own_queues(self, name: str) -> list[MessageQueue] | None:
        topic = self._metadata.topic(name)
        if topic is None:
            return None
        count = topic.read_queues if topic.perm & PERM_READ else 0
        return [MessageQueue(name, self._config.broker_name, queue_id) for queue_id in range(count)]
