"""The index files: the unit at `entry index * 32` has the position, size and term of the entry.

Invariant: every unit can be computed from the entries. So units are synced in the background, and recovery rebuilds
those behind the checkpoint.
"""

from dledger.log.entry import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC
from store.errors import StoreFormatError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue


class UnitIndex:
    """The index units on a queue of mapped files.

    Args:
        queue: loaded; it may be empty.
    """

    def __init__(self, queue: MappedFileQueue) -> None:
        self._queue = queue

    @property
    def files(self) -> MappedFileQueue:
        """The files that hold the units."""
        return self._queue

    def find(self, entry_index: int) -> tuple[int, int, int] | None:
        """Return `(position, size, term)` of an entry; None where no unit was written, or a damaged one."""
        offset = entry_index * INDEX_UNIT_SIZE
        file = self._queue.file_at(offset)
        if file is None:
            return None
        magic, position, size, found, term = INDEX_UNIT.unpack_from(file.view, offset - file.start_offset)
        return (position, size, term) if magic == MAGIC and found == entry_index else None

    def __getitem__(self, entry_index: int) -> tuple[int, int, int]:
        """Return what `find` returns, for an entry that is kept.

        Raises:
            StoreFormatError: the unit is damaged; a restart rebuilds it.
        """
        unit = self.find(entry_index)
        if unit is None:
            raise StoreFormatError(self._queue.directory, f"the unit of entry {entry_index} is unreadable")
        return unit

    def last_ending_by(self, first: int, last: int, position: int) -> int:
        """Return the last of the entries `first .. last` that ends at or before `position`; at least `first`."""
        start, size, _ = self[last]
        if start + size <= position:
            return last
        low, high = first, last
        while low < high:
            middle = (low + high + 1) // 2
            start, size, _ = self[middle]
            if start + size <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def covers(self, entry_index: int) -> bool:
        """Return whether there are files from this entry on."""
        queue = self._queue
        return bool(queue.files) and queue.min_offset <= entry_index * INDEX_UNIT_SIZE < queue.max_offset

    def prepare(self, count: int) -> None:
        """Make sure that `count` more units can be written.

        Raises:
            DiskFullError, DiskFailedError, AllocationPendingError: not now; nothing was changed.
        """
        self._queue.ensure_room(count * INDEX_UNIT_SIZE)

    def slot(self, entry_index: int) -> tuple[MappedFile, int]:
        """Return the file and the position in it of the next unit, that of `entry_index`. Call `prepare` first."""
        offset = entry_index * INDEX_UNIT_SIZE
        file = self._queue.file_at(offset) or self._queue.roll()
        return file, offset - file.start_offset

    def put(self, entry_index: int, term: int, position: int, size: int) -> None:
        """Write one unit, during recovery or repair."""
        file, at = self.slot(entry_index)
        INDEX_UNIT.pack_into(file.buffer, at, MAGIC, position, size, entry_index, term)
        file.write_position = max(file.write_position, at + INDEX_UNIT_SIZE)

    def copy(self, entry_index: int, units: memoryview) -> None:
        """Write encoded units, that of `entry_index` first. Call `prepare` first."""
        while units:
            file, at = self.slot(entry_index)
            size = min(len(units), file.size_bytes - at)
            file.buffer[at : at + size] = units[:size]
            file.write_position = at + size
            units = units[size:]
            entry_index += size // INDEX_UNIT_SIZE

    def truncate_after(self, entry_index: int) -> None:
        """Drop the units above `entry_index`."""
        self._queue.truncate_to((entry_index + 1) * INDEX_UNIT_SIZE)

    def reset(self, first_index: int) -> None:
        """Drop all units; the next one is that of `first_index`."""
        self._queue.reset_to(first_index * INDEX_UNIT_SIZE)

    def take_before(self, first_index: int) -> list[MappedFile]:
        """Remove and return the files that hold only units below `first_index`, never the last one."""
        return self._queue.take_before(first_index * INDEX_UNIT_SIZE)

    def delete_before(self, first_index: int) -> None:
        """Delete the files that hold only units below `first_index`, never the last one."""
        self._queue.delete_before(first_index * INDEX_UNIT_SIZE)

    def unsynced(self) -> list[MappedFile]:
        """Return files with units that may not be durable."""
        return self._queue.unflushed(self._queue.flushed_offset, self._queue.max_offset)

    def synced_up_to(self, entry_index: int) -> None:
        """Note that the units up to `entry_index` are durable."""
        self._queue.flushed_offset = max(self._queue.flushed_offset, (entry_index + 1) * INDEX_UNIT_SIZE)

    def release_idle(self) -> None:
        """See `MappedFileQueue.release_idle`."""
        self._queue.release_idle()

    def close(self) -> None:
        """Close the files."""
        self._queue.close()
