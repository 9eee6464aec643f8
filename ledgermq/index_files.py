"""Builds whole index files, for the doctor and for Spark, without the code with which a broker builds its index.

    h("topic#key") = h("topic#") * 31^n + h(key), n the UTF-16 units of the key        modulo 2^32

Keys of the same length are hashed together, a column at a time. A file's links follow from the hashes of all its
entries: an entry's `previous` is the entry before it with the same slot, and the slot has the number of the last one.
"""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ledgermq.message.hashing import java_string_hash
from ledgermq.message.index_unit import FIRST_ENTRY, HEADER, SECONDS_MAX, IndexLayout

ENTRY: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_MASK = 0xFFFF_FFFF

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def prefix_hash(topic: bytes) -> int:
    """Return the hash of `topic#`, unsigned; invalid UTF-8 counts as U+FFFD, as in Java."""
    return java_string_hash(topic.decode(errors="replace") + "#") & _MASK


def index_hashes(prefixes: npt.NDArray[np.uint32], keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the hash that an index entry has for each key after the `prefix_hash` of its topic; 0 or more."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    result = np.zeros(len(keys), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        group = keys if len(rows) == len(keys) else [keys[row] for row in rows.tolist()]
        blob = b"".join(group)
        if blob.isascii():
            result[rows] = _columns(prefixes[rows], np.frombuffer(blob, np.uint8).reshape(len(rows), int(length)))
        else:
            result[rows] = [_one(int(prefixes[row]), keys[row]) for row in rows.tolist()]
    signed = np.abs(result.view(np.int32).astype(np.int64))
    return np.where(signed == 1 << 31, 0, signed)


def _columns(hashes: npt.NDArray[np.uint32], units: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    for column in units.T:
        hashes = hashes * np.uint32(31) + column
    return hashes


def _one(prefix: int, key: bytes) -> int:
    text = key.decode(errors="replace")
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return (prefix * pow(31, units, 1 << 32) + java_string_hash(text)) & _MASK


def link(slots: Ints, heads: npt.NDArray[np.int32], first: int = FIRST_ENTRY) -> Ints:
    """Return `previous` of the entries from number `first` on, which have these slots.

    `heads` has the newest entry of every slot, 0 for none, and is updated.
    """
    order = np.argsort(slots, kind="stable")
    in_order, numbers = slots[order], order + first
    begins = np.append(True, in_order[1:] != in_order[:-1])[: len(slots)]
    befores = np.append(0, numbers[:-1])[: len(slots)]
    befores[begins] = heads[in_order[begins]]
    heads[in_order] = numbers  # of equal slots the last assignment wins
    previous = np.empty(len(slots), np.int64)
    previous[order] = befores
    return previous


def write_index_file(path: Path, layout: IndexLayout, keys: Iterable[tuple[Ints, Ints, Ints]], before_ms: int) -> None:
    """Write one index file with RocketMQ's content; it is durable on return.

    Args:
        path: path of the file.
        layout: sizes of the file, with room for the entries.
        keys: chunks of hashes, physical offsets of the records and their store times (ms); only one chunk and the slots
            are in memory.
        before_ms: store time of the last entry of the file before; 0 without one.

    Raises:
        OSError: the disk refuses.
    """
    heads = np.zeros(layout.slots, np.int32)
    number, firsts, lasts, start_ms = FIRST_ENTRY, (0, 0), (0, 0), 0
    with path.open("wb") as file:
        file.truncate(layout.file_size)
        file.seek(layout.entry_at(FIRST_ENTRY))
        for hashes, offsets, times_ms in keys:
            entries = np.zeros(len(hashes), ENTRY)
            entries["hash"], entries["offset"] = hashes, offsets
            entries["previous"] = link(hashes % layout.slots, heads, number)
            lasts = int(times_ms[-1]), int(offsets[-1])
            begins = np.full(len(hashes), start_ms)
            if number == FIRST_ENTRY:
                firsts, start_ms = (int(times_ms[0]), int(offsets[0])), int(times_ms[0])
                begins[:] = start_ms
                begins[0] = before_ms or start_ms  # the first entry counts from the end time of the file before
            entries["seconds"] = np.clip((times_ms - begins) // 1000, 0, SECONDS_MAX)
            file.write(entries.tobytes())
            number += len(entries)
        header = HEADER.pack(firsts[0], lasts[0], firsts[1], lasts[1], int(np.count_nonzero(heads)), number)
        file.seek(0)
        file.write(header)
        file.write(heads.astype(">i4").data)
        file.flush()
        os.fsync(file.fileno())


def name_after(name: str, time_ms: int) -> str:
    """Return the name of the file whose first record has this store time; it is later than the name before.

    It is the local time as yyyyMMddHHmmssSSS.
    """
    while True:
        found = f"{datetime.fromtimestamp(time_ms // 1000):%Y%m%d%H%M%S}{time_ms % 1000:03d}"
        if found > name:
            return found
        time_ms += 1
