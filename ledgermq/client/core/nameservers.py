"""Requests to the nameservers. They share nothing: each may know a route, be down, or lag behind.

One nameserver is asked as long as it answers; the next replaces it when it does not, or after `distrust`, when its
routes turned out to be wrong. LedgerMQ's nameserver can hold a request until the route changes (`waitMillis`,
`knownVersion`, answered with `routeVersion`); others answer at once and without a version.

Source: apache/rocketmq `client/.../impl/MQClientAPIImpl.java` (getTopicRouteInfoFromNameServer).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgermq.client.core.answers import ask
from ledgermq.client.errors import LedgerMQError, NoRouteError, UndecodableError
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import TopicRoute, parse_route

NEVER_SEEN = "-1"  # no route has this version, so nameservers answer at once
NO_ROUTE = "0"
ANSWER_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_OF_MANY_S = 1.0


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The answer of one nameserver about a topic.

    Attributes:
        route: the route.
        address: `host:port` of the nameserver.
        version: of the route at this nameserver; None when it cannot hold a request until the route changes.
    """

    route: TopicRoute
    address: str
    version: str | None


class Nameservers:
    """Sends requests to the nameserver that answered last; there must be at least one address (`host:port`)."""

    def __init__(self, remoting: RemotingClient, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._current = 0
        self._timeout_s = ANSWER_TIMEOUT_S if len(addresses) == 1 else ANSWER_TIMEOUT_OF_MANY_S

    def distrust(self) -> None:
        """Ask the next one first from now on."""
        self._current = (self._current + 1) % len(self.addresses)

    async def request(
        self, code: int, ext: dict[str, str], is_enough: Callable[[Command], bool] = lambda _: True
    ) -> Command:
        """Return the first successful answer that `is_enough`, or else the last successful one; each is asked once.

        Raises:
            LedgerMQError: there was none; the error of the last nameserver asked.
        """
        answer: Command | None = None
        failure: LedgerMQError | None = None
        for number in self._order():
            try:
                answer = await ask(self._remoting, self.addresses[number], Command(code, ext=ext), self._timeout_s)
                if is_enough(answer):
                    self._current = number
                    return answer
            except LedgerMQError as error:
                failure = error
        if answer is not None:
            return answer
        assert failure is not None, "there is at least one nameserver"
        raise failure

    async def route(self, topic: str) -> RouteAnswer:
        """Return the route of a topic, from the first nameserver that knows it.

        Raises:
            NoRouteError: none knows it; lists the error of each.
        """
        failures: dict[str, LedgerMQError] = {}
        for number in self._order():
            address = self.addresses[number]
            try:
                answer = await self._ask(address, topic, NEVER_SEEN, 0.001)
            except LedgerMQError as error:
                failures[address] = error
            else:
                self._current = number
                return answer
        raise NoRouteError(topic, failures)

    async def next_route(self, known: RouteAnswer, wait_s: float) -> RouteAnswer:
        """Return the route once it differs from the known one, or after `wait_s` seconds; from the same nameserver.

        Raises:
            UnreachableError, RefusedError: it does not answer, or does not know the topic any more.
        """
        return await self._ask(known.address, known.route.topic, known.version or NEVER_SEEN, wait_s)

    async def first_route(self, topic: str, wait_s: float) -> RouteAnswer:
        """Return the route of a topic that was unknown until now, once it is known.

        Raises:
            UnreachableError, RefusedError: unknown for `wait_s` seconds, or the nameserver does not hold requests.
        """
        return await self._ask(self.addresses[self._current], topic, NO_ROUTE, wait_s)

    def _order(self) -> Sequence[int]:
        """Return all nameservers, beginning with the current one, which others may change meanwhile."""
        return (*range(self._current, len(self.addresses)), *range(self._current))

    async def _ask(self, address: str, topic: str, version: str, wait_s: float) -> RouteAnswer:
        ext = {
            "topic": topic,
            "acceptStandardJsonOnly": "true",
            "knownVersion": version,
            "waitMillis": str(max(1, int(wait_s * 1000))),
        }
        timeout_s = self._timeout_s if version == NEVER_SEEN else wait_s + self._timeout_s
        question = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=ext)
        answer = await ask(self._remoting, address, question, timeout_s)
        try:
            route = parse_route(topic, answer.body)
        except ValueError as error:
            raise UndecodableError(f"{address}: {error}") from error
        return RouteAnswer(route, address, answer.ext.get("routeVersion"))
