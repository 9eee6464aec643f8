"""Rebuild of the index by key from a log: a task for each file of the log, then one for each file of the index.

    file of the log --> hash, offset and time of each key, in a file beside the index    (how many: to the driver)
    index file n    <-- the keys of its range, taken out of these files

Which keys a file holds follows from their numbers in the log, and its links from its keys. So tasks run side by side,
and one that runs again writes the same bytes: those that the doctor writes. All goes to a side directory, which is put
in place at the end. A task has a part of its keys, and the slots of its index file, in memory.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import SparkSession

from ledgermq.durable_files import sync
from ledgermq.index_files import Ints, index_hashes, name_after, prefix_hash, write_index_file
from ledgermq.message.index_unit import FIRST_ENTRY, IndexLayout, index_keys
from ledgermq.message.record import dispatch_fields
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import local_path, open_store
from ledgermq.spark.parts import Block, Damage, LogPart, plan_parts, read_part
from ledgermq.spark.rebuild import swap

_KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
_KEYS: Final = "keys"
_KEYS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The keys of one file of the log, in its order: where they lie, and how many there are."""

    path: str
    count: int


@dataclass(frozen=True, slots=True)
class IndexPart:
    """One file of the index: its name, the numbers `[first, end)` of its keys in the log, the time before these."""

    name: str
    first: int
    end: int
    before_ms: int


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """What a rebuild has written: files of the index, and entries in them."""

    files: int
    entries: int


def rebuild_index(
    spark: SparkSession, store: str, output: str | None = None, *, layout: IndexLayout | None = None
) -> RebuiltIndex:
    """Rebuild the index by key of a store.

    Args:
        spark: runs the tasks.
        store: a store directory.
        output: a directory for the index, which must not exist; None: it replaces that of the store, which nobody may
            have open.
        layout: sizes of the files (maxHashSlotNum, maxIndexNum); None: RocketMQ's defaults.

    Raises:
        NotAStoreError: `store` is none.
        OptionError: a path is a URI.
        DamagedLogError: the log is damaged; repair it first.
        PipelineError: the store is open, `output` exists, or the files that it replaces have other sizes.
    """
    opened = open_store(store)
    place = Path(opened.root) / "index"
    sizes = layout or IndexLayout()
    if output is None and opened.is_live:
        raise PipelineError(f"{store} is open: stop its broker first, or give another directory")
    side = local_path(output) if output is not None else place.with_name("index.new")
    try:
        _check_sizes(place, sizes)
        if output is None:
            shutil.rmtree(side, ignore_errors=True)  # left by an interrupted run
        (side / _KEYS).mkdir(parents=True)
        parts = plan_parts(opened, 0)
        context = spark.sparkContext
        found = context.parallelize(parts, max(len(parts), 1)).map(partial(write_keys, side)).collect()
        files = index_parts(found, sizes)
        context.parallelize(files, max(len(files), 1)).foreach(partial(write_index, side, sizes, found))
        finish(side)
        if output is None:
            swap(side, place)
    except OSError as error:
        raise PipelineError(f"{error.filename or side}: {error.strerror or error}") from None
    return RebuiltIndex(len(files), sum(each.count for each in found))


def _check_sizes(place: Path, layout: IndexLayout) -> None:
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if path.is_file() and path.stat().st_size != layout.file_size:
            remark = f"{path} has {path.stat().st_size} bytes, not {layout.file_size}"
            raise PipelineError(f"{remark}: give the slots and entries of the store's index files")


def write_keys(side: Path, part: LogPart) -> KeyFile:
    """Write the keys of one file's records.

    Raises:
        DamagedLogError: the log is damaged.
        OSError: the disk refuses.
    """
    path = side / _KEYS / f"{part.file.start:020d}"
    new = path.with_suffix(".new")
    count = 0
    with new.open("wb") as file:
        for found in read_part(part, verify=False):
            if isinstance(found, Damage):
                raise DamagedLogError(found.path, found.physical_offset, f"{found.detail}; repair the store first")
            keys = keys_of(found)
            count += len(keys)
            file.write(keys.tobytes())
    new.replace(path)
    return KeyFile(str(path), count)


def keys_of(block: Block) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Return hash, offset and time of each key of a block's records, in order."""
    data = block.data.tobytes()
    flags = block.heads["sys_flag"].tolist()
    times = block.heads["stored"].astype(np.int64)
    prefixes: list[int] = []
    keys: list[bytes] = []
    rows: list[int] = []
    spots = zip(block.common.tolist(), block.tails.tolist(), block.ends.tolist(), flags, strict=True)
    for row, (is_common, tail, end, flag) in enumerate(spots):
        if is_common:
            cut = tail + 1 + data[tail]
            topic, properties = data[tail + 1 : cut], data[cut + 2 : end]
        else:
            _, _, flag, _, _, times[row], topic, properties = dispatch_fields(block.record(row), 0)
        for key in index_keys(flag, properties):
            prefixes.append(prefix_hash(topic))
            keys.append(key)
            rows.append(row)
    found = np.zeros(len(keys), _KEY)
    owners = np.array(rows, np.int64)
    found["hash"] = index_hashes(np.array(prefixes, np.uint32), keys)
    found["offset"], found["time"] = block.base + block.starts[owners], times[owners]
    return found


def index_parts(found: Sequence[KeyFile], layout: IndexLayout) -> list[IndexPart]:
    """Divide the keys of a log, in its order, into files of the index.

    Raises:
        OSError: the keys cannot be read.
    """
    total = sum(each.count for each in found)
    parts: list[IndexPart] = []
    name, before_ms = "", 0
    room = layout.entries - FIRST_ENTRY
    for first in range(0, total, room):
        end = min(first + room, total)
        name = name_after(name, int(_read(found, first, first + 1)["time"][0]))
        parts.append(IndexPart(name, first, end, before_ms))
        before_ms = int(_read(found, end - 1, end)["time"][0])
    return parts


def write_index(side: Path, layout: IndexLayout, found: Sequence[KeyFile], part: IndexPart) -> None:
    """Write one file of the index.

    Raises:
        OSError: the disk refuses.
    """
    write_index_file(side / part.name, layout, _keys_of(found, part), part.before_ms)


def _keys_of(found: Sequence[KeyFile], part: IndexPart) -> Iterator[tuple[Ints, Ints, Ints]]:
    for first in range(part.first, part.end, _KEYS_AT_ONCE):
        keys = _read(found, first, min(first + _KEYS_AT_ONCE, part.end))
        yield keys["hash"].astype(np.int64), keys["offset"].astype(np.int64), keys["time"].astype(np.int64)


def finish(side: Path) -> None:
    """Remove the tasks' own files, and make the directory durable."""
    shutil.rmtree(side / _KEYS)
    sync(side)


def _read(found: Sequence[KeyFile], first: int, end: int) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Return the keys of numbers `[first, end)`."""
    pieces = [np.zeros(0, _KEY)]
    for each, behind in zip(found, accumulate(each.count for each in found), strict=True):
        start = behind - each.count
        low, high = max(first, start), min(end, behind)
        if low < high:
            pieces.append(np.fromfile(each.path, _KEY, high - low, offset=(low - start) * _KEY.itemsize))
    return np.concatenate(pieces)
