"""Saves the replicated tables to `config/`, in a thread, so that a restart replays little of the log.

    save_soon: copy of the tables --wait until the log is durable up to their applied offset--> write
    install:   tables of a leader ------------------------------------------------------------> write, at once

The files must never be ahead of the durable log: after a power cut new records would get the positions that they name.
One thread writes one set of tables after the other, so that older tables never replace newer ones.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker.state.files import StateWriter, load_state
from broker.state.tables import ReplicatedState
from store.errors import StoreError

log = logging.getLogger(__name__)


class StateSaver:
    """Saves a state when it has changed since the last time.

    Args:
        flushed_offset: physical offset up to which the log is durable.

    Attributes:
        saved_offset: `applied_offset` of the tables on disk.
        failures: saves that the disk refused; each is tried again at the next round. The first of a row is logged.
    """

    def __init__(
        self,
        state: ReplicatedState,
        directory: Path,
        loop: asyncio.AbstractEventLoop,
        flushed_offset: Callable[[], int],
    ) -> None:
        self._state = state
        self._directory = directory
        self._writer = StateWriter(directory)
        self._loop = loop
        self._flushed_offset = flushed_offset
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-state")
        self._waiting: ReplicatedState | None = None
        self._running: asyncio.Future[None] | None = None
        self.saved_offset = state.applied_offset
        self.failures = 0
        self._is_failing = False

    def save_soon(self) -> None:
        """Copy the tables if they changed; the copy is written when the log is durable up to it. One copy at a time."""
        if self._waiting is None and self._running is None and self._state.applied_offset != self.saved_offset:
            self._waiting = self._state.copy()
        self.write_durable()

    def write_durable(self) -> None:
        """Begin to write the waiting copy if the log is durable up to it; to be called after each flush."""
        copy = self._waiting
        if copy is not None and self._running is None and copy.applied_offset <= self._flushed_offset():
            self._waiting = None
            self._running = asyncio.ensure_future(self._save(copy), loop=self._loop)

    def install(self) -> None:
        """Write the tables that were installed from a leader; durable on return. Blocks on the disk.

        Raises:
            OSError, DiskFailedError: the disk refused; the files are of the tables before, or some of these.
        """
        self._waiting = None
        self._executor.submit(self._writer.rewrite, self._state).result()
        self.saved_offset = self._state.applied_offset

    def write_mark(self) -> None:
        """Write the mark of the tables as they are now, not the tables; raises as `install`. Blocks."""
        self._executor.submit(self._writer.write_mark, self._state).result()

    def saved(self) -> ReplicatedState:
        """Load the tables from disk, after a running save; a waiting copy is dropped. Blocks.

        Raises:
            StoreFormatError: as `load_state`.
        """
        self._waiting = None
        return self._executor.submit(load_state, self._directory).result()

    def cut(self) -> None:
        """Write tables of a lower applied offset than those on disk; durable on return. Blocks on the disk.

        The mark is written first, since tables may be newer than the mark but not older. Files are written twice, so
        that the `.bak` files are new, too.
        """
        self._waiting = None
        self.write_mark()
        self.install()
        self.install()

    async def close(self) -> None:
        """Save changes, and stop the thread; to be called after the last flush of the log."""
        self._waiting = None
        if self._running is not None:
            await self._running
        if self.saved_offset != self._state.applied_offset <= self._flushed_offset():
            await self._save(self._state.copy())
        self._executor.shutdown()

    async def _save(self, copy: ReplicatedState) -> None:
        before = self.saved_offset
        try:
            await self._loop.run_in_executor(self._executor, self._writer.write, copy)
            if self.saved_offset == before:  # otherwise newer tables were installed meanwhile
                self.saved_offset = copy.applied_offset
            if self._is_failing:
                log.info("topics, groups and offsets are saved again")
            self._is_failing = False
        except (OSError, StoreError) as error:
            self.failures += 1
            if not self._is_failing:
                log.error(
                    "topics, groups and offsets cannot be saved to %s, but are in the log: %s", self._directory, error
                )
            self._is_failing = True
        finally:
            self._running = None
