"""Queue files: the files of one consume queue, in order and without gaps, by the number of a unit.

    unit   0         file_units     2 * file_units
           |= file 0 =|=== file 1 ===|== file 2 ..|      the last one is mapped, and one older one at most

Files are named by the position in bytes of their first unit.
"""

import os
from pathlib import Path

from store.errors import StoreFormatError
from store.files.disk import sync_directory
from store.files.mapped_file import FILE_NAME_DIGITS
from store.queues.queue_file import QueueFile


class QueueFiles:
    """The files of one directory. Ranges are of unit numbers.

    Args:
        directory: made with the first file.
        file_units: units of each file.
        unit_size: bytes.
    """

    __slots__ = ("_folder", "_loaded", "_old_file", "file_units", "unit_size")

    def __init__(self, directory: Path | str, file_units: int, unit_size: int) -> None:
        self._folder = str(directory)
        self.file_units = file_units
        self.unit_size = unit_size
        self._loaded: list[QueueFile] | None = []
        self._old_file: QueueFile | None = None

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return Path(self._folder)

    @property
    def _files(self) -> list[QueueFile]:
        loaded = self._loaded
        if loaded is None:
            self.load()
            loaded = self._loaded
            assert loaded is not None, f"{self._folder} was not loaded"
        return loaded

    def load_later(self) -> None:
        """Look at the directory when a file is first asked for; it is known to hold what it should."""
        self._loaded = None

    def __bool__(self) -> bool:
        return bool(self._files)

    def load(self) -> bool:
        """Open what the directory holds, up to the first gap; answer whether there was one. What is behind it goes.

        Raises:
            StoreFormatError: a file with another name or length; nothing was changed.
        """
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.is_dir())
        except FileNotFoundError:  # a queue that never had a message
            names = []
        for name in names:
            if len(name) != FILE_NAME_DIGITS or not (name.isascii() and name.isdigit()):
                raise StoreFormatError(
                    self.directory / name, f"is not named by a start position of {FILE_NAME_DIGITS} digits"
                )
        size = self.file_units * self.unit_size
        files = [QueueFile(self._folder, int(name), size) for name in names]
        for index, file in enumerate(files):
            if file.start_bytes % size or file.start_bytes != files[0].start_bytes + index * size:
                for behind in files[index:]:
                    behind.delete()
                self._loaded = files[:index]
                return True
        self._loaded = files
        return False

    @property
    def start(self) -> int:
        """First unit of the first file."""
        return self._files[0].start_bytes // self.unit_size if self._files else 0

    @property
    def end(self) -> int:
        """First unit behind the last file."""
        return self._files[-1].start_bytes // self.unit_size + self.file_units if self._files else 0

    @property
    def data_end(self) -> int:
        """A unit behind which the files hold nothing but zeros; the last file is mapped for that.

        Raises:
            DiskFailedError, DiskReadError: it cannot be.
        """
        if not self._files:
            return 0
        last = self._files[-1]
        last.map()
        return (last.start_bytes + last.data_end) // self.unit_size + 1

    def find(self, unit: int) -> QueueFile | None:
        """The file that holds a unit."""
        files = self._files
        if not files:
            return None
        index = (unit - files[0].start_bytes // self.unit_size) // self.file_units
        return files[index] if 0 <= index < len(files) else None

    def find_or_add(self, unit: int) -> QueueFile:
        """The file that holds a unit; made when it is the next one, or the first.

        Raises:
            DiskFailedError: it cannot be made.
        """
        file = self.find(unit)
        if file is None:
            size = self.file_units * self.unit_size
            start = unit // self.file_units * size
            assert not self._files or unit // self.file_units * self.file_units == self.end, f"unit {unit} skips a file"
            file = QueueFile(self._folder, start, size)
            self._files.append(file)
            if len(self._files) > 1:
                self.keep_mapped(self._files[-2])  # still being filled, perhaps
        return file

    def is_last(self, file: QueueFile) -> bool:
        """Whether it is the last one, which stays mapped."""
        return file is self._files[-1]

    def keep_mapped(self, file: QueueFile) -> bool:
        """Let this older file stay mapped, and not the one before it; answer whether that one was unmapped."""
        old, self._old_file = self._old_file, file
        if old is None or old is file or old is self._files[-1]:
            return False
        old.close()
        return True

    def overlapping(self, start: int, end: int) -> list[QueueFile]:
        """Files that hold units of `[start, end)`."""
        if start >= end:
            return []
        first = max((start - self.start) // self.file_units, 0)
        last = (end - 1 - self.start) // self.file_units
        return self._files[first : last + 1]

    def cut(self, end: int) -> None:
        """Drop files from unit `end` on, and clear the rest of the file it lies in.

        A first file that begins there stays: past 0, its name alone says where the queue goes on.
        """
        while self._files and self._files[-1].start_bytes >= end * self.unit_size:
            if len(self._files) == 1 and self._files[0].start_bytes == end * self.unit_size > 0:
                break
            self._files.pop().delete()
        if self._files:
            self._files[-1].clear_from(end * self.unit_size - self._files[-1].start_bytes)

    def sync_end(self) -> None:
        """Make a cut durable: the last file, and which files there are.

        Raises:
            DiskFailedError: the disk refused.
        """
        if self._files:
            self._files[-1].sync()
        if self.directory.is_dir():
            sync_directory(self.directory)

    def take_before(self, unit: int) -> list[QueueFile]:
        """Let go of the files that hold only units before `unit`, but the last one, for the caller to delete."""
        size = self.file_units * self.unit_size
        taken = [file for file in self._files[:-1] if file.start_bytes + size <= unit * self.unit_size]
        del self._files[: len(taken)]
        if self._old_file in taken:
            self._old_file = None
        return taken

    def clear(self) -> None:
        """Remove all files."""
        for file in self._files:
            file.delete()
        self._files.clear()
        self._old_file = None

    def close(self) -> None:
        """Unmap all files."""
        for file in self._loaded or ():
            file.close()
        self._old_file = None
