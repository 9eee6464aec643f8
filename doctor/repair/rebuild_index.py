"""Rebuilds the key index, and DLedger's index of entries, from the log."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dledger.log.entry import HEADER_SIZE, MAGIC
from doctor.check.columns import Columns, Ints
from doctor.check.index_check import key_hashes, list_index, open_index
from doctor.check.unit_check import open_index_units
from doctor.read.directory import StoreLayout
from doctor.read.unit_files import INDEX_UNIT
from doctor.repair.rebuild_queues import swap
from ledgermq.durable_files import sync
from ledgermq.index_files import name_after, write_index_file
from ledgermq.message.index_unit import FIRST_ENTRY, IndexLayout
from ledgermq.store_progress import CHECKPOINT_NAME
from store.directory.checkpoint import decode_checkpoint


def index_layout(old: StoreLayout, otherwise: IndexLayout | None) -> IndexLayout | None:
    """Return the sizes of the old index files; `otherwise` where only a checkpoint tells of an index; else None."""
    if old.is_bare:
        return None
    for path in list_index(old.root):
        try:
            return open_index(path).layout
        except (ValueError, OSError):
            continue
    path = old.root / CHECKPOINT_NAME
    was_there = path.exists() and decode_checkpoint(path.read_bytes()[:4096]).index_timestamp > 0
    return (otherwise or IndexLayout()) if was_there or (old.root / "index").is_dir() else None


class IndexRebuilder:
    """Rebuilds `root/index`, a whole file at a time. Files are named by the store time of their first record."""

    def __init__(self, root: Path, layout: IndexLayout) -> None:
        self._folder = root / "index.new"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._layout = layout
        self._waiting: list[tuple[Ints, Ints, Ints]] = []
        self._count = 0
        self._end_ms = 0
        self._name = ""

    @property
    def has_entries(self) -> bool:
        """Whether the new index has entries."""
        return bool(self._name)

    def put(self, columns: Columns, optional: npt.NDArray[np.bool_]) -> None:
        """Add the keys of one log file's records, except those that are `optional`."""
        keep = ~optional[columns.key_owners]
        owners = columns.key_owners[keep]
        part = key_hashes(columns)[keep], columns.physical_offsets[owners], columns.timestamps[owners]
        room = self._layout.entries - FIRST_ENTRY
        while len(part[0]):
            take = min(len(part[0]), room - self._count)
            self._waiting.append((part[0][:take], part[1][:take], part[2][:take]))
            self._count += take
            part = part[0][take:], part[1][take:], part[2][take:]
            if self._count == room:
                self._write()

    def finish(self) -> None:
        """Make the new index durable and put it in the place of the old one."""
        if self._count:
            self._write()
        sync(self._folder)
        swap(self._folder.with_name("index"))

    def _write(self) -> None:
        self._name = name_after(self._name, int(self._waiting[0][2][0]))
        write_index_file(self._folder / self._name, self._layout, self._waiting, self._end_ms)
        self._waiting, self._count, self._end_ms = [], 0, int(self._waiting[-1][2][-1])


@dataclass(slots=True)
class UnitBuilder:
    """Rebuilds DLedger's index files. `file_size` in bytes."""

    folder: Path
    file_size: int
    _files: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, layout: StoreLayout, old: StoreLayout) -> "UnitBuilder":
        """Return a builder for the store at `layout`, with files as long as those of `old`."""
        assert layout.unit_dir is not None, "a classic store has none"
        folder = layout.unit_dir.with_name(layout.unit_dir.name + ".new")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return cls(folder, open_index_units(old).file_size)

    def put(self, columns: Columns) -> None:
        """Write the units of one data file's entries."""
        units = np.zeros(len(columns.entry_indexes), INDEX_UNIT)
        if not len(units):
            return
        units["magic"], units["position"] = MAGIC, columns.physical_offsets - HEADER_SIZE
        units["size"], units["index"] = columns.sizes + HEADER_SIZE, columns.entry_indexes
        units["term"] = columns.terms
        data = units.tobytes()
        position = int(columns.entry_indexes[0]) * INDEX_UNIT.itemsize
        while data:
            start = position - position % self.file_size
            piece = data[: start + self.file_size - position]
            self._write(self.folder / f"{start:020d}", position - start, piece)
            data, position = data[len(piece) :], position + len(piece)

    def _write(self, path: Path, position: int, data: bytes) -> None:
        with path.open("r+b" if path in self._files else "wb") as file:
            if path not in self._files:
                file.truncate(self.file_size)
                self._files.add(path)
            os.pwrite(file.fileno(), data, position)

    def finish(self) -> None:
        """Make the new files durable and put them in the place of the old ones."""
        for path in self._files:
            sync(path)
        sync(self.folder)
        swap(self.folder.with_suffix(""))
