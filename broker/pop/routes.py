"""The queues of a topic on all brokers, as the nameservers know them: assignments cover the whole cluster."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from broker.context import BrokerContext
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import PERM_READ, MessageQueue, parse_route

_FRESH_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 3.0
_TOPICS_MAX: Final = 10_000


class PopRoutes:
    """Asks the nameservers for routes and caches them for five seconds; without any, it knows this broker's queues."""

    def __init__(self, context: BrokerContext) -> None:
        self._nameservers = context.nameservers
        self._identity = context.identity
        self._metadata = context.metadata
        self._known: dict[str, tuple[float, tuple[MessageQueue, ...]]] = {}

    async def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return the readable queues of a topic; None when neither a nameserver nor this broker knows it."""
        known = self._known.get(topic)
        if known is not None and time.monotonic() - known[0] < _FRESH_SECONDS:
            return known[1]
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=fields)
        route = await self._nameservers.first(command, _ASK_SECONDS, partial(parse_route, topic))
        if route is not None:
            return self._remember(topic, route.read_queues)
        return known[1] if known is not None else self._own_queues(topic)

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
        return [self._identity.queue(name, queue_id) for queue_id in range(count)]
