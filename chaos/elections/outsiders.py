"""Processes that ask the controllers and are no brokers of the cluster: a copy of a store, an administrator."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from chaos.elections.connections import SimConnections
from chaos.elections.controllers import SimControllers
from chaos.elections.network import SILENCE_MS, Network
from chaos.elections.quorum import NAME
from ha.elected.controllers import Controllers, NoControllerError
from ha.errors import HaProtocolError
from ledgermq.remoting.codec.codes import RequestCode

_RETRY_S: Final = 0.1


class Outsider:
    """One process, which runs until `stop`."""

    def __init__(self, network: Network, controllers: SimControllers, name: str) -> None:
        self._network = network
        self._name = name
        self._loop = network.loop(network.rate(), self._run)
        connections = SimConnections(network, controllers, name, self._loop, self._run)
        self._controllers = Controllers(controllers.names, cast(Any, connections), "c", NAME)

    def stop(self) -> None:
        """End the process."""
        self._run(self._loop.stop)

    def _run(self, event: Callable[[], object]) -> None:
        self._loop.run_event(event)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.create_task(work)


class CopiedStore(Outsider):
    """A second process with the id of a broker, started from a copy of its store: the controllers must refuse it."""

    def __init__(self, network: Network, controllers: SimControllers, broker_id: int) -> None:
        super().__init__(network, controllers, f"copy of b{broker_id}")
        self._broker_id = broker_id
        self._spawn(self._register())
        for name in controllers.names:
            self._spawn(self._beat(name))

    async def _register(self) -> None:
        while True:
            try:
                await self._controllers.register(self._broker_id, self._name)
                self._network.broken(f"a {self._name} is registered")
            except (NoControllerError, HaProtocolError):
                await asyncio.sleep(_RETRY_S)

    async def _beat(self, name: str) -> None:
        fields = {"brokerId": self._broker_id, "brokerAddr": self._name, "heartbeatTimeoutMills": SILENCE_MS}
        while True:
            if await self._controllers.beat(name, fields) is not None:
                self._network.broken(f"{name} takes a heartbeat of a {self._name}")
            await asyncio.sleep(_RETRY_S)


class ElectionAdministrator(Outsider):
    """Asks for the election of a broker, as `mqadmin electMaster` does."""

    def __init__(self, network: Network, controllers: SimControllers, broker_id: int) -> None:
        super().__init__(network, controllers, "administrator")
        self._spawn(self._elect(broker_id))

    async def _elect(self, broker_id: int) -> None:
        fields = {"brokerId": broker_id, "designateElect": "true"}
        await self._controllers.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)
