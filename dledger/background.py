"""Slow background work of a Raft node: the commit checkpoint, the scrub of old entries, the repair of damaged ones.

each second   sync the index files, then write the checkpoint          in a thread
each tick     verify some of the entries that were there at the start  on the loop, in slices
each second   ask peers for copies of damaged entries; write them      on the loop, synced in a thread
"""

import asyncio
import logging
import mmap
from collections.abc import Callable
from pathlib import Path

from dledger.errors import EntryFormatError
from dledger.log.commit_checkpoint import CommitCheckpoint, save_checkpoint
from dledger.log.entry_log import EntryLog
from dledger.log.recovery import DamagedEntry
from dledger.peers.wire import CopyRequest, CopyResponse, PeerMessage
from store.errors import DiskFailedError, DiskFullError, StoreError
from store.files.mapped_file import MappedFile

_SCRUB_BYTES = 256 << 10
_COPIES_AT_ONCE = 16

_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves how far the log is committed and durable, so that the next start need not scan the entries before.

    Args:
        directory: the node's Raft directory.
        log: the node's entries.
        commit_index: returns the present commit index.
        on_failed: called on the loop when the disk failed.
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
        """Return the checkpoint that would be written now: it covers only durable entries and durable index units.

        A damaged committed entry is covered, too: a start after a power cut would otherwise take it for a torn write,
        and forget it and all entries behind it. The position stays before it, so that the start finds it again.
        """
        log, blocking = self._log, self._log.integrity.blocking_position
        committed = min(self._commit_index(), log.flushed_index)
        flushed = log.data.flushed_offset
        return CommitCheckpoint(committed, log.last_index, flushed if blocking is None else min(flushed, blocking))

    async def write(self) -> None:
        """Write the checkpoint if it has changed since the last write.

        On a full disk nothing is written; the next call tries again.
        """
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
                _log.warning("the checkpoint is written when the disk has room again: %s", error)
            self._is_full = True
        except StoreError as error:
            self._on_failed(error)
        finally:
            for file in files:
                file.unpin()
            self._is_writing = False

    def _write(self, files: list[MappedFile], checkpoint: CommitCheckpoint) -> None:
        """Write in a thread: the index units first, since recovery trusts the index up to the checkpoint."""
        for file in files:
            try:
                file.sync()
            except OSError as error:
                raise DiskFailedError(file.path, f"sync failed, and is not tried again: {error}") from error
        save_checkpoint(self._directory, checkpoint)


class CopyFetcher:
    """Repairs damaged entries with copies from peers.

    Args:
        log: the entries to repair.
        send: sends a message to a peer.
        on_repaired: called on the loop when a copy has been written in place and is durable.
        on_failed: called on the loop when the disk failed.
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
        """Ask a peer for copies of the first damaged entries."""
        for damage in self._log.integrity.damages[:_COPIES_AT_ONCE]:
            self._send(peer_id, CopyRequest(damage.index, damage.term))

    def on_request(self, peer_id: str, request: CopyRequest) -> None:
        """Send a peer the entry it asks for; an empty answer if this log has no sound one of that index and term."""
        log = self._log
        entry: bytes | memoryview = b""
        if log.first_index <= request.index <= log.last_index and log.term_at(request.index) == request.term:
            span = log.read(request.index, 1)
            entry = b"" if span is None else span.data
        self._send(peer_id, CopyResponse(request.index, request.term, entry))

    def on_response(self, peer_id: str, response: CopyResponse) -> None:
        """Write a peer's copy over the damaged entry and sync it. A copy that does not fit is logged and ignored."""
        if not response.entry or response.index in self._writing:
            return
        damage = next((damage for damage in self._log.integrity.damages if damage.index == response.index), None)
        if damage is None:
            return
        try:
            file = self._log.integrity.write_copy(response.index, response.term, memoryview(response.entry))
        except EntryFormatError as error:
            _log.warning("the copy that peer %s sent cannot be used: %s", peer_id, error)
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
        """Wait until the copies being written are durable."""
        await asyncio.gather(*self._tasks)

    async def _make_durable(self, damage: DamagedEntry, file: MappedFile, peer_id: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, file.sync)
        except OSError as error:
            self._on_failed(DiskFailedError(file.path, f"sync failed, and is not tried again: {error}"))
            return
        finally:
            self._writing.discard(damage.index)
            file.unpin()
        self._log.integrity.clear(damage.index)
        _log.warning("repaired with a copy from peer %s: %s", peer_id, damage)
        self._on_repaired()


class Scrubber:
    """Verifies the CRC of entries that recovery did not read, some of them at each tick."""

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self._is_done = False

    def step(self) -> None:
        """Verify the next piece, and have the kernel read the piece after it."""
        if self._is_done:
            return
        log = self._log
        self._is_done = log.integrity.scrub(log.first_index, _SCRUB_BYTES)
        position = log.integrity.scrubbed_position
        file = None if self._is_done else log.data.file_at(position)
        if file is not None:
            start = (position - file.start_offset) & ~(mmap.PAGESIZE - 1)
            file.buffer.madvise(mmap.MADV_WILLNEED, start, min(_SCRUB_BYTES * 2, file.size_bytes - start))
