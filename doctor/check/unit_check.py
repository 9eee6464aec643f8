"""Compares DLedger's index files with its entries: the unit of entry `i` is at `i * 32`."""

import numpy as np
import numpy.typing as npt

from dledger.log.entry import HEADER_SIZE
from doctor.check.columns import Columns
from doctor.check.findings import BEHIND, Fault
from doctor.check.queue_check import find_spans
from doctor.read.directory import StoreLayout
from doctor.read.unit_files import INDEX_UNIT, UnitFiles, open_units

INDEX_FILE_SIZE = 5 * 1024 * 1024 * INDEX_UNIT.itemsize


def open_index_units(layout: StoreLayout) -> UnitFiles:
    """Open the index files of a DLedger store."""
    assert layout.unit_dir is not None, "a classic store has none"
    return open_units(layout.unit_dir, INDEX_UNIT, INDEX_FILE_SIZE)


def check_index_units(layout: StoreLayout, columns: Columns) -> list[Fault]:
    """Compare the entries of one data file with their units."""
    if not len(columns.entry_indexes):
        return []
    units = open_index_units(layout)
    numbers = columns.entry_indexes
    first = int(numbers.min())
    found = units.read(first, int(numbers.max()) - first + 1)[numbers - first]
    bad = found["position"] != columns.physical_offsets - HEADER_SIZE
    bad |= found["size"] != columns.sizes + HEADER_SIZE
    bad |= (found["index"] != numbers) | (found["term"] != columns.terms)
    missing = bad & (found["size"] == 0)
    faults = _runs(layout, units, numbers[missing], "unit-missing", "no index units")
    return faults + _runs(layout, units, numbers[bad & ~missing], "unit-wrong", "units that contradict their entries")


def check_units_behind(layout: StoreLayout, first_index: int, last_index: int) -> list[Fault]:
    """Return the units of entries that the log does not have, and faults in the sequence of the files."""
    units = open_index_units(layout)
    faults = [Fault(layout.name(path), 0, "bad-name", "is not named by 20 digits") for path in units.strangers]
    for file in units.files:
        if file.length != units.file_size:
            detail = f"is {file.length} bytes long, the others {units.file_size}"
            faults.append(Fault(layout.name(file.path), min(file.length, units.file_size), "bad-length", detail))
    if layout.holder is not None:
        return faults
    end = units.used_end()
    if end > last_index + 1:
        path, position = units.place(last_index + 1)
        detail = f"units of entries {last_index + 1} to {end - 1}, {BEHIND}"
        faults.append(Fault(layout.name(path), position, "unit-wrong", detail))
    return faults


def _runs(layout: StoreLayout, units: UnitFiles, numbers: npt.NDArray[np.int64], kind: str, what: str) -> list[Fault]:
    faults = []
    for first, end in find_spans(numbers) if len(numbers) else []:
        path, position = units.place(first)
        faults.append(Fault(layout.name(path), position, kind, f"{what} for entries {first} to {end - 1}"))
    return faults
