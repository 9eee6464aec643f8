"""Files of fixed-size units: consume queues (20 bytes), batch queues (46), DLedger's index (32).

    directory/00000000000000000000   units 0 .. n-1        named by the position in bytes of their first unit
    directory/00000000000000006000   units n .. 2n-1

Missing parts read as zeros, which no unit is.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from doctor.read.directory import OffsetFile, offset_files, usual_length
from doctor.read.raw_file import FileWindow

Units = npt.NDArray[np.void]

QUEUE_UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
BATCH_UNIT: Final = np.dtype(
    [
        *(("physical", ">i8"), ("size", ">i4"), ("code", ">i8"), ("time", ">i8")),
        *(("base", ">i8"), ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4")),
    ]
)
INDEX_UNIT: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
BLANK_SIZE: Final = 0x7FFFFFFF
"""Size in the units that stand before a queue's first one, or for one that was lost."""

_READ_UNITS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class UnitFiles:
    """The files of one sequence. Unit numbers count from the start of the sequence."""

    directory: Path
    unit: np.dtype[Any]
    files: tuple[OffsetFile, ...]
    file_size: int
    strangers: tuple[Path, ...] = ()

    @property
    def file_units(self) -> int:
        """Number of units in one file."""
        return max(self.file_size // self.unit.itemsize, 1)

    @property
    def first(self) -> int:
        """First unit of the first file."""
        return self.files[0].start // self.unit.itemsize if self.files else 0

    @property
    def end(self) -> int:
        """End of the units that have room."""
        return (self.files[-1].start + self.files[-1].length) // self.unit.itemsize if self.files else 0

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of a unit, whether it exists or not, and the position in it."""
        at = number * self.unit.itemsize
        start = at - at % (self.file_units * self.unit.itemsize)
        return self.directory / f"{start:020d}", at - start

    def read(self, first: int, count: int) -> Units:
        """Return the units `[first, first + count)`.

        Raises:
            OSError: the disk cannot read them.
        """
        size = self.unit.itemsize
        start, end = first * size, (first + count) * size
        data = bytearray(end - start)
        for file in self.files:
            low, high = max(start, file.start), min(end, file.start + file.length)
            if low < high:
                piece = _pread(file.path, low - file.start, high - low)
                data[low - start : low - start + len(piece)] = piece
        return np.frombuffer(data, self.unit)

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, Units]]:
        """Yield `(number of the first, units)` of `[first, end)`, where there are files, piece by piece."""
        for file in self.files:
            low = max(first, file.start // self.unit.itemsize)
            high = min(end, (file.start + file.length) // self.unit.itemsize)
            for number in range(low, high, _READ_UNITS):
                yield number, self.read(number, min(_READ_UNITS, high - number))

    def used_end(self) -> int:
        """Return the end of the last unit that is not all zeros; holes are not read."""
        for file in reversed(self.files):
            with FileWindow(file.path) as window:
                end = window.used_end(0)
            if end:
                return file.start // self.unit.itemsize + -(-end // self.unit.itemsize)
        return 0


def open_units(directory: Path, unit: np.dtype[Any], usual: int = 0) -> UnitFiles:
    """Return the units in a directory. `usual`: length of a file where the directory does not tell it."""
    files, strangers = offset_files(directory)
    size = usual_length(files) if len(files) > 1 or not usual else usual
    return UnitFiles(directory, unit, tuple(files), size or usual or unit.itemsize, tuple(strangers))


def _pread(path: Path, position: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)
