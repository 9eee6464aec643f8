"""Pooled file: a mapped file whose records are placed into a buffer of the transient pool first.

    0         flush_position      commit_position         write_position        size_bytes
    |- durable ----|-- in the file: visible --|-- in the buffer --|---- zeros -----|

Only bytes that were placed are copied to the file: neither bytes of an earlier file in the buffer nor bytes behind a
blank. A file for which no buffer was left is written directly.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (commit0, 5.3.3).
"""

from pathlib import Path

from store.files.mapped_file import MappedFile
from store.files.transient_pool import TransientPool


class PooledFile(MappedFile):
    """A file made ahead; it borrows its buffer at once.

    Attributes:
        commit_position: everything below is in the file.

    Raises:
        PoolUnavailableError: no buffer is left, and the pool refuses then; no file was made.
        As `MappedFile`.
    """

    __slots__ = ("_placed_end", "_pool", "_room", "commit_position")

    def __init__(self, path: Path, start_offset: int, size_bytes: int, pool: TransientPool) -> None:
        self._pool = pool
        self._room = pool.borrow()
        self._placed_end = size_bytes
        self.commit_position = 0
        try:
            super().__init__(path, start_offset, size_bytes)
        except BaseException:
            self._give_back()
            raise

    def write(self, data: memoryview) -> None:
        """Append `data`, for which there is room; readers see it when it is committed. Raises as `MappedFile.write`."""
        if self._room is None:
            super().write(data)
            self.commit_position = self.write_position
            return
        position = self.write_position
        self.write_position = end = position + len(data)
        self._room[position:end] = data

    def fill(self) -> None:
        """Do what `MappedFile.fill` does; bytes that were not placed are zeros already."""
        self._placed_end = self.write_position
        super().fill()
        self.committed_to(self.commit_position)

    def clear_from(self, position: int) -> None:
        """Do what `MappedFile.clear_from` does; drop bytes that were not committed from the buffer."""
        if position < self.commit_position or self._room is None:
            super().clear_from(position)
            self.commit_position = min(self.commit_position, position)

    def uncommitted(self) -> memoryview:
        """Return the bytes to be written at `commit_position`; empty when all are written."""
        if self._room is None:
            return memoryview(b"")
        return self._room[self.commit_position : min(self.write_position, self._placed_end)]

    def committed_to(self, position: int) -> None:
        """Note that everything below `position` is in the file; a full file gives its buffer back."""
        self.commit_position = position
        if self.write_position == self.size_bytes and position >= self._placed_end:
            self.commit_position = self.size_bytes
            self._give_back()

    def close(self) -> None:
        """Close the file and give the buffer back; bytes that were not committed are lost."""
        super().close()
        self._give_back()

    def _give_back(self) -> None:
        if self._room is not None:
            self._pool.give_back(self._room)
            self._room = None
