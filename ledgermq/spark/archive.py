"""Archives a log in Parquet, and restores it byte for byte. One task for each segment (sealed file of a log).

    segment --> blocks --> row groups: columns of each record | its bytes: head, body, tail
       |                                        |                                |
    SHA-256 ----------> manifest, last <--------+                                '--> restored segment --> SHA-256

`head`, `body` and `tail` of all rows, concatenated, are the segment: records with the headers of their Raft entries,
padding and, if wanted, damage. Bodies have a column of their own, so that the compressor skips incompressible bodies
quickly.

Each file is written under a temporary name, synced and renamed; the manifest comes last. A killed job is simply run
again: it writes segments without a manifest anew, and compares the others.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ledgermq.archive import (
    Manifest,
    ManifestError,
    QueueRange,
    archived_starts,
    manifest_path,
    parquet_fault,
    parquet_path,
    read_manifest,
    segment_name,
    sha256_of,
    sync,
)
from ledgermq.durable_files import replace_durably
from ledgermq.lock_holder import lock_holder
from ledgermq.message.entry_header import HEADER_SIZE
from ledgermq.message.frames import Bytes, Ints
from ledgermq.message.layout import HEAD_SIZES
from ledgermq.spark.columns import record_batch, views
from ledgermq.spark.errors import ArchiveError, DamagedLogError, PipelineError
from ledgermq.spark.log_files import DLEDGER, LogFile, StoreDirectory, local_path, open_store
from ledgermq.spark.parts import Block, Damage, LogPart, prepare_worker, read_part
from ledgermq.store_progress import read_progress

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("phys_offset", pa.int64()),
        ("store_ts", pa.timestamp("us", tz="UTC")),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("head", pa.binary_view()),
        ("body", pa.binary_view()),
        ("tail", pa.binary_view()),
    ]
)
"""Columns of an archived segment; padding has only `head`. Parquet does not tell views from other binary columns."""

_BLOCK_BYTES: Final = 16 << 20
_ROW_GROUP_BYTES: Final = 8 << 20
"""At least; as a rule a block is a row group."""
_GAP_BYTES: Final = 4 << 20
_HEADS: Final = np.array(HEAD_SIZES, np.int64)
_BYTES: Final = ["head", "body", "tail"]
_NARROW: Final = [name for name in SCHEMA.names if name not in _BYTES]


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a task for one segment.

    Attributes:
        was_there: whether an earlier job had done it correctly.
    """

    start: int
    length: int
    was_there: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify`: correct segments, and one sentence for each fault."""

    segments: int
    length: int
    faults: tuple[str, ...]


def archive(spark: SparkSession, store: str, directory: str, *, keep_damage: bool = False) -> list[Done]:
    """Archive every sealed file of a store's log.

    Args:
        spark: runs the tasks.
        store: a store directory; a broker may have it open.
        directory: the archive of this log alone; it is created.
        keep_damage: archive damaged segments too.

    Returns:
        The segments in order, see `sealed_files`.

    Raises:
        NotAStoreError: `store` is not a store.
        OptionError: a path is a URI.
        ArchiveError: the archive holds other bytes for a segment, or cannot be written.
        DamagedLogError: a segment is damaged. All others are archived.
    """
    opened, target = open_store(store), local_path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(f"{directory}: {error.strerror}") from None
    task = partial(archive_segment, target, opened.kind, keep_damage=keep_damage)
    return _each(spark, sealed_files(opened), task)


def sealed_files(store: StoreDirectory) -> list[LogFile]:
    """Return the files of a log that no broker will change, which excludes the last one.

    If the checkpoint is LedgerMQ's, all their records are confirmed and durable, too: a member of a Raft group may have
    to rewrite other files.
    """
    progress, files = read_progress(Path(store.root)), list(store.files[:-1])
    if progress is None:
        return files
    end = min(progress.flushed_offset, progress.dispatched_offset)
    return [file for file in files if file.start + file.length <= end]


def restore(spark: SparkSession, directory: str, output: str) -> list[Done]:
    """Write the archived segments into a new store directory: `OUTPUT/commitlog` or `OUTPUT/dledger-restored/data`.

    Raises:
        OptionError: a path is a URI.
        ArchiveError: nothing is archived; another log is in `output`, or a process has it open; the archive is
            damaged, lacks a segment between others, or other files are at the place of a segment. All other segments
            are restored.
    """
    manifests = _manifests(directory)
    if not manifests:
        raise ArchiveError(f"{directory} holds no manifest")
    if len({manifest.kind for manifest in manifests}) > 1:
        raise ArchiveError(f"{directory} holds segments of classic and of Raft logs")
    target = local_path(output)
    folder = target / ("dledger-restored/data" if manifests[0].kind == DLEDGER else "commitlog")
    _check_output(target, folder)
    done = _each(spark, manifests, partial(restore_segment, Path(directory), folder))
    for gap in _gaps(manifests):
        raise ArchiveError(f"{gap}; all that is archived is restored")
    return done


def verify(spark: SparkSession, directory: str) -> Verdict:
    """Restore each segment in memory, compare it with its manifest, and look for missing segments and manifests.

    Raises:
        OptionError: the directory is a URI.
        ArchiveError: it cannot be read.
    """
    manifests = _manifests(directory)
    named = {parquet_path(Path(directory), manifest.start) for manifest in manifests}
    others = sorted(set(Path(directory).glob("[0-9]*.parquet")) - named)
    faults = [*_gaps(manifests), *(f"{path} has no manifest: archive the log again" for path in others)]
    found = _each(spark, manifests, partial(segment_fault, Path(directory)))
    faults += [fault for fault in found if fault is not None]
    return Verdict(len(manifests), sum(manifest.length for manifest in manifests), tuple(faults))


def _each(spark: SparkSession, items: Sequence[Any], task: Callable[[Any], Any]) -> list[Any]:
    if not items:
        return []
    found = list(spark.sparkContext.parallelize(items, len(items)).map(partial(_outcome, task)).collect())
    for outcome in found:
        if isinstance(outcome, PipelineError):
            raise outcome
    return found


def _outcome(task: Callable[[Any], Any], item: Any) -> Any:
    """Return the task's result or exception, so that one bad segment does not stop the others."""
    prepare_worker()
    try:
        return task(item)
    except PipelineError as error:
        return error


def _gaps(manifests: Sequence[Manifest]) -> list[str]:
    return [
        f"no segment is archived between {before.start + before.length} and {after.start}"
        for before, after in pairwise(manifests)
        if before.start + before.length != after.start
    ]


def _check_output(output: Path, folder: Path) -> None:
    """Create the folder of the restored log, unless `output` is in use or has another log.

    Raises:
        ArchiveError: one of these, or the folder cannot be created.
    """
    if (pid := lock_holder(output)) is not None:
        raise ArchiveError(f"{output}: process {pid} has the store open")
    for other in (output / "commitlog", *output.glob("dledger-*/data")):
        if other.is_dir() and other != folder:
            raise ArchiveError(f"{output} has another log: {other}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(f"{folder}: {error.strerror}") from None


def _manifests(directory: str) -> list[Manifest]:
    archive = local_path(directory)
    try:
        found = [read_manifest(archive, start) for start in archived_starts(archive)]
    except (OSError, ManifestError) as error:
        raise ArchiveError(str(error)) from None
    return [manifest for manifest in found if manifest is not None]


# ---- one segment, in a task


def archive_segment(directory: Path, kind: str, file: LogFile, *, keep_damage: bool = False) -> Done:
    """Archive one segment, unless it is archived already.

    Raises:
        ArchiveError, DamagedLogError, PipelineError: see `archive`.
    """
    try:
        with _alone(directory, file.start):
            there = read_manifest(directory, file.start)
            if there is not None and (there.sha256, there.length) != (sha256_of(Path(file.path)), file.length):
                raise ArchiveError(
                    f"{manifest_path(directory, file.start)} is the manifest of other bytes than {file.path} has:"
                    " an archive holds one log"
                )
            if there is not None and parquet_fault(directory, there) is None:
                return Done(file.start, file.length, was_there=True)
            manifest = _write_segment(directory, kind, file, keep_damage=keep_damage)
            replace_durably(manifest_path(directory, file.start), manifest.encode(), sync_names=sync)
    except ManifestError as error:
        raise ArchiveError(str(error)) from None
    except OSError as error:
        raise ArchiveError(f"{error.filename or directory}: {error.strerror or error}") from None
    return Done(file.start, file.length, was_there=False)


def restore_segment(directory: Path, folder: Path, manifest: Manifest) -> Done:
    """Write one segment, unless it exists already.

    Raises:
        ArchiveError: the archive is damaged, another file is in the segment's place, or the disk fails.
    """
    target = folder / segment_name(manifest.start)
    temporary = target.with_suffix(".tmp")
    try:
        if target.exists():
            if sha256_of(target) == manifest.sha256:
                return Done(manifest.start, manifest.length, was_there=True)
            raise ArchiveError(f"{target} is there, with other bytes than the archive has")
        with _alone(folder, manifest.start), temporary.open("wb", buffering=0) as file:
            fault = _stream(directory, manifest, lambda piece: _write_all(file.fileno(), piece))
            if fault is not None:
                raise ArchiveError(fault)
            os.fsync(file.fileno())
            temporary.replace(target)
        sync(folder)
    except OSError as error:
        raise ArchiveError(f"{error.filename or target}: {error.strerror or error}") from None
    return Done(manifest.start, manifest.length, was_there=False)


def segment_fault(directory: Path, manifest: Manifest) -> str | None:
    """Return why a segment cannot be restored; None if it can."""
    try:
        return parquet_fault(directory, manifest) or _stream(directory, manifest, lambda piece: None)
    except OSError as error:
        return f"{error.filename or directory}: {error.strerror or error}"


def _stream(directory: Path, manifest: Manifest, put: Callable[[memoryview], None]) -> str | None:
    """Pass a segment's bytes to `put`, piece by piece; return how they differ from the manifest, or None."""
    path, found, length = parquet_path(directory, manifest.start), hashlib.sha256(), 0
    try:
        with pq.ParquetFile(path) as parquet:
            for number in range(parquet.num_row_groups):
                for batch in parquet.read_row_group(number, _BYTES).to_batches():
                    piece = _joined(batch)
                    found.update(piece)
                    put(piece)
                    length += len(piece)
    except pa.ArrowException as error:
        return f"{path}: {error}"
    if length != manifest.length or found.hexdigest() != manifest.sha256:
        return f"{path} holds {length} bytes that are not those of its manifest ({manifest.length} bytes)"
    return None


def _joined(batch: pa.RecordBatch) -> memoryview:
    """Return the concatenated bytes of all rows."""
    nothing = pa.scalar(b"", pa.binary())
    rows = pc.binary_join_element_wise(*batch.columns, nothing, null_handling="replace", null_replacement="")
    _, offsets, values = rows.buffers()
    return memoryview(values)[: int(np.frombuffer(offsets, np.int32)[len(rows)])]


@dataclass(slots=True)
class _Tally:
    """The sums of a segment's bytes and records for its manifest."""

    digest: Any = field(default_factory=hashlib.sha256)
    length: int = 0
    records: int = 0
    times: list[int] = field(default_factory=list)
    queues: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)

    def take(self, data: bytes | Bytes) -> None:
        """Count the next bytes."""
        self.digest.update(data)
        self.length += len(data)

    def add(self, group: pa.Table) -> None:
        """Count the records of a group; rows that are not records have no topic."""
        rows = group.select(["topic", "queue_id", "queue_offset", "store_ts"]).filter(pc.is_valid(group["topic"]))
        if not rows.num_rows:
            return
        self.records += rows.num_rows
        stored = pc.min_max(rows["store_ts"].cast(pa.int64())).as_py()
        self.times = [min([*self.times, stored["min"] // 1000]), max([*self.times, stored["max"] // 1000])]
        sums = rows.group_by(["topic", "queue_id"])
        for row in sums.aggregate(
            [("queue_offset", "min"), ("queue_offset", "max"), ("queue_offset", "count")]
        ).to_pylist():
            name = row["topic"], row["queue_id"]
            low, high, count = self.queues.get(name, (row["queue_offset_min"], row["queue_offset_max"], 0))
            self.queues[name] = (
                min(low, row["queue_offset_min"]),
                max(high, row["queue_offset_max"]),
                count + row["queue_offset_count"],
            )

    def ranges(self) -> tuple[QueueRange, ...]:
        """Return the queues, sorted by name."""
        return tuple(QueueRange(*name, *numbers) for name, numbers in sorted(self.queues.items()))


def _write_segment(directory: Path, kind: str, file: LogFile, *, keep_damage: bool) -> Manifest:
    """Write the Parquet file; return the manifest with the SHA-256 of the segment's bytes as they were read."""
    target, tally = parquet_path(directory, file.start), _Tally()
    temporary = target.with_name(f"_{target.name}.tmp")
    with (
        pa.OSFile(str(temporary), "wb") as opened,
        pq.ParquetWriter(
            opened, SCHEMA, compression="zstd", compression_level=1, use_dictionary=["topic", "tags"],
            write_statistics=_NARROW, store_schema=False,
        ) as writer,
        ThreadPoolExecutor(1) as thread,
    ):  # fmt: skip
        under_way: Future[None] | None = None
        for group in _groups(_batches(kind, file, tally, keep_damage=keep_damage), tally):
            tally.add(group)
            if under_way is not None:
                under_way.result()
            under_way = thread.submit(_write_group, writer, group)  # while the next is read, checked and hashed
        if under_way is not None:
            under_way.result()
    if tally.length != file.length:
        raise PipelineError(f"{file.path}: {tally.length} bytes were read, not {file.length}")
    sync(temporary)
    size, parquet_digest = temporary.stat().st_size, sha256_of(temporary)
    temporary.replace(target)
    sync(directory)
    low, high = tally.times or (0, 0)
    return Manifest(
        file.start, tally.length, tally.digest.hexdigest(), kind, tally.records, low, high, size, parquet_digest,
        tally.ranges(),
    )  # fmt: skip


def _groups(batches: Iterator[pa.RecordBatch], tally: _Tally) -> Iterator[pa.Table]:
    """Yield the rows of a segment in groups of at least `_ROW_GROUP_BYTES`; the last one may be smaller."""
    held: list[pa.RecordBatch] = []
    begin = tally.length
    for batch in batches:
        held.append(batch)
        if tally.length - begin >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, SCHEMA)
            held, begin = [], tally.length
    if held:
        yield pa.Table.from_batches(held, SCHEMA)


def _write_group(writer: pq.ParquetWriter, group: pa.Table) -> None:
    writer.write_table(group, row_group_size=group.num_rows)


def _batches(kind: str, file: LogFile, tally: _Tally, *, keep_damage: bool) -> Iterator[pa.RecordBatch]:
    """Yield all bytes of a segment in order: records with their columns, and the bytes between them."""
    part = LogPart(file, kind, 0, None, is_tail=False)
    before = HEADER_SIZE if kind == DLEDGER else 0
    position = file.start
    for found in read_part(part, verify=True, block_bytes=_BLOCK_BYTES):
        if isinstance(found, Damage):
            if not keep_damage:
                raise DamagedLogError(found.path, found.physical_offset, f"{found.detail}; not archived")
            continue
        if found.faults and not keep_damage:
            row, detail = next(iter(found.faults.items()))
            raise DamagedLogError(file.path, found.base + int(found.starts[row]), f"{detail}; not archived")
        end = int(found.ends[-1])
        if 2 * end < len(found.data):  # damage follows: copy, so that a few records do not keep a whole block in memory
            found.data = found.data[:end].copy()
        first = found.base + int(found.starts[0]) - before
        yield from _gap(file, position, first, tally)
        tally.take(found.data[int(found.starts[0]) - before : end])
        yield _block_batch(found, before)
        position = found.base + end
    yield from _gap(file, position, file.start + file.length, tally)


def _block_batch(block: Block, before: int) -> pa.RecordBatch:
    """Return the columns of a block of consecutive records; `before` has the bytes ahead of each."""
    narrow = record_batch(block, _NARROW, None)
    body_at = block.starts + _HEADS[(block.heads["sys_flag"].astype(np.int64) >> 4) & 3]
    body_end = body_at + _ints_at(block.data, body_at - 4)
    bounds = [block.starts - before, body_at, body_end, block.ends]
    pieces = [views(block.data, *between) for between in pairwise(bounds)]
    return pa.RecordBatch.from_arrays([*narrow.columns, *pieces], schema=SCHEMA)


def _ints_at(data: "np.ndarray[Any, np.dtype[np.uint8]]", places: Ints) -> Ints:
    """Return the big-endian i32 at each place; none of them is negative."""
    found = np.zeros(len(places), np.int64)
    for number in range(4):
        found = found << 8 | data[places + number]
    return found


def _gap(file: LogFile, position: int, end: int, tally: _Tally) -> Iterator[pa.RecordBatch]:
    """Yield the bytes `[position, end)` of a segment, which are not records."""
    with Path(file.path).open("rb") as opened:
        opened.seek(position - file.start)
        while position < end:
            piece = opened.read(min(_GAP_BYTES, end - position))
            if not piece:
                raise PipelineError(f"{file.path} became shorter while it was read")
            position += len(piece)
            tally.take(piece)
            yield pa.RecordBatch.from_pylist([{"head": piece}], SCHEMA)


# ---- files


class _alone:  # noqa: N801 - reads as a function
    """Keeps two jobs from writing one segment at once; the lock is on the file, and ends with the process."""

    def __init__(self, folder: Path, start: int) -> None:
        self._folder = folder
        self._path = folder / f"_{segment_name(start)}.lock"

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._descriptor).st_nlink == 0:
                raise BlockingIOError  # its holder has just removed it, and another job may have created it again
        except BlockingIOError:
            os.close(self._descriptor)
            raise ArchiveError(f"{self._path}: another job writes this segment now") from None

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]
