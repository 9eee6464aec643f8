"""Writes the replicated tables to `config/` now and then, in a thread, so that a restart replays little."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker.state.files import StateWriter
from broker.state.tables import ReplicatedState
from store.errors import StoreError

log = logging.getLogger(__name__)


class StateSaver:
    """Saves a state when it has changed since the last time.

    Attributes:
        saved_offset: `applied_offset` of the tables on disk.
        failures: saves that the disk refused; each is tried again at the next round.
    """

    def __init__(self, state: ReplicatedState, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._state = state
        self._directory = directory
        self._writer = StateWriter(directory)
        self._loop = loop
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-state")
        self._running: asyncio.Future[None] | None = None
        self.saved_offset = state.applied_offset
        self.failures = 0

    def save_soon(self) -> None:
        """Begin to save what is new, unless a save is under way."""
        if self._running is None and self._state.applied_offset != self.saved_offset:
            self._running = asyncio.ensure_future(self._save(), loop=self._loop)

    async def close(self) -> None:
        """Save what is new, and stop the thread."""
        if self._running is not None:
            await self._running
        if self._state.applied_offset != self.saved_offset:
            await self._save()
        self._executor.shutdown()

    async def _save(self) -> None:
        offset = self._state.applied_offset
        try:
            await self._loop.run_in_executor(self._executor, self._writer.write, self._state.copy())
            self.saved_offset = offset
        except (OSError, StoreError) as error:
            self.failures += 1
            log.error("topics, groups and offsets not saved to %s, the log has them: %s", self._directory, error)
        finally:
            self._running = None
