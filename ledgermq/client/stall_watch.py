"""A leader that is paused or cut off keeps its connections open: it is noticed by requests that stay unanswered.

Every quarter of a second: is a request older than half a second? Then the nameservers are asked. Once they name
another leader, the old one's connection is cut: its requests fail at once, and are tried at the new leader, long
before their own time-outs.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from ledgermq.client.calls import UnderWay
from ledgermq.client.routes import Routes
from ledgermq.remoting.client import RemotingClient

TICK_S: Final = 0.25
SUSPICIOUS_AGE_S: Final = 0.5


class StallWatch:
    """Looks at the calls under way, oldest first."""

    def __init__(self, remoting: RemotingClient, routes: Routes, under_way: Mapping[int, UnderWay]) -> None:
        self._remoting = remoting
        self._routes = routes
        self._under_way = under_way
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look now and then, until `stop`."""
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        for stalled in self._stalled_by_address().values():
            if self._routes.leader(stalled.broker) in (None, stalled.address):
                self._routes.refresh(stalled.topic)
            elif (connection := self._remoting.connected(stalled.address)) is not None:
                connection.abort("another node leads, and this one does not answer")

    def _stalled_by_address(self) -> dict[str, UnderWay]:
        newest_suspicious = self._loop.time() - SUSPICIOUS_AGE_S
        stalled: dict[str, UnderWay] = {}
        for call in self._under_way.values():
            if call.began_at > newest_suspicious:
                break  # in the order in which they began
            stalled.setdefault(call.address, call)
        return stalled
