"""The plan of most calls: one fixed request to whoever leads a broker name."""

from ledgermq.client.core.calls import SUCCESS, Target
from ledgermq.client.core.routes import Routes
from ledgermq.remoting.codec.command import Command


class LeaderPlan:
    """A fixed request to whoever leads one broker name.

    Args:
        topic: whose route names the leaders.
        broker: broker name.
        code: request code.
        ext: header fields.
        accepted: response codes that count as an answer.
        body: of the request.
    """

    __slots__ = ("_body", "_broker", "_code", "_ext", "_routes", "accepted", "topic")

    def __init__(
        self,
        routes: Routes,
        topic: str,
        broker: str,
        code: int,
        ext: dict[str, str],
        accepted: frozenset[int] = SUCCESS,
        body: bytes = b"",
    ) -> None:
        self.topic = topic
        self.accepted = accepted
        self._routes = routes
        self._broker = broker
        self._code = code
        self._ext = ext
        self._body = body

    def choose(self, failed_broker: str | None) -> Target | None:
        """The leader as known now."""
        self._routes.route(self.topic)  # follows it
        address = self._routes.leader(self._broker)
        return None if address is None else Target(self._broker, -1, address)

    def command(self, target: Target) -> Command:
        return Command(self._code, ext=self._ext, body=self._body)

    def describe(self) -> str:
        return f"{Command(self._code).name} of topic {self.topic!r} at broker {self._broker}"
