"""Queue files: the files of one consume queue, consecutive and without gaps, found by unit number.

    unit   0         file_units     2 * file_units
           |= file 0 =|=== file 1 ===|== file 2 ..|      the last one is mapped, and one older one at most

Files are named by the position in bytes of their first unit.
"""

import os
from pathlib import Path

from store.errors import StoreFormatError
from store.files.disk import refusal_of_disk, sync_directory
from store.files.mapped_file import FILE_NAME_DIGITS
from store.queues.queue_ends import changed_at
from store.queues.queue_file import QueueFile


class QueueFiles:
    """The files of one directory. Ranges are of unit numbers.

    Args:
        directory: made with the first file.
        file_units: units of each file.
        unit_size: bytes.
    """

    __slots__ = ("_changed", "_folder", "_loaded", "_old_file", "file_units", "unit_size")

    def __init__(self, directory: Path | str, file_units: int, unit_size: int) -> None:
        self._folder = str(directory)
        self.file_units = file_units
        self.unit_size = unit_size
        self._loaded: list[QueueFile] | None = []
        self._old_file: QueueFile | None = None
        self._changed = -1

    @property
    def changed(self) -> int:
        """Return the time stamp (ns) of the folder after the last file was added or removed here; 0: it has no file.

        May be called in any thread. If a file is added meanwhile, the time stamp may be an earlier one.
        """
        if self._changed < 0:
            if self._loaded == []:
                return 0  # without a look at tens of thousands of missing folders
            self._changed = changed_at(self._folder)
        return self._changed

    @property
    def directory(self) -> Path:
        """Return the directory of the files."""
        return Path(self._folder)

    @property
    def _files(self) -> list[QueueFile]:
        loaded = self._loaded
        if loaded is None:
            self.load()
            loaded = self._loaded
            assert loaded is not None, f"{self._folder} was not loaded"
        return loaded

    def load_later(self, changed: int) -> None:
        """Load the directory when a file is first needed; for files that are known to be sound.

        Args:
            changed: time stamp (ns) of the folder.
        """
        self._loaded = None
        self._changed = changed

    def __bool__(self) -> bool:
        return bool(self._files)

    def load(self) -> bool:
        """Open the files up to the first gap and delete those behind it; return whether there was a gap.

        Raises:
            StoreFormatError: a file has a wrong name or length; nothing was changed.
            DiskFullError: no descriptor is left.
            DiskFailedError: the folder cannot be read.
        """
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.is_dir())
        except FileNotFoundError:  # a queue that never had a message
            names = []
        except OSError as error:
            raise refusal_of_disk(self.directory, 0, "reading the folder", error) from error
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
                self._changed = -1
                return True
        self._loaded = files
        return False

    @property
    def start(self) -> int:
        """Return the first unit number of the first file; 0 without files."""
        return self._files[0].start_bytes // self.unit_size if self._files else 0

    @property
    def end(self) -> int:
        """Return the first unit number behind the last file; 0 without files."""
        return self._files[-1].start_bytes // self.unit_size + self.file_units if self._files else 0

    @property
    def data_end(self) -> int:
        """Return a unit number from which on the files hold only zeros. Maps the last file.

        Raises:
            DiskFailedError, DiskReadError: the last file cannot be mapped or read.
        """
        if not self._files:
            return 0
        last = self._files[-1]
        last.map()
        return (last.start_bytes + last.data_end) // self.unit_size + 1

    def find(self, unit: int) -> QueueFile | None:
        """Return the file that holds a unit, or None."""
        files = self._files
        if not files:
            return None
        index = (unit - files[0].start_bytes // self.unit_size) // self.file_units
        return files[index] if 0 <= index < len(files) else None

    def find_or_add(self, unit: int) -> QueueFile:
        """Return the file that holds a unit; the next or first file is made if it is missing.

        Raises:
            DiskFailedError: the file cannot be made.
        """
        file = self.find(unit)
        if file is None:
            size = self.file_units * self.unit_size
            start = unit // self.file_units * size
            assert not self._files or unit // self.file_units * self.file_units == self.end, f"unit {unit} skips a file"
            file = QueueFile(self._folder, start, size)
            self._files.append(file)
            self._changed = -1
            if len(self._files) > 1:
                self.keep_mapped(self._files[-2])  # still being filled, perhaps
        return file

    def is_last(self, file: QueueFile) -> bool:
        """Return whether this is the last file, which stays mapped."""
        return file is self._files[-1]

    def keep_mapped(self, file: QueueFile) -> bool:
        """Keep this older file mapped instead of the one kept before; return whether that one was unmapped."""
        old, self._old_file = self._old_file, file
        if old is None or old is file or old is self._files[-1]:
            return False
        old.close()
        return True

    def overlapping(self, start: int, end: int) -> list[QueueFile]:
        """Return the files that hold units of `[start, end)`."""
        if start >= end:
            return []
        files = self._files
        if len(files) < 2:
            return files.copy()  # most queues of many topics
        first = max((start - self.start) // self.file_units, 0)
        last = (end - 1 - self.start) // self.file_units
        return files[first : last + 1]

    def cut(self, end: int) -> None:
        """Delete the files that begin at or behind unit `end`, and clear the rest of the file that holds it.

        The only file stays if it begins at `end` past 0, since its name says where the queue continues.
        """
        while self._files and self._files[-1].start_bytes >= end * self.unit_size:
            if len(self._files) == 1 and self._files[0].start_bytes == end * self.unit_size > 0:
                break
            self._files.pop().delete()
            self._changed = -1
        if self._files:
            self._files[-1].clear_from(end * self.unit_size - self._files[-1].start_bytes)

    def sync_end(self) -> None:
        """Make a cut durable: sync the last file and the directory.

        Raises:
            DiskFailedError: a sync failed.
        """
        if self._files:
            self._files[-1].sync()
        if self.directory.is_dir():
            sync_directory(self.directory)

    def take_before(self, unit: int) -> list[QueueFile]:
        """Remove and return the files that hold only units before `unit`, except the last; the caller deletes them."""
        size = self.file_units * self.unit_size
        taken = [file for file in self._files[:-1] if file.start_bytes + size <= unit * self.unit_size]
        del self._files[: len(taken)]
        if self._old_file in taken:
            self._old_file = None
        self._changed = -1
        return taken

    def clear(self) -> None:
        """Delete all files."""
        for file in self._files:
            file.delete()
        self._files.clear()
        self._old_file = None
        self._changed = -1

    def close(self) -> None:
        """Unmap all files."""
        for file in self._loaded or ():
            file.close()
        self._old_file = None
