"""Transfers leadership on request; consumer offsets are written to the log first, so that the successor has them.

A private request of `ledgermq cluster transfer`; refused where no other node can lead.
"""

import asyncio
import contextlib
from typing import Final

from broker.role import Role
from broker.state.offsets import ConsumerOffsets
from broker.timers import Spawn
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import ReplicatedLog

TRANSFER_LEADERSHIP: Final = 53001
"""`target`: in Raft a node id, else a broker's id or address; absent: the member with the longest log.

The answer has the `target` chosen.
"""

_DRAIN_SECONDS: Final = 1.0


class TransferRequests:
    """Serves `TRANSFER_LEADERSHIP`."""

    def __init__(self, replicated_log: ReplicatedLog, role: Role, offsets: ConsumerOffsets, spawn: Spawn) -> None:
        self._log = replicated_log
        self._role = role
        self._offsets = offsets
        self._spawn = spawn

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
