"""Index files: the folder, in the order of its names. The last file is being filled; the others are full.

    20261121091222798   20261121091223699   20261121091224213
    |=== full ========| |=== full ========| |=== being filled ...|
                                             mapped

Owned by one thread. Source: apache/rocketmq `store/.../index/IndexService.java` (5.3.3).
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ledgermq.message.index_unit import FILE_NAME_DIGITS, FIRST_ENTRY, IndexLayout
from ledgermq.wall_clock import wall_clock_ms
from store.files.mapped_file import sync_directory
from store.index.batch import Entries
from store.index.index_file import IndexFile, QueryRange

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContentEnd:
    """The end of the content that can be trusted.

    Attributes:
        file_count: number of files to keep, from the first.
        entry_count: first entry number to drop in the last file kept; None: all its entries stay.
        end_timestamp: store time (ms) of that file's last record; None where it is not known.
    """

    file_count: int
    entry_count: int | None = None
    end_timestamp: int | None = None


class IndexFiles:
    """All index files of a store.

    Args:
        directory: made when missing.
        clock: wall clock, ms; names new files by local time.

    Attributes:
        files: in order.

    Raises:
        StoreFormatError, DiskFailedError, DiskReadError: as `IndexFile`.
    """

    def __init__(
        self,
        directory: Path,
        layout: IndexLayout,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.directory = directory
        self.layout = layout
        self.files: list[IndexFile] = []
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Length of all files; blocks are fewer."""
        return len(self.files) * self.layout.file_size

    # -- writing

    def put(self, entries: Entries) -> int:
        """Append entries to the last file, or a new one if that is full; return how many were appended, 1 or more.

        Raises:
            DiskFullError, DiskFailedError: nothing was appended.
        """
        if not self.files or self.files[-1].is_full:
            self._roll()
        return self.files[-1].put(entries)

    def sync(self) -> None:
        """Make all that was put durable.

        Raises:
            DiskFailedError: a sync failed; it is never to be tried again.
        """
        for file in self.files:
            file.sync()

    def cut(self, cut: ContentEnd) -> None:
        """Drop the entries behind a cut.

        Raises:
            DiskFullError, DiskFailedError: call it again before putting entries.
        """
        self._delete(self.files[cut.file_count :])
        if self.files and cut.entry_count is not None:
            self.files[-1].cut_to(cut.entry_count, cut.end_timestamp)

    def cut_at(self, physical_offset: int, within: ContentEnd | None = None) -> ContentEnd:
        """Return the cut that drops the entries of records at or past an offset; `within`, if given, bounds it."""
        count = within.file_count if within is not None else len(self.files)
        limit = within.entry_count if within is not None else None
        while count and _first_offset(self.files[count - 1]) >= physical_offset:
            count, limit = count - 1, None
        if not count:
            return ContentEnd(0)
        file = self.files[count - 1]
        if limit is None and file.header.end_offset < physical_offset:
            return ContentEnd(count)
        numbers = range(FIRST_ENTRY, file.header.entry_count if limit is None else limit)
        kept = bisect_left(numbers, physical_offset, key=file.offset_of)
        return ContentEnd(count, FIRST_ENTRY + kept)

    def delete_before(self, physical_offset: int) -> list[Path]:
        """Drop files whose records are all before an offset, never the last file; returns their paths."""
        doomed = []
        for file in self.files[:-1]:
            if file.header.end_offset >= physical_offset:
                break
            doomed.append(file)
        self._delete(doomed)
        return [file.path for file in doomed]

    # -- reading

    def find(self, window: QueryRange, count_max: int) -> list[int]:
        """Physical offsets of matching entries, newest first, at most `count_max`; see `IndexFile.find`."""
        found: list[int] = []
        for file in reversed(self.files):
            if len(found) >= count_max:
                break
            found += file.find(window, count_max - len(found))
            if file.header.begin_timestamp < window.begin:
                break
        return found

    def last_update(self) -> tuple[int, int]:
        """Return the store time (ms) and physical offset of the last record indexed; zeros for none."""
        if not self.files:
            return 0, 0
        header = self.files[-1].header
        return header.end_timestamp, header.end_offset

    def count_last(self, physical_offset: int) -> int:
        """Return how many of the newest entries are of the record at an offset."""
        count = 0
        for file in reversed(self.files):
            for number in range(file.header.entry_count - 1, FIRST_ENTRY - 1, -1):
                if file.offset_of(number) != physical_offset:
                    return count
                count += 1
        return count

    def close(self) -> None:
        """Close all files without syncing them."""
        for file in self.files:
            file.close()
        self.files.clear()

    # -- inside

    def _load(self) -> None:
        for path in sorted(self.directory.iterdir()):
            name = path.name
            if len(name) != FILE_NAME_DIGITS or not (name.isascii() and name.isdigit()):
                log.warning("%s is not an index file and is ignored", path)
            elif path.stat().st_size == 0:  # a crash interrupted its creation
                path.unlink()
            else:
                self.files.append(IndexFile(path, self.layout))

    def _roll(self) -> None:
        """Begin the next file."""
        start = (0, 0)
        if self.files:
            start = self.last_update()
            self.files[-1].sync()
        file = IndexFile(self.directory / self._next_name(), self.layout, start)
        if self.files:
            self.files[-1].unmap()
        self.files.append(file)
        sync_directory(self.directory)

    def _next_name(self) -> str:
        """Return the local time, or one ms more than the last file's name if that is later: names keep the order."""
        name = _name_of(datetime.fromtimestamp(self._clock() / 1000))
        if self.files and name <= (last := self.files[-1].path.name):
            name = _after(last)
        return name

    def _delete(self, doomed: list[IndexFile]) -> None:
        for file in list(doomed):
            self.files.remove(file)
            file.delete()
        if doomed:
            sync_directory(self.directory)


def _first_offset(file: IndexFile) -> int:
    """Return the physical offset of the file's first record; for an empty file, of the last record before it."""
    return file.header.begin_offset


def _name_of(moment: datetime) -> str:
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def _after(name: str) -> str:
    """Return the name one millisecond later; where the digits are no time, the number one higher."""
    try:
        moment = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f")
    except ValueError:
        return f"{int(name) + 1:0{FILE_NAME_DIGITS}d}"
    return _name_of(moment + timedelta(milliseconds=1))
