"""A broker's connections to the controllers, as far as the shipping `Controllers` uses those of a `RemotingClient`."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from chaos.elections.controllers import SimControllers
from chaos.elections.network import Network
from chaos.sim.stack.loop import SimLoop
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import ConnectError, RequestTimeoutError

_LIMIT_S: Final = 0.5
"""Longest wait for an answer: shorter than the product's, since faults follow each other faster here."""


class SimConnections:
    """The connections of one process.

    Args:
        name: of the broker.
        arrive: runs an event in the process: now, after its pause, or never if it has ended.
    """

    def __init__(
        self,
        network: Network,
        controllers: SimControllers,
        name: str,
        loop: SimLoop,
        arrive: Callable[[Callable[[], object]], None],
    ) -> None:
        self._network = network
        self._controllers = controllers
        self._name = name
        self._loop = loop
        self._arrive = arrive

    async def request(self, address: str, command: Command, timeout_s: float) -> Command:
        """Send a request to a controller; return its answer. Raises as `RemotingClient.request`."""
        if not self._network.reaches(self._name, address):
            raise ConnectError(address, "cut off")
        answered: asyncio.Future[Command] = self._loop.create_future()

        def settle(answer: Command) -> None:
            if not answered.done():
                answered.set_result(answer)

        def answer(given: Command) -> None:
            self._network.send(address, self._name, partial(self._arrive, partial(settle, given)))

        ask = partial(self._controllers.ask, address, self, command, answer)
        self._network.send(self._name, address, ask)
        limit_s = min(timeout_s, _LIMIT_S)
        try:
            async with asyncio.timeout(limit_s):
                return await answered
        except TimeoutError:
            raise RequestTimeoutError(address, command.name, limit_s) from None

    def close(self) -> None:
        """Close all connections, as the end of the process does."""
        for address in self._controllers.names:
            self._network.send(self._name, address, partial(self._controllers.closed, address, self))
