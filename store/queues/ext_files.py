"""The files of a consume queue's extension: units of any length one behind the other, found by their position.

    | unit | unit | unit  .. -1 |  unit | unit | ...
    0                           file size            no unit lies across two files

Derived data like the queue itself. Source: apache/rocketmq `store/ConsumeQueueExt.java` (5.3.3).
"""

from pathlib import Path

from ledgermq.message.ext_unit import END_OF_FILE, END_OF_FILE_ROOM, ExtUnit, decode_ext_unit
from store.queues.queue_file import QueueFile
from store.queues.queue_files import QueueFiles


class ExtFiles:
    """The units of one queue. Positions are bytes from the start of the first file there ever was.

    Args:
        directory: made with the first unit.
        file_size_bytes: of each file.

    Attributes:
        end: where the next unit goes.
    """

    def __init__(self, directory: Path, file_size_bytes: int) -> None:
        self.directory = directory
        self.end = 0
        self._files = QueueFiles(directory, file_size_bytes, 1)
        self._flushed = 0

    def load(self) -> None:
        """Open what the directory holds; `cut` follows.

        Raises:
            StoreFormatError: a file with another name or length.
        """
        if self.directory.is_dir():
            self._files.load()
            self.end = self._flushed = self._files.end

    def put(self, unit: ExtUnit) -> int:
        """Append a unit; its position.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored.
        """
        size, file_size = unit.size, self._files.file_units
        left = file_size - self.end % file_size
        if size > left - END_OF_FILE_ROOM:
            self._store(self.end, END_OF_FILE)
            self.end += left
        position = self.end
        self._store(position, unit.encode())
        self.end = position + size
        return position

    def get(self, position: int) -> ExtUnit | None:
        """The unit at a position; None where there is none."""
        file = self._files.find(position) if position < self.end else None
        if file is None:
            return None
        if not self._files.is_last(file):
            self._files.keep_mapped(file)
        return decode_ext_unit(file.view[position - file.start_bytes :])

    def cut(self, end: int) -> None:
        """Keep what lies before `end`; the rest reads as zeros."""
        self._files.cut(end)
        self.end = end
        self._flushed = min(self._flushed, end)

    def sync_end(self) -> None:
        """Make a cut durable; errors as `QueueFiles.sync_end`."""
        self._files.sync_end()

    def take_before(self, position: int) -> list[QueueFile]:
        """Let go of the files that end at or before `position`, but the last; the caller deletes them."""
        return self._files.take_before(position)

    def take_unflushed(self) -> list[QueueFile]:
        """Files with units put since the last call."""
        start, self._flushed = self._flushed, self.end
        return self._files.overlapping(start, self.end)

    def clear(self) -> None:
        """Remove all files."""
        self._files.clear()
        self.end = self._flushed = 0

    def close(self) -> None:
        """Unmap."""
        self._files.close()

    def _store(self, position: int, data: bytes) -> None:
        file = self._files.find_or_add(position)
        start = position - file.start_bytes
        file.reserve(start + len(data))
        file.buffer[start : start + len(data)] = data
