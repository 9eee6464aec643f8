"""Messages, bytes and delay by topic, queue and minute, for each segment; counts are kept for later runs.

    STATE/00000000001073741824-3f2a....parquet     a sealed file of a log: start, and a hash of its first KiB
    STATE/active-00000000002147483648-77c1....parquet    a file that may change, as of the last run

A row is a topic, queue id and minute (of the store time, UTC): messages, bytes of records, sum and maximum of the delay
from born to store time in ms. Rows of segments that a broker has deleted since stay: the statistics outlive the log.

The lag of groups is known for the present only. So `lag` adds the lag of this minute at each call:

    STORE/config/consumerOffset.json    what groups have committed, as the broker has last written it down --+
    STORE/consumequeue                  where the queues end ------------------------------------------------+
    STATE/lag/20260921-3f2a....parquet  the rows of a day and a store <--------------------------------------+
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from ledgermq.message.queue_unit import UNIT_SIZE
from ledgermq.remoting.codec import lenient_json
from ledgermq.remoting.errors import JsonError
from ledgermq.spark.archive import sealed_files
from ledgermq.spark.columns import record_batch
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import frame_head, local_path, offset_files, open_store, queue_folders
from ledgermq.spark.parts import Damage, LogPart, plan_parts, read_part

_ACTIVE: Final = "active-"
_KEYS: Final = ["topic", "queue_id", "minute"]
_SUMS: Final = [("messages", "sum"), ("bytes", "sum"), ("delay_sum_ms", "sum"), ("delay_max_ms", "max")]
_NAMES: Final = [*_KEYS, *(name for name, _ in _SUMS)]
_MINUTE_S: Final = 60
_TABLES_MAX: Final = 32
_LAG: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("minute", pa.int64()),
        ("lag", pa.int64()),
    ]
)
_SIZE_AT: Final = 8


def statistics(spark: SparkSession, stores: Sequence[str], state: str) -> DataFrame:
    """Count what is new, and return the statistics of all that was ever counted into `state`.

    Args:
        spark: runs a task for each file of a log that is new.
        stores: directories of different groups; brokers may have them open.
        state: a directory for these statistics; it is created.

    Returns:
        topic, queue_id, minute (timestamp), messages, bytes, delay_avg_ms, delay_max_ms; a row for each minute in
        which a queue got a message.

    Raises:
        NotAStoreError: a directory is none.
        OptionError: a path is a URI.
        DamagedLogError: a log is damaged.
        PipelineError: the state cannot be written.
    """
    folder, work, active = local_path(state), list[tuple[LogPart, str]](), set[str]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for store in map(open_store, stores):
            sealed = set(sealed_files(store))
            for part in plan_parts(store, 0):
                name = f"{part.file.start:020d}-{hashlib.sha256(frame_head(part.file)).hexdigest()[:16]}.parquet"
                if part.file not in sealed:
                    name = _ACTIVE + name
                    active.add(name)
                if part.file not in sealed or not (folder / name).exists():
                    work.append((part, name))
        if work:
            spark.sparkContext.parallelize(work, len(work)).foreach(partial(count_part, folder))
        for path in folder.glob(f"{_ACTIVE}*.parquet"):
            if path.name not in active:
                path.unlink()
        counted = sorted(str(path) for path in folder.glob("*.parquet"))
    except OSError as error:
        raise PipelineError(f"{error.filename or folder}: {error.strerror or error}") from None
    if not counted:
        raise PipelineError(f"{', '.join(stores)}: there is no record to count")
    sums = spark.read.parquet(*counted).groupBy(_KEYS)
    total = sums.agg(*[getattr(fn, how)(name).alias(name) for name, how in _SUMS])
    return total.select(
        "topic",
        "queue_id",
        fn.timestamp_seconds(fn.col("minute") * _MINUTE_S).alias("minute"),
        "messages",
        "bytes",
        (fn.col("delay_sum_ms") / fn.col("messages")).alias("delay_avg_ms"),
        "delay_max_ms",
    )


def count_part(folder: Path, work: tuple[LogPart, str]) -> None:
    """Count one file of a log into a file of the state, which appears whole or not at all.

    Raises:
        DamagedLogError: the file is damaged.
        OSError: the state cannot be written.
    """
    part, name = work
    tables: list[pa.Table] = []
    for found in read_part(part, verify=False):
        if isinstance(found, Damage):
            raise DamagedLogError(found.path, found.physical_offset, found.detail)
        tables.append(_count(record_batch(found, ["topic", "queue_id", "size", "born_ts", "store_ts"], None)))
        if len(tables) == _TABLES_MAX:
            tables = [_merged(tables)]
    if tables:
        _write(folder / name, _merged(tables).sort_by([(key, "ascending") for key in _KEYS]))


def _write(path: Path, table: pa.Table) -> None:
    """Write a file of the state, which appears whole or not at all."""
    temporary = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def _count(batch: pa.RecordBatch) -> pa.Table:
    """Return the counts of a block's records."""
    born, stored = (batch.column(name).cast(pa.int64()).to_numpy() // 1000 for name in ("born_ts", "store_ts"))
    arrays: dict[str, Any] = {
        "topic": batch.column("topic"),
        "queue_id": batch.column("queue_id"),
        "minute": pa.array(stored // (1000 * _MINUTE_S)),
        "messages": pa.array(np.ones(len(born), np.int64)),
        "bytes": batch.column("size").cast(pa.int64()),
        "delay_sum_ms": pa.array(stored - born),
        "delay_max_ms": pa.array(stored - born),
    }
    return _merged([pa.table(arrays)])


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    sums = pa.concat_tables(tables).group_by(_KEYS).aggregate(_SUMS)
    return sums.select([*_KEYS, *(f"{name}_{how}" for name, how in _SUMS)]).rename_columns(_NAMES)


# ---- lag


def lag(spark: SparkSession, stores: Sequence[str], state: str, now_s: float | None = None) -> DataFrame:
    """Add the lag of this minute to `state`, and return all that was ever added.

    Args:
        spark: reads the state.
        stores: directories of different groups; brokers may have them open.
        state: a directory for statistics; it is created.
        now_s: the time, in s since 1970; None: what the clock says.

    Returns:
        group, topic, queue_id, minute (timestamp), lag: messages of the queue behind what the group has committed.
        Groups that have committed nothing in a queue have no row for it; queues of batches have none, nor those
        without a folder in `consumequeue`.

    Raises:
        NotAStoreError: a directory is none.
        OptionError: a path is a URI.
        PipelineError: the state cannot be written, or a store's committed offsets cannot be read.
    """
    folder, now = local_path(state) / "lag", int(time.time() if now_s is None else now_s)
    day, minute = time.strftime("%Y%m%d", time.gmtime(now)), now // _MINUTE_S
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for store in map(open_store, stores):
            name = hashlib.sha256(str(Path(store.root).absolute()).encode()).hexdigest()[:16]
            _add(folder / f"{day}-{name}.parquet", list(_rows(Path(store.root), store.queues, minute)), minute)
    except OSError as error:
        raise PipelineError(f"{error.filename or folder}: {error.strerror or error}") from None
    found = spark.read.parquet(*sorted(map(str, folder.glob("[0-9]*.parquet"))))
    total = found.groupBy("group", "topic", "queue_id", "minute").agg(fn.sum("lag").alias("lag"))
    return total.withColumn("minute", fn.timestamp_seconds(fn.col("minute") * _MINUTE_S))


def _add(path: Path, rows: list[dict[str, Any]], minute: int) -> None:
    """Add the rows of a minute to a file; they replace the file's rows of that minute."""
    table = pa.Table.from_pylist(rows, _LAG)
    if path.exists():
        before = pq.read_table(path, schema=_LAG)
        table = pa.concat_tables([before.filter(pc.field("minute") != minute), table])
    _write(path, table)


def _rows(root: Path, queues: str, minute: int) -> Iterator[dict[str, Any]]:
    committed = committed_offsets(root / "config" / "consumerOffset.json")
    topics = {topic for topic, _ in committed}
    ends = {(topic, queue): queue_end(folder) for topic, queue, folder in queue_folders(queues) if topic in topics}
    for (topic, group), offsets in sorted(committed.items()):
        for queue_id, offset in sorted(offsets.items()):
            end = ends.get((topic, queue_id))
            if end is not None:
                behind = max(end - offset, 0)
                yield {"group": group, "topic": topic, "queue_id": queue_id, "minute": minute, "lag": behind}


def committed_offsets(path: Path) -> dict[tuple[str, str], dict[int, int]]:
    """Return what a broker's file says that groups have committed: by topic and group, by queue id; empty without it.

    Raises:
        PipelineError: it is no such file.
    """
    try:
        data = path.read_bytes()
        table = lenient_json.loads(data, len(data))["offsetTable"]
        return {
            (topic, group): {int(queue): int(offset) for queue, offset in offsets.items()}
            for (topic, _, group), offsets in ((name.partition("@"), offsets) for name, offsets in table.items())
        }
    except FileNotFoundError:
        return {}
    except (JsonError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{path}: does not hold the offsets of groups: {error}") from None


def queue_end(folder: str) -> int:
    """Return the offset behind the last unit of a consume queue: its files end in zeros."""
    for file in reversed(offset_files(folder)):
        with Path(file.path).open("rb") as opened:
            low, high = 0, file.length // UNIT_SIZE
            while low < high:
                middle = (low + high) // 2
                if any(os.pread(opened.fileno(), 4, middle * UNIT_SIZE + _SIZE_AT)):
                    low = middle + 1
                else:
                    high = middle
        if low:
            return file.start // UNIT_SIZE + low
    return 0
