"""Rebuild of consume queues from a log, one task for each of its files, without a shuffle.

    file of the log --> records of queues --> unit at queue_offset * 20 of its queue's files

Where a unit lies follows from its record alone, so tasks write side by side, and a task that runs again writes the same
bytes. The driver then writes blank units (size 0x7FFFFFFF) where a queue begins inside a file, or lacks offsets: the
bytes are those that the store and the doctor write. All goes to a side directory, which is put in place at the end.

Not rebuilt: batch and light queues: a log with such records is refused. Delayed messages have the due times of the
default levels. `ledgermq store repair` handles all of them. The index by key is rebuilt by `rebuild_index`.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from ledgermq.durable_files import sync
from ledgermq.message.flags import INNER_BATCH, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ledgermq.message.frames import QUEUE_UNIT, Ints
from ledgermq.message.hashing import tags_code
from ledgermq.message.queue_unit import SCHEDULE_TOPIC, UNIT_SIZE, unit_code
from ledgermq.message.record import decode_record
from ledgermq.spark.columns import may_have_properties, record_batch
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import local_path, offset_files, open_store, queue_folders
from ledgermq.spark.parts import Block, Damage, LogPart, plan_parts, read_part

FILE_SIZE: Final = 6_000_000
"""Bytes of a file of a consume queue, unless the store's own are of another length."""

_BLANK_SIZE: Final = 0x7FFFFFFF
_BLANKS_MAX: Final = 1 << 24
_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "phys_offset", "size", "sys_flag", "tags")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive units `[first, end)` of one queue that a task wrote, and the last one's physical offset."""

    topic: str
    queue_id: int
    first: int
    end: int
    last_physical: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild has written: queues, and units of records."""

    queues: int
    units: int


def rebuild(spark: SparkSession, store: str, output: str | None = None, *, file_size: int | None = None) -> Rebuilt:
    """Rebuild the consume queues of a store.

    Args:
        spark: runs a task for each file of the log.
        store: a store directory.
        output: a directory for the queues, which must not exist; None: they replace those of the store, which nobody
            may have open.
        file_size: bytes of a file of a queue; None: as the store's own files are, else 6,000,000.

    Raises:
        NotAStoreError: `store` is none.
        OptionError: a path is a URI.
        DamagedLogError: the log is damaged; repair it first.
        PipelineError: the store is open, `output` exists, or the log has records that are not rebuilt here.
    """
    opened = open_store(store)
    if output is None and opened.is_live:
        raise PipelineError(f"{store} is open: stop its broker first, or give another directory")
    side = local_path(output) if output is not None else Path(opened.queues + ".new")
    size = file_size or _usual_size(opened.queues)
    size -= size % UNIT_SIZE
    try:
        if output is None:
            shutil.rmtree(side, ignore_errors=True)  # left by an interrupted run
        side.mkdir(parents=True)
        parts = plan_parts(opened, 0)
        task = partial(write_units, side, size)
        found = spark.sparkContext.parallelize(parts, max(len(parts), 1)).map(task).collect()
        rebuilt = write_blanks(side, size, [run for runs in found for run in runs])
        if output is None:
            swap(side, Path(opened.queues))
    except OSError as error:
        raise PipelineError(f"{error.filename or side}: {error.strerror or error}") from None
    return rebuilt


def _usual_size(queues: str) -> int:
    for _, _, folder in queue_folders(queues):
        for file in offset_files(folder):
            return file.length
    return FILE_SIZE


def write_units(side: Path, size: int, part: LogPart) -> list[Run]:
    """Write the units of one file's records; returns them as runs, in the order of the log.

    Raises:
        DamagedLogError, PipelineError: see `rebuild`.
        OSError: the disk refuses.
    """
    runs: list[Run] = []
    written: set[Path] = set()
    for found in read_part(part, verify=False):
        if isinstance(found, Damage):
            raise DamagedLogError(found.path, found.physical_offset, f"{found.detail}; repair the store first")
        batch = record_batch(found, _COLUMNS, None)
        flags = batch.column("sys_flag").to_numpy()
        _refuse_others(found, flags)
        kind = flags & TRANSACTION_MASK
        rows = np.flatnonzero((kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK))
        codes = _codes(found, batch)[rows]
        runs += _write_block(side, size, batch.take(pa.array(rows)), codes, written)
    for path in written:
        sync(path)
    return runs


def _refuse_others(block: Block, flags: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
    """Raise for records whose units depend on other records."""
    if (flags & INNER_BATCH).any() or (may_have_properties(block, b"INNER_") and _has_inner(block)):
        raise PipelineError("the log has records of batch or light queues, which only `ledgermq store repair` rebuilds")


def _has_inner(block: Block) -> bool:
    names = pc.unique(record_batch(block, ["properties"], None).column(0).keys).to_pylist()
    return any(name.startswith("INNER_") for name in names)


def _codes(block: Block, batch: pa.RecordBatch) -> Ints:
    """Return the codes of the records' units."""
    tags = batch.column("tags").dictionary_encode()
    each = np.array([*(tags_code(text) for text in tags.dictionary.to_pylist()), 0], np.int64)
    codes: Ints = each[tags.indices.fill_null(len(each) - 1).to_numpy()]
    delayed = pc.equal(batch.column("topic"), SCHEDULE_TOPIC.decode()).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(delayed).tolist():
        found = decode_record(block.record(row), check_crc=False)
        codes[row] = unit_code(SCHEDULE_TOPIC, found.properties, found.store_timestamp)
    return codes


def _write_block(side: Path, size: int, batch: pa.RecordBatch, codes: Ints, written: set[Path]) -> list[Run]:
    topics = batch.column("topic").dictionary_encode()
    units = np.zeros(batch.num_rows, QUEUE_UNIT)
    units["physical"], units["size"] = batch.column("phys_offset").to_numpy(), batch.column("size").to_numpy()
    units["code"] = codes
    numbers = batch.column("queue_offset").to_numpy()
    queue_ids = batch.column("queue_id").to_numpy().astype(np.int64)
    queues = topics.indices.to_numpy().astype(np.int64) << 32 | queue_ids
    order = np.argsort(queues, kind="stable")
    breaks = (np.diff(queues[order]) != 0) | (np.diff(numbers[order]) != 1)
    bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)] if len(order) else [0]
    names, runs = topics.dictionary.to_pylist(), []
    for low, high in pairwise(bounds):
        rows = order[low:high]
        topic, queue_id, first = names[queues[rows[0]] >> 32], int(queue_ids[rows[0]]), int(numbers[rows[0]])
        if not topic or "/" in topic or topic in (".", "..") or "\0" in topic or first < 0:
            raise PipelineError(f"topic {topic!r}, queue offset {first}: no queue can have it; repair the store first")
        _write(side / topic / str(queue_id), size, first, units[rows].tobytes(), written)
        runs.append(Run(topic, queue_id, first, first + len(rows), int(units["physical"][rows[-1]])))
    return runs


def write_blanks(side: Path, size: int, runs: Sequence[Run]) -> Rebuilt:
    """Write blank units where queues begin inside a file or lack offsets; `runs` are in the order of the log.

    Raises:
        PipelineError: two records have one queue offset, or too many offsets are missing.
        OSError: the disk refuses.
    """
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    written: set[Path] = set()
    for run in runs:
        name = run.topic, run.queue_id
        end, physical = ends.get(name, (run.first - run.first % (size // UNIT_SIZE), 0))
        if not 0 <= run.first - end <= _BLANKS_MAX:
            raise PipelineError(f"{run.topic}/{run.queue_id}: queue offset {run.first} follows {end}; repair the store")
        if run.first > end:
            blanks = np.zeros(run.first - end, QUEUE_UNIT)
            blanks["physical"], blanks["size"] = physical, _BLANK_SIZE
            _write(side / run.topic / str(run.queue_id), size, end, blanks.tobytes(), written)
        ends[name] = run.end, run.last_physical
    for path in written:
        sync(path)
    for folder in sorted({side, *(side / topic for topic, _ in ends), *(side / topic / str(n) for topic, n in ends)}):
        sync(folder)
    return Rebuilt(len(ends), sum(run.end - run.first for run in runs))


def _write(folder: Path, size: int, first: int, data: bytes, written: set[Path]) -> None:
    """Write units from number `first` on into the files of a queue."""
    folder.mkdir(parents=True, exist_ok=True)
    position = first * UNIT_SIZE
    while data:
        start = position - position % size
        piece = data[: start + size - position]
        path = folder / f"{start:020d}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)  # other tasks may have created it with the same length
            os.pwrite(descriptor, piece, position - start)
        finally:
            os.close(descriptor)
        written.add(path)
        data, position = data[len(piece) :], position + len(piece)


def swap(side: Path, place: Path) -> None:
    """Put a finished directory in the place of another one; raises OSError."""
    old = place.with_name(place.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    side.rename(place)
    sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)
