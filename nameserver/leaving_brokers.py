"""Removes brokers that leave in batches: all of one turn of the loop in one pass over the tables.

    104, closed connections -> queue -> end of the turn, or the next request that reads or changes routes -> removed

So every later answer is as if each of them had been removed at once.

Source: apache/rocketmq `namesrv/.../routeinfo/BatchUnregistrationService.java` (5.3).
"""

import asyncio
from collections.abc import Callable

from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from nameserver.core.model import BrokerMember
from nameserver.core.routes import RouteTable


class LeavingBrokers:
    """The queue of brokers that leave.

    Args:
        capacity: largest number of requests 104 that may wait. Closed connections always find room: the server bounds
            them.
        gone: called with the members that a request, or (second argument true) a closed connection removed.
    """

    def __init__(
        self,
        table: RouteTable,
        capacity: Callable[[], int],
        now_ms: Callable[[], int],
        gone: Callable[[list[BrokerMember], bool], None],
    ) -> None:
        self._table = table
        self._capacity = capacity
        self._now_ms = now_ms
        self._gone = gone
        self._leaving: dict[tuple[str, str, str], None] = {}
        self._closed: set[Connection] = set()
        self._is_scheduled = False

    def unregister(self, cluster: str, broker_name: str, address: str) -> None:
        """Remove a broker soon.

        Raises:
            Refusal: SYSTEM_ERROR, too many wait.
        """
        if len(self._leaving) >= self._capacity():
            raise Refusal(
                Cause.SYSTEM_ERROR, f"{len(self._leaving)} brokers already wait to be unregistered: try again"
            )
        self._leaving[cluster, broker_name, address] = None
        self._schedule()

    def closed(self, connection: Connection) -> None:
        """Remove soon the brokers that registered on this connection."""
        if self._table.has_members:
            self._closed.add(connection)
            self._schedule()

    def settle(self) -> None:
        """Remove the brokers that wait."""
        if self._leaving:
            leaving, self._leaving = self._leaving, {}
            self._gone(self._table.unregister(leaving, self._now_ms()), False)
        if self._closed:
            closed, self._closed = self._closed, set()
            self._gone(self._table.connections_closed(closed, self._now_ms()), True)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self.settle()
