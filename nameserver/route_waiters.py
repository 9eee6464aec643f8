"""Route requests that wait: held until the topic's route is another than the client knows, or their time is up."""

import asyncio
from collections.abc import Callable

from ledgermq.remoting.command import Command
from ledgermq.remoting.connection import Connection


class RouteWaiters:
    """The held requests of one nameserver.

    Args:
        changed: whether the route a held request asks for is another than the one it knows.
        answer: answers a request now.
    """

    def __init__(self, changed: Callable[[Command], bool], answer: Callable[[Connection, Command], None]) -> None:
        self._changed = changed
        self._answer = answer
        self._held: dict[tuple[Connection, int], tuple[Command, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, connection: Connection, command: Command, wait_s: float) -> None:
        """Answer later: at a change, or in `wait_s`. A second request of the same number answers the first one."""
        key = (connection, command.opaque)
        self._release(key)
        timer = asyncio.get_running_loop().call_later(wait_s, self._release, key)
        self._held[key] = (command, timer)

    def wake(self) -> None:
        """Routes have changed: answer those that waited for it."""
        for key in [key for key, (command, _) in self._held.items() if self._changed(command)]:
            self._release(key)

    def forget(self, connection: Connection) -> None:
        """The connection is closed: its requests need no answer."""
        for key in [key for key in self._held if key[0] is connection]:
            self._held.pop(key)[1].cancel()

    def release_all(self) -> None:
        """Answer everything now: the nameserver stops."""
        for key in list(self._held):
            self._release(key)

    def _release(self, key: tuple[Connection, int]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            command, timer = held
            timer.cancel()
            self._answer(key[0], command)
