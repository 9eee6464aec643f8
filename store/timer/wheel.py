"""Timer wheel: one slot of 32 bytes for each second of fourteen days (or for another precision), which come round.

| field | type | at |
|---|---|---|
| time: slot time divided by the precision | i64 | 0 |
| position in the timer log of the slot's first unit | i64 | 8 |
| position of its last one | i64 | 16 |
| units that wait: messages less deletions | i32 | 24 |
| magic, unused | i32 | 28 |

Big-endian; a slot lies at `32 * (time / precision % slot count)`. The file has its blocks from the start, so that a
full disk is an exception here and never a SIGBUS.

Source: apache/rocketmq `store/.../timer/TimerWheel.java`, `Slot.java` (5.3.3).
"""

import logging
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy

from store.errors import DiskFailedError, DiskReadError, StoreFormatError
from store.files import pages
from store.files.mapped_file import allocate, sync_directory

SLOTS_A_WEEK: Final = 7 * 86400
SLOT_COUNT: Final = 2 * SLOTS_A_WEEK

_SLOT = struct.Struct(">qqqii")
_BLANK = bytes(_SLOT.size)
_SKIPPED_MAX: Final = 4096  # 128 KiB of slots: well below a slice of the loop


log = logging.getLogger(__name__)


class Slot(NamedTuple):
    """One slot: positions of its first and last unit, and how many wait in it."""

    first: int
    last: int
    waiting: int
    magic: int = 0


class TimerWheel:
    """The file `timerwheel`; made when missing.

    Args:
        precision_ms: how long a slot is.
        slot_count: of the whole wheel.

    Attributes:
        was_made: the file was not there, or could not be read and was made anew.

    Raises:
        StoreFormatError: the file has another length.
        DiskFullError, DiskFailedError: it cannot be made.
    """

    def __init__(self, path: Path, precision_ms: int, slot_count: int = SLOT_COUNT) -> None:
        self._path = path
        self._precision_ms = precision_ms
        self._slot_count = slot_count
        size = slot_count * _SLOT.size
        try:
            self._open(size)
        except DiskReadError as error:
            log.error("the timer wheel is rebuilt from the timer log: %s", error)
            path.unlink()
            self._open(size)

    def get(self, time_ms: int) -> Slot | None:
        """Return the slot of a time, or None while it is empty."""
        time = time_ms // self._precision_ms
        found, *fields = _SLOT.unpack_from(self._buffer, time % self._slot_count * _SLOT.size)
        return Slot(*fields) if found == time and time else None

    def put(self, time_ms: int, slot: Slot | None) -> None:
        """Set the slot of a time; None empties it."""
        time = time_ms // self._precision_ms
        at = time % self._slot_count * _SLOT.size
        self._buffer[at : at + _SLOT.size] = _BLANK if slot is None else _SLOT.pack(time, *slot)

    def skip_empty(self, time_ms: int, before_ms: int) -> int:
        """Return the first time in `[time_ms, before_ms)` whose slot is in use, or how far the search came.

        Both are multiples of the precision. At most some thousands of slots are passed over; no more than a round.
        """
        start = time_ms // self._precision_ms
        first = start % self._slot_count
        stop = min(first + (before_ms - time_ms) // self._precision_ms, first + _SKIPPED_MAX, self._slot_count)
        slots = numpy.frombuffer(self._buffer, ">i8", (stop - first) * 4, first * _SLOT.size)[::4]
        used = numpy.flatnonzero(slots == numpy.arange(start, start + stop - first))
        del slots  # it would keep the mapping open
        return (start + (int(used[0]) if len(used) else stop - first)) * self._precision_ms

    def slots_beyond(self, end: int) -> dict[int, Slot]:
        """Return the slots whose last unit is at or behind `end` of the timer log, by their time in ms."""
        fields = numpy.frombuffer(self._buffer, ">i8").reshape(-1, _SLOT.size // 8)
        found = numpy.flatnonzero((fields[:, 2] >= end) & (fields[:, 0] != 0)).tolist()
        del fields  # it would keep the mapping open
        units = [_SLOT.unpack_from(self._buffer, index * _SLOT.size) for index in found]
        return {time * self._precision_ms: Slot(*values) for time, *values in units}

    def sync(self) -> None:
        """Make everything put so far durable; for a thread.

        Raises:
            DiskFailedError: the disk refused.
        """
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise DiskFailedError(self._path, f"sync failed: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._buffer.close()
        os.close(self.fd)

    def _open(self, size: int) -> None:
        """Open and map the file, its pages in memory: a touch of one that the disk cannot read would be a SIGBUS."""
        path = self._path
        self.was_made = not path.exists() or path.stat().st_size == 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._allocate(size)
            self._buffer = mmap.mmap(self.fd, size)
            pages.read_data(self.fd, path, self._buffer)
            self._buffer.madvise(mmap.MADV_RANDOM)  # read-ahead at the first touch of a page would hold up the loop
        except BaseException:
            os.close(self.fd)
            if self.was_made:
                path.unlink(missing_ok=True)
            raise

    def _allocate(self, size: int) -> None:
        status = os.fstat(self.fd)
        if status.st_size not in (0, size):
            raise StoreFormatError(self._path, f"is {status.st_size} bytes long, must be {size}")
        if self.was_made:
            os.ftruncate(self.fd, size)
        if self.was_made or status.st_blocks * 512 < size:
            allocate(self.fd, self._path, 0, size)
            sync_directory(self._path.parent)
