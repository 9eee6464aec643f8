"""Finds the number of slots of an index file, which the file does not say: it depends on the broker's configuration.

    length = 40 + 4 * slots + 20 * entries        so slots are known up to a multiple of five

RocketMQ's default is four entries a slot. Other ratios are found by the last entry: it is the one whose offset the
header names, and its slot points back at it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from doctor.read.raw_file import FileWindow, as_bytes
from ledgermq.message.index_unit import (
    ENTRIES_DEFAULT,
    ENTRY,
    ENTRY_SIZE,
    FIRST_ENTRY,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    SLOTS_DEFAULT,
    IndexHeader,
    IndexLayout,
)

_RATIO: Final = ENTRIES_DEFAULT // SLOTS_DEFAULT
_STEP: Final = ENTRY_SIZE // SLOT_SIZE
_OFFSET_AT: Final = 4


def infer_layout(window: FileWindow, header: IndexHeader) -> IndexLayout:
    """Return the sizes that fit the file; those of the default ratio where several do.

    Raises:
        ValueError: none does.
    """
    last = header.entry_count - 1
    usual, rest = divmod(window.length - HEADER_SIZE, SLOT_SIZE + _RATIO * ENTRY_SIZE)
    is_usual = not rest and usual > 0
    if is_usual and (last < FIRST_ENTRY or _fits_one(window, usual, last, header.end_offset)):
        return _layout(window.length, usual)
    candidates = _candidates(window.length)
    if not len(candidates):
        raise ValueError(f"is {window.length} bytes long, which fits no known number of slots and entries")
    if last >= FIRST_ENTRY:
        data = as_bytes(window.read(0, window.length))
        fitting = candidates[_fits(data, candidates, last, header.end_offset)]
        if len(fitting):
            return _layout(window.length, int(fitting[-1]))
    return _layout(window.length, usual if is_usual else int(candidates[-1]))


def _candidates(length: int) -> npt.NDArray[np.int64]:
    """Return the slot counts that leave a whole number of entries, at least two."""
    units, rest = divmod(length - HEADER_SIZE, SLOT_SIZE)
    most = (length - HEADER_SIZE - 2 * ENTRY_SIZE) // SLOT_SIZE
    first = units % _STEP or _STEP
    return np.arange(first, most + 1, _STEP, dtype=np.int64) if rest == 0 and most > 0 else np.zeros(0, np.int64)


def _fits_one(window: FileWindow, slots: int, last: int, end_offset: int) -> bool:
    """Return what `_fits` returns, for one slot count, by two small reads."""
    layout = _layout(window.length, slots)
    entry = window.read(layout.entry_at(last), ENTRY_SIZE)
    if len(entry) < ENTRY_SIZE:
        return False
    key_hash, offset, _, _ = ENTRY.unpack(entry)
    slot = window.read(layout.slot_at(max(key_hash, 0)), SLOT_SIZE)
    return bool(offset == end_offset and key_hash >= 0 and SLOT.unpack(slot)[0] == last)


def _layout(length: int, slots: int) -> IndexLayout:
    return IndexLayout(slots, (length - HEADER_SIZE - slots * SLOT_SIZE) // ENTRY_SIZE)


def _fits(
    data: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64], last: int, end_offset: int
) -> npt.NDArray[np.bool_]:
    """Return which of these slot counts put the last entry at its place."""
    at = HEADER_SIZE + slots * SLOT_SIZE + last * ENTRY_SIZE
    result: npt.NDArray[np.bool_] = at + ENTRY_SIZE <= len(data)
    at = np.where(result, at, 0)
    result &= _numbers(data, at + _OFFSET_AT, ">i8") == end_offset
    key_hash = _numbers(data, at, ">i4")
    result &= key_hash >= 0
    slot = HEADER_SIZE + np.where(result, key_hash % slots, 0) * SLOT_SIZE
    result &= _numbers(data, slot, ">i4") == last
    return result


def _numbers(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.int64]:
    size = np.dtype(kind).itemsize
    picked = np.ascontiguousarray(data[at[:, None] + np.arange(size)])
    return picked.view(kind).reshape(-1).astype(np.int64)
