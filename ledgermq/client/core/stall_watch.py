"""Notices a leader that is paused or cut off: its connections stay open, and its requests stay unanswered.

    a request has waited for 0.5 s                       -> ask the nameservers
    another leader is known, and 0.1 s later old requests
    are still unanswered                                 -> cut the connection to the old leader

The requests on that connection then fail at once and are tried at the new leader, long before they time out. A leader
that handed over in good order answers the requests it has taken within that 0.1 s.

It also logs when the event loop was blocked, which delays heartbeats and commits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from ledgermq.client.core.calls import UnderWay
from ledgermq.client.core.routes import Routes
from ledgermq.remoting.client import RemotingClient

_log: Final = logging.getLogger(__name__)

TICK_S: Final = 0.25
SUSPICIOUS_AGE_S: Final = 0.5
HANDOVER_S: Final = 0.1
BLOCKED_S: Final = 1.0


class StallWatch:
    """Checks the calls under way, oldest first: every 0.25 s, and 0.1 s after each change of a leader."""

    def __init__(self, remoting: RemotingClient, routes: Routes, under_way: Mapping[int, UnderWay]) -> None:
        self._remoting = remoting
        self._routes = routes
        self._under_way = under_way
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._due_at = 0.0

    def start(self) -> None:
        """Check every 0.25 s, until `stop`."""
        self._due_at = self._loop.time() + TICK_S
        self._later(TICK_S, self._tick)

    def stop(self) -> None:
        """Check no more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def leader_changed(self) -> None:
        """Check after 0.1 s that no request to a deposed leader is unanswered."""
        self._later(HANDOVER_S, self._cut)

    def _tick(self) -> None:
        late_s = self._loop.time() - self._due_at
        if late_s > BLOCKED_S:
            _log.warning(
                "the event loop was blocked for %.1f s: run blocking code in a thread, or the machine is overloaded",
                late_s,
            )
        self.start()
        for stalled in self._older_than(SUSPICIOUS_AGE_S):
            if self._routes.leader(stalled.broker) in (None, stalled.address):
                self._routes.refresh(stalled.topic)
        self._cut()

    def _cut(self) -> None:
        for stalled in self._older_than(HANDOVER_S):
            if self._routes.leader(stalled.broker) not in (None, stalled.address):
                connection = self._remoting.connected(stalled.address)
                if connection is not None:
                    connection.abort("another node leads, and this one does not answer")

    def _older_than(self, age_s: float) -> list[UnderWay]:
        """Return the oldest call of each address that has waited for `age_s` seconds."""
        latest = self._loop.time() - age_s
        oldest: dict[str, UnderWay] = {}
        for call in self._under_way.values():
            if call.began_at > latest:
                break  # the dict is in the order in which calls began
            oldest.setdefault(call.address, call)
        return list(oldest.values())

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            act()

        timer = self._loop.call_later(delay_s, fire)
        self._timers.add(timer)
