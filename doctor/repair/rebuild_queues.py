"""Rebuilds the queues from the log, file by file, into a folder of their own.

Where a queue begins past 0, or lacks units because records are lost, blank units are written: physical offset of the
record before (RocketMQ skips records in the same file as a unit that it cannot read), size 0x7FFFFFFF, code 0. Queues
whose records were all deleted keep their last files, because their numbers continue from there.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from doctor.check.columns import Columns, Ints, QueueName
from doctor.check.queue_check import Expected, expected_units, find_spans
from doctor.read.queues import BATCH_DIR, QUEUE_DIR, QueueSet, list_queues
from doctor.read.unit_files import BATCH_UNIT, BLANK_SIZE, QUEUE_UNIT, Units
from doctor.repair.copying import copy_file
from ledgermq.durable_files import sync
from ledgermq.message.queue_unit import SCHEDULE_TOPIC

_NEW = ".new"
_OLD = ".old"
_GAP_UNITS_MAX = 1 << 24


@dataclass(slots=True)
class QueueBuilder:
    """Rebuilds the queues of the store at `root`.

    Args:
        root: the store; new queues have other names beside the old ones until `finish`.
        old: the old queues, for what the log does not tell.

    Attributes:
        unplaced: number of units for which no place was found.
    """

    root: Path
    old: QueueSet
    unplaced: list[str] = field(default_factory=list)
    _ends: dict[tuple[QueueName, bool], int] = field(default_factory=dict)
    _last: dict[tuple[QueueName, bool], int] = field(default_factory=dict)
    _files: set[Path] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Number of queues that have units."""
        return len(self._ends)

    def start(self) -> None:
        """Remove what an interrupted repair has left."""
        for kind in (QUEUE_DIR, BATCH_DIR):
            shutil.rmtree(self.root / (kind + _NEW), ignore_errors=True)

    def put(self, columns: Columns, optional: npt.NDArray[np.bool_]) -> None:
        """Write the units of one log file's records, except `optional` ones."""
        for expected in expected_units(self.old, columns, optional):
            keep = ~expected.is_optional
            if keep.any():
                self._put_queue(columns, expected, keep)

    def _put_queue(self, columns: Columns, expected: Expected, keep: npt.NDArray[np.bool_]) -> None:
        key = (expected.name, expected.is_batch)
        rows, numbers = expected.rows[keep], expected.numbers[keep]
        if expected.is_batch:
            numbers = np.arange(len(rows)) + self._ends.get(key, 0)
        units = _batch_units(columns, rows) if expected.is_batch else self._units(columns, expected.name, rows, numbers)
        if key not in self._ends:
            file_units = (self.old.batch_file_size if expected.is_batch else self.old.file_size) // units.itemsize
            first = int(numbers[0])
            self._ends[key] = first - first % file_units
            self._blank(key, first, 0)
        at = 0
        for first, end in find_spans(numbers):
            run = units[at : at + end - first]
            at += end - first
            if not 0 <= first - self._ends[key] <= _GAP_UNITS_MAX:
                self.unplaced.append(f"queue offsets {first} to {end - 1} of {key[0]} do not follow {self._ends[key]}")
                continue
            if first > self._ends[key]:
                self._blank(key, first, self._last.get(key, 0))
            self._write(key, first, run)
            self._ends[key] = max(self._ends[key], end)
            self._last[key] = int(run["physical"][-1])

    def _units(self, columns: Columns, name: QueueName, rows: Ints, numbers: Ints) -> Units:
        units = np.zeros(len(rows), QUEUE_UNIT)
        units["physical"], units["size"] = columns.physical_offsets[rows], columns.sizes[rows]
        units["code"] = columns.codes[rows]
        if name.topic == SCHEDULE_TOPIC:  # due times depend on the broker's levels, and are not in the log
            low = int(numbers.min())
            before = self.old.get(name).read(low, int(numbers.max()) - low + 1)[numbers - low]
            same = (before["physical"] == units["physical"]) & (before["size"] == units["size"])
            same &= before["code"].astype(np.int64) > columns.timestamps[rows]
            units["code"][same] = before["code"][same]
        return units

    def _blank(self, key: tuple[QueueName, bool], end: int, physical: int) -> None:
        """Write blank units up to unit `end`."""
        if key[1] or end <= self._ends[key]:
            return
        units = np.zeros(end - self._ends[key], QUEUE_UNIT)
        units["physical"], units["size"] = physical, BLANK_SIZE
        self._write(key, self._ends[key], units)
        self._ends[key] = end

    def _write(self, key: tuple[QueueName, bool], first: int, units: Units) -> None:
        name, is_batch = key
        size = self.old.batch_file_size if is_batch else self.old.file_size
        size -= size % units.itemsize
        folder = self._folder(name, is_batch=is_batch)
        data = units.tobytes()
        position = first * units.itemsize
        while data:
            start = position - position % size
            piece = data[: start + size - position]
            self._write_piece(folder / f"{start:020d}", size, position - start, piece)
            data, position = data[len(piece) :], position + len(piece)

    def _write_piece(self, path: Path, size: int, position: int, data: bytes) -> None:
        if path not in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)
            self._files.add(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, data, position)
        finally:
            os.close(descriptor)

    def keep_old(self, min_offset: int) -> None:
        """Take over the queues whose records were all deleted from the log."""
        for name in list_queues(self.old.root, QUEUE_DIR):
            units = self.old.get(name)
            end = units.used_end()
            if (name, False) in self._ends or not end or int(units.read(end - 1, 1)["physical"][0]) >= min_offset:
                continue
            folder = self._folder(name, is_batch=False)
            folder.mkdir(parents=True, exist_ok=True)
            for file in units.files:
                if file.start < end * QUEUE_UNIT.itemsize and file.length == self.old.file_size:
                    copy_file(file.path, folder / file.path.name)

    def finish(self) -> None:
        """Make everything durable and put it in the place of the old queues. Extensions are not rebuilt."""
        for path in sorted(self._files):
            sync(path)
        for folder in {parent for path in self._files for parent in list(path.parents)[:3]}:
            sync(folder)
        for kind in (QUEUE_DIR, BATCH_DIR):
            swap(self.root / kind)
        shutil.rmtree(self.root / "consumequeue_ext", ignore_errors=True)
        sync(self.root)

    def _folder(self, name: QueueName, *, is_batch: bool) -> Path:
        place = self.old.directory(name, batch=is_batch).relative_to(self.old.root)
        return self.root / (place.parts[0] + _NEW) / Path(*place.parts[1:])


def swap(path: Path) -> None:
    """Replace `path` by `path.new`; if there is none, remove `path`."""
    new, old = path.with_name(path.name + _NEW), path.with_name(path.name + _OLD)
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    if new.exists():
        new.rename(path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _batch_units(columns: Columns, rows: Ints) -> Units:
    units = np.zeros(len(rows), BATCH_UNIT)
    units["physical"], units["size"] = columns.physical_offsets[rows], columns.sizes[rows]
    units["code"], units["time"] = columns.codes[rows], columns.timestamps[rows]
    units["base"], units["compacted"] = columns.queue_offsets[rows], -1
    units["count"] = [columns.batches.get(int(row), 1) for row in rows]
    return units
