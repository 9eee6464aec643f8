"""Processes without a disk: users' programs, and nameservers. They end only when they are killed or told to end."""

import asyncio
from collections.abc import Callable
from typing import Any

from chaos.sim.stack.loop import SimLoop
from chaos.sim.stack.sockets import Sockets


class Diskless:
    """One such process.

    Attributes:
        name: for the trace.
        loop: its event loop.
    """

    boot_id = 0

    def __init__(self, cluster: Any, sockets: Sockets, name: str) -> None:
        self.name = name
        self.is_gone = False
        self._cluster = cluster
        self._network = sockets
        self._backlog: list[Callable[[], None]] | None = None
        clock = cluster.clock
        self.loop = SimLoop(
            clock, lambda: clock.now_us, 1.0, self.has, self._at_once, lambda: False, lambda: self.is_gone
        )
        self.loop.dial = lambda factory, port: sockets.dial(self, factory, port)

    def has(self, what: str, event: Callable[[], None]) -> None:
        """Run an event in the process: now, after its pause, or never.

        Raises:
            SafetyViolation: an answer was wrong.
        """
        if self._backlog is not None:
            self._backlog.append(lambda: self.has(what, event))
        elif not self.is_gone:
            self.loop.run_event(event)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        self._backlog = self._backlog or []

    def resume(self) -> None:
        """Continue the process as SIGCONT does, if it was paused."""
        backlog, self._backlog = self._backlog or [], None
        for event in backlog:
            event()

    def kill(self) -> None:
        """End the process as SIGKILL does; its connections are closed."""
        self.is_gone = True
        self._network.ended(self)
        with self.loop.running():  # for what cleans up as it ends
            self.loop.stop()

    def _at_once(self, _executor: Any, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        done = self.loop.create_future()
        done.set_result(work())
        return done
