"""Transfers leadership on request; consumer offsets are written to the log first, so that the successor has them.

A private request of `ledgermq cluster transfer`; refused where no other node can lead.
"""

import asyncio
import contextlib
from typing import Final

from broker.context import BrokerContext
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal

TRANSFER_LEADERSHIP: Final = 53001
"""`target`: in Raft a node id, else a broker's id or address; absent: the member with the longest log.

The answer has the `target` chosen.
"""

_DRAIN_SECONDS: Final = 1.0


class TransferRequests:
    """Serves `TRANSFER_LEADERSHIP`."""

    def __init__(self, context: BrokerContext) -> None:
        self._log = context.store.log
        self._role = context.role
        self._offsets = context.offsets
        self._spawn = context.spawn

    def transfer(self, connection: Connection, command: Command) -> None:
        """Answer when the transfer has begun; the successor leads some milliseconds later."""
        self._role.check_writable()
        self._spawn(self._transfer(connection, command))

    async def _transfer(self, connection: Connection, command: Command) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._offsets.drain()
        try:
            chosen = self._log.transfer(command.ext.get("target"))
        except Refusal as refusal:
            connection.refuse(command, refusal)
        else:
            connection.respond(command, ResponseCode.SUCCESS, {"target": chosen})
