"""Slow work of a Raft node that may wait: the checkpoint, the scrub of old entries, copies for damaged ones.

each second   index files synced, then `checkpoint` written         in a thread
each tick     a little of what was there at start is verified       on the loop, in slices
each second   damaged entries asked of the peers, written in place  synced in a thread
"""

import asyncio
import logging
import mmap
from collections.abc import Callable
from pathlib import Path

from dledger.errors import EntryFormatError
from dledger.log.commit_checkpoint import CommitCheckpoint, save_checkpoint
from dledger.log.entry_log import EntryLog
from dledger.log.recovery import Damage
from dledger.peers.wire import CopyRequest, CopyResponse, PeerMessage
from store.errors import DiskFailedError, DiskFullError, StoreError
from store.files.mapped_file import MappedFile

_SCRUB_BYTES = 256 << 10
_COPIES_AT_ONCE = 16

_log = logging.getLogger(__name__)


class Checkpointer:
    """Writes down how far the log is committed and durable.

    Args:
        directory: the node's Raft directory.
        log: its entries.
        commit_index: the present one.
        on_failed: called on the loop when the disk refuses.
    """

    def __init__(
        self, directory: Path, log: EntryLog, commit_index: Callable[[], int], on_failed: Callable[[StoreError], None]
    ) -> None:
        self._directory = directory
        self._log = log
        self._commit_index = commit_index
        self._on_failed = on_failed
        self._written: CommitCheckpoint | None = None
        self._is_writing = False
        self._is_full = False

    def picture(self) -> CommitCheckpoint:
        """What would be written now: only what is durable counts."""
        log = self._log
        committed = min(self._commit_index(), log.durable_index)
        return CommitCheckpoint(committed, log.last_index, log.data.flushed_offset)

    async def write(self) -> None:
        """Write it if something changed since the last time. Without room nothing is written: the next call tries."""
        checkpoint = self.picture()
        if self._is_writing or checkpoint == self._written:
            return
        self._is_writing = True
        files = self._log.units.unsynced()
        for file in files:
            file.pin()
        generation = self._log.generation
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._write, files, checkpoint)
            if generation == self._log.generation:
                self._log.units.synced_up_to(checkpoint.end_index)
            self._written, self._is_full = checkpoint, False
        except DiskFullError as error:
            if not self._is_full:
                _log.warning("the checkpoint waits for room: %s", error)
            self._is_full = True
        except StoreError as error:
            self._on_failed(error)
        finally:
            for file in files:
                file.unpin()
            self._is_writing = False

    def _write(self, files: list[MappedFile], checkpoint: CommitCheckpoint) -> None:
        """In a thread: the index first, since recovery trusts it up to the checkpoint."""
        for file in files:
            try:
                file.sync()
            except OSError as error:
                raise DiskFailedError(file.path, f"sync failed, and is not tried again: {error}") from error
        save_checkpoint(self._directory, checkpoint)


class CopyFetcher:
    """Repairs damaged entries with peers' copies.

    Args:
        log: whose entries.
        send: to a peer.
        on_repaired: a copy lies in place, durable.
        on_failed: called on the loop when the disk refuses.
    """

    def __init__(
        self,
        log: EntryLog,
        send: Callable[[str, PeerMessage], None],
        on_repaired: Callable[[], None],
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._log = log
        self._send = send
        self._on_repaired = on_repaired
        self._on_failed = on_failed
        self._writing: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, peer_id: str) -> None:
        """Ask a peer for the first damaged entries."""
        for damage in self._log.care.damages[:_COPIES_AT_ONCE]:
            self._send(peer_id, CopyRequest(damage.index, damage.term))

    def on_request(self, peer_id: str, request: CopyRequest) -> None:
        """Give a peer what this log holds, if it is of the same term and whole."""
        log = self._log
        entry: bytes | memoryview = b""
        if log.first_index <= request.index <= log.last_index and log.term_at(request.index) == request.term:
            span = log.read(request.index, 1)
            entry = b"" if span is None else span.data
        self._send(peer_id, CopyResponse(request.index, request.term, entry))

    def on_response(self, peer_id: str, response: CopyResponse) -> None:
        """Put a copy in place."""
        if not response.entry or response.index in self._writing:
            return
        damage = next((damage for damage in self._log.care.damages if damage.index == response.index), None)
        if damage is None:
            return
        try:
            file = self._log.care.write_copy(response.index, response.term, memoryview(response.entry))
        except EntryFormatError as error:
            _log.warning("copy from %s: %s", peer_id, error)
            return
        except StoreError as error:
            self._on_failed(error)
            return
        self._writing.add(damage.index)
        file.pin()
        task = asyncio.get_running_loop().create_task(self._make_durable(damage, file, peer_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for the copies under way."""
        await asyncio.gather(*self._tasks)

    async def _make_durable(self, damage: Damage, file: MappedFile, peer_id: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, file.sync)
        except OSError as error:
            self._on_failed(DiskFailedError(file.path, f"sync failed, and is not tried again: {error}"))
            return
        finally:
            self._writing.discard(damage.index)
            file.unpin()
        self._log.care.clear(damage.index)
        _log.warning("repaired with the copy of %s: %s", peer_id, damage)
        self._on_repaired()


class Scrubber:
    """Verifies, a little at each tick, the entries that were there at start and that recovery took on trust."""

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self._is_done = False

    def step(self) -> None:
        """Verify the next piece; pages of the piece after it are asked of the disk meanwhile."""
        if self._is_done:
            return
        log = self._log
        self._is_done = log.care.scrub(log.first_index, _SCRUB_BYTES)
        position = log.care.scrubbed_position
        file = None if self._is_done else log.data.file_at(position)
        if file is not None:
            start = (position - file.start_offset) & ~(mmap.PAGESIZE - 1)
            file.buffer.madvise(mmap.MADV_WILLNEED, start, min(_SCRUB_BYTES * 2, file.size_bytes - start))
