"""Mapped file queue: files of one size that together hold one log.

    start_offset   0                 size              2 * size
                   |==== file 0 =====|==== file 1 =====|==== file 2 ===......|.... made ahead ....|
                   min_offset                                  max_offset ^

The queue knows offsets, not formats: the owner fills the end of a file before `roll`, and finds the end of the last
record. `generation` counts the cuts (`truncate_to`, `reset_to`), so that a flush that began before one is not believed
after it.

Source: apache/rocketmq `store/.../MappedFileQueue.java` (5.3.3).
"""

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from store.directory.ownership import ensure_writable
from store.errors import DiskFailedError, RecordUnavailableError
from store.files.allocator import FileAllocator
from store.files.deleted_files import DeletedFiles
from store.files.disk import file_name, sync_directory
from store.files.folders import open_folder
from store.files.log_files import find_log_files
from store.files.log_span import LogSpan, Read
from store.files.mapped_file import CHUNK_BYTES, CHUNK_SHIFT, MappedFile
from store.files.mapping_limit import Mappings

_REWRITE_BYTES = 1 << 20
_NOTHING: Final = (0, memoryview(b""))


class MappedFileQueue:
    """All files of one log. Owned by one thread.

    Args:
        directory: made when missing.
        file_size: bytes of each file.
        allocator: makes the next files ahead; without one, files are made when needed.
        mappings: how many files may be mapped at once.
        deleted: takes care of deleted files that readers still use.
        ahead_max: 1 or 2 files ahead of the one being written (Java's DLedger does not start on more than one).

    Attributes:
        files: in order, without gaps; the last one is being written.
        flushed_offset: everything below is durable. Moved by the flusher and by recovery.
        generation: number of cuts so far.
        placed: offset and bytes of the batch that this node has placed last, if it was not cut since.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        allocator: FileAllocator | None = None,
        *,
        mappings: Mappings | None = None,
        deleted: DeletedFiles | None = None,
        ahead_max: int = 2,
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.flushed_offset = 0
        self.generation = 0
        self.placed: tuple[int, memoryview] = _NOTHING
        self._allocator = allocator
        self._mappings = mappings if mappings is not None else Mappings()
        self._deleted = deleted if deleted is not None else DeletedFiles()
        self._ahead_max = ahead_max
        self._has_grown = False
        self._committed: int | None = None
        self._spares: list[MappedFile] = []
        self._start_offset = 0  # of the first file, while there is none
        open_folder(directory)

    def load(self) -> None:
        """Open what the directory holds; every file counts as full and flushed until recovery cuts the tail.

        An empty last file and files that were made ahead behind a gap (all zeros where a log would begin) are removed.

        Raises:
            StoreFormatError: a file with another name or length, or a gap between files; nothing was changed.
            DiskFailedError: the directory is read-only.
        """
        ensure_writable(self.directory)
        paths, leftovers = find_log_files(self.directory, self.file_size)
        for path in leftovers:
            path.unlink()
        if leftovers or paths:
            sync_directory(self.directory)  # whoever made the last file may have been killed before this
        for path in paths:
            file = MappedFile(path, int(path.name), self.file_size)
            file.write_position = file.flush_position = self.file_size
            self._join(file)
        self.flushed_offset = self.max_offset

    @property
    def min_offset(self) -> int:
        """First byte kept."""
        return self.files[0].start_offset if self.files else self._start_offset

    @property
    def max_offset(self) -> int:
        """Next byte to write."""
        if not self.files:
            return self._start_offset
        last = self.files[-1]
        return last.start_offset + last.write_position

    @property
    def committed_offset(self) -> int:
        """End of the bytes that are in the files, and not only in the transient pool."""
        return self.max_offset if self._committed is None else self._committed

    def track_commits(self) -> None:
        """Make `committed_offset` the offset of the last `note_committed` from now on."""
        self._committed = self.max_offset

    def note_committed(self, offset: int) -> None:
        """Note that all bytes before `offset` are in the files."""
        self._committed = offset

    def last(self) -> MappedFile | None:
        """Return the file being written; None without files."""
        return self.files[-1] if self.files else None

    def file_at(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, written or not; None outside the queue."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].start_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Written bytes without a copy; in memory when this returns.

        Raises:
            RecordUnavailableError: not inside one file, or not written.
            DiskReadError: the disk cannot read them.
        """
        files = self.files
        if files:
            index, position = divmod(offset - files[0].start_offset, self.file_size)
            if 0 <= index < len(files):
                file = files[index]
                end = position + size_bytes
                if end <= file.write_position:
                    if size_bytes > CHUNK_BYTES or not file.known[position >> CHUNK_SHIFT]:
                        file.ensure_readable(position, end)
                    return file.mapped[position:end]
        raise RecordUnavailableError(offset, size_bytes, self.min_offset, self.max_offset)

    def fresh_slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return and raise as `slice`; the batch placed last is read without the page faults of its mapping."""
        start, data = self.placed
        if start <= offset and offset + size_bytes <= start + len(data):
            return data[offset - start : offset - start + size_bytes]
        return self.slice(offset, size_bytes)

    def reader(self, start: int, end: int, slow: Read) -> Read:
        """Return a faster `slice`, for a run of reads with nothing else in between: it remembers the last file.

        Args:
            start: earlier offsets are read by `slow`.
            end: bytes that end behind it are read by `slow`.
            slow: also makes the first read of each file.
        """
        view, base, least, limit = memoryview(b""), 0, 0, 0
        known: bytes | bytearray = b""

        def read(offset: int, size_bytes: int) -> memoryview:
            nonlocal view, known, base, least, limit
            position = offset - base
            stop = position + size_bytes
            if least <= position < stop <= limit and size_bytes <= CHUNK_BYTES and known[position >> CHUNK_SHIFT]:
                return view[position:stop]
            found = slow(offset, size_bytes)
            file = self.file_at(offset)
            if file is not None:
                view, known, base = file.mapped, file.known, file.start_offset
                least, limit = max(start - base, 0), min(file.write_position, end - base)
            return found

        return read

    def span(self, offset: int, start: int, end: int) -> LogSpan | None:
        """Return the file that holds the byte at `offset`; None if `offset` is outside of `[start, end)`."""
        file = self.file_at(offset)
        if file is None:
            return None
        base = file.start_offset
        return LogSpan(file, base, max(start - base, 0), min(file.write_position, end - base))

    def prepare(self, count: int) -> None:
        """Make sure that the last file has its blocks and that the next `count` calls of `roll` cannot fail.

        Raises:
            DiskFullError, DiskFailedError, AllocationPendingError: not possible now; nothing was changed.
        """
        if self.files:
            self.files[-1].ensure_allocated()
        while len(self._spares) < count:
            self._spares.append(self._make(self._next_start() + len(self._spares) * self.file_size))

    def ensure_room(self, size_bytes: int) -> None:
        """Make sure that the last file (one is made when there is none) or the ones after it take `size_bytes` more.

        Bytes that the owner's framing wastes at the end of a file are the owner's to count: see `prepare`.

        Raises:
            As `prepare`.
        """
        left = self.files[-1].size_bytes - self.files[-1].write_position if self.files else 0
        self.prepare(0 if size_bytes <= left else -(-size_bytes // self.file_size))

    def roll(self) -> MappedFile:
        """Close the last file for writing and open the next one; the one after it is made ahead.

        Raises:
            As `prepare`; the last file is unchanged then.
        """
        self.prepare(1)
        if self.files:
            self._has_grown = True
            self.files[-1].fill()
            self._retire()
        file = self._spares.pop(0)
        self._join(file)
        self._make_ahead()
        return file

    def unflushed(self, start: int, end: int) -> list[MappedFile]:
        """Return files that hold bytes of `[start, end)`."""
        files = self.files
        if not files or end <= start:
            return []
        first = max((start - files[0].start_offset) // self.file_size, 0)
        return [file for file in files[first:] if file.start_offset < end]

    def rewrite(self, durable_offset: int) -> None:
        """Write the bytes behind `durable_offset` once more, so that the next sync really writes them; for recovery.

        A sync that failed in an earlier process may have left pages in the page cache that count as clean and never
        reached the disk; the next sync of them reports success and writes nothing. Pages that cannot be read are left
        alone.

        Raises:
            DiskFullError, DiskFailedError: the disk refused.
        """
        for file in self.unflushed(durable_offset, self.max_offset):
            for start in range(max(durable_offset - file.start_offset, 0), file.write_position, _REWRITE_BYTES):
                end = min(start + _REWRITE_BYTES, file.write_position)
                if not file.rewrite(start, end):
                    for page in range(start, end, mmap.PAGESIZE):
                        file.rewrite(page, min(page + mmap.PAGESIZE, end))

    def write_unwritten(self, durable_offset: int) -> None:
        """Write what is not on the disk behind `durable_offset`, although it was rewritten and synced; for recovery.

        Where a file system could not write into allocated blocks, they count as never written. ext4 does not correct
        that when the pages are written again: as soon as they leave the page cache, zeros are read.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError: the disk refused.
        """
        for file in self.unflushed(durable_offset, self.max_offset):
            file.write_unwritten(max(durable_offset - file.start_offset, 0))

    def truncate_to(self, offset: int) -> None:
        """Drop all bytes from `offset` on; they read as zeros afterwards.

        The bytes are zero for this process at once, and on disk with the next flush; files are deleted on return.
        Also ends a recovery: from now on the next file is made ahead.
        """
        self.generation += 1
        self.placed = _NOTHING
        doomed = [file for file in self.files if file.start_offset > offset]
        if doomed:
            self._drop_spares()
        self._delete(doomed)
        file = self.file_at(offset)
        if file is not None and offset < file.start_offset + file.write_position:
            position = offset - file.start_offset
            file.clear_from(position)
            file.write_position = position
            file.flush_position = min(file.flush_position, position)
        self.flushed_offset = min(self.flushed_offset, offset)
        if self._committed is not None:
            self._committed = min(self._committed, offset)
        self._make_ahead()

    def cut(self, offset: int) -> None:
        """Do what `truncate_to` does, durably on return.

        Raises:
            DiskFailedError: the disk refused the sync; it is not to be trusted any more.
        """
        self.truncate_to(offset)
        file = self.file_at(offset)
        if file is None:
            return
        try:
            file.sync()
        except OSError as error:
            raise DiskFailedError(file.path, f"sync after a truncation failed: {error}") from error

    def reset_to(self, start_offset: int) -> None:
        """Drop all files; the next byte to write is `start_offset`, in a file that starts at the multiple below."""
        self.generation += 1
        self.placed = _NOTHING
        self._drop_spares()
        self._delete(list(self.files))
        self._start_offset = start_offset - start_offset % self.file_size
        self.flushed_offset = start_offset
        if start_offset != self._start_offset:
            file = self.roll()
            file.write_position = file.flush_position = start_offset - file.start_offset

    def delete_before(self, offset: int) -> list[Path]:
        """Drop the files that end at or before `offset`, never the last one; return them."""
        doomed = self.take_before(offset)
        self.remove(doomed)
        return [file.path for file in doomed]

    def take_before(self, offset: int) -> list[MappedFile]:
        """Take the files that end at or before `offset` out of the queue, never the last one; `remove` deletes them."""
        doomed = [file for file in self.files[:-1] if file.end_offset <= offset]
        del self.files[: len(doomed)]
        self._mappings.removed(doomed)
        return doomed

    def remove(self, doomed: Sequence[MappedFile]) -> None:
        """Close and delete files that were taken, oldest first; slow, and allowed in a thread.

        Raises:
            DiskFailedError: the folder could not be synced.
        """
        for file in doomed:
            self._deleted.delete(file)
        if doomed:
            sync_directory(self.directory)

    def release_idle(self) -> None:
        """Unmap idle files, free blocks of deleted files that readers held too long; call it every few seconds."""
        self._mappings.release_idle()
        self._deleted.release_held()

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """Set whether the system reads ahead in the files of this queue."""
        self._mappings.set_reads_ahead(reads_ahead)

    def close(self) -> None:
        """Close all files and remove the ones made ahead. Nothing is flushed."""
        self._drop_spares()
        self._mappings.removed(self.files)
        for file in self.files:
            file.close()
        self.files.clear()
        self._deleted.close()

    def _next_start(self) -> int:
        return self.files[-1].end_offset if self.files else self._start_offset

    def _make(self, start: int) -> MappedFile:
        path = self.directory / file_name(start)
        if self._allocator is None:
            return MappedFile(path, start, self.file_size)
        return self._allocator.take(path, start, self.file_size)

    def _make_ahead(self) -> None:
        """Ask for the next file, and for the one after it once the log has grown."""
        if self._allocator is None:
            return
        for number in range(len(self._spares), self._ahead_max if self._has_grown else 1):
            start = self._next_start() + number * self.file_size
            self._allocator.request(self.directory / file_name(start), start, self.file_size)

    def _join(self, file: MappedFile) -> None:
        self.files.append(file)
        file.mappings = self._mappings
        if file.is_mapped:
            self._mappings.added(file)

    def _retire(self) -> None:
        """Unlock the file just filled, and give back the memory of the one before it, in the allocator's thread."""
        if self._allocator is not None:
            self._allocator.run(self.files[-1].unlock)
            if len(self.files) > 1:
                self._allocator.run(self.files[-2].cool)

    def _drop_spares(self) -> None:
        if self._allocator is not None:
            self._allocator.discard(self.directory)
        for file in self._spares:
            file.delete()
        self._spares.clear()

    def _delete(self, doomed: list[MappedFile]) -> None:
        self.files = [file for file in self.files if file not in doomed]
        self._mappings.removed(doomed)
        self.remove(doomed[::-1])  # from the end: a crash in between must leave no gap
