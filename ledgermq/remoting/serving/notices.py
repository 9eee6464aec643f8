"""One-way requests by which a server tells brokers of changes: each is sent once, and may be lost.

Brokers also ask from time to time.
"""

import asyncio
import logging
from typing import Final

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError

_LIMIT_S: Final = 3.0
_UNDER_WAY_MAX: Final = 1000
_log: Final = logging.getLogger(__name__)


class Notices:
    """Sends notices; owns its connections."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, address: str, notice: Command, about: str) -> None:
        """Send a notice without waiting; a failure is logged. `about` is the broker name, for the log."""
        if len(self._tasks) >= _UNDER_WAY_MAX:
            _log.warning("%s is not told of %s: too many notices are under way", address, about)
            return
        task = asyncio.get_running_loop().create_task(self._send(address, notice, about))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the notices that are being sent."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _send(self, address: str, notice: Command, about: str) -> None:
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._client.oneway(address, notice)
        except (RemotingError, TimeoutError) as error:
            _log.warning("%s is not told of %s (%s): %s", address, about, request_name(notice.code), error)
