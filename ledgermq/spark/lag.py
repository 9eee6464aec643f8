"""How far consumer groups are behind, by topic, queue and minute: each run adds what it finds at this moment.

STORE/config/consumerOffset.json    what groups have committed, as the broker has last written it down --+
STORE/consumequeue                  where the queues end ------------------------------------------------+
STATE/lag/20260921-3f2a....parquet  the rows of a day and a store <--------------------------------------+
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from ledgermq.message.queue_unit import UNIT_SIZE
from ledgermq.remoting.codec import lenient_json
from ledgermq.remoting.errors import JsonError
from ledgermq.spark.errors import PipelineError
from ledgermq.spark.log_files import offset_files, open_store, queue_folders

SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("minute", pa.int64()),
        ("lag", pa.int64()),
    ]
)
_MINUTE_S: Final = 60
_SIZE_AT: Final = 8


def lag(spark: SparkSession, stores: Sequence[str], state: str, now_s: float | None = None) -> DataFrame:
    """Add the lag of this minute to `state`, and return all that was ever added.

    Args:
        spark: reads the state.
        stores: directories of different groups; brokers may have them open.
        state: a directory for statistics; it is created.
        now_s: the time, in s since 1970; None: what the clock says.

    Returns:
        group, topic, queue_id, minute (timestamp), lag: messages of the queue behind what the group has committed.
        Groups that have committed nothing in a queue have no row for it.

    Raises:
        NotAStoreError: a directory is none.
        PipelineError: the state cannot be written, or a store's committed offsets cannot be read.
    """
    folder, now = Path(state) / "lag", int(time.time() if now_s is None else now_s)
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
    """Put the rows of a minute into a file, instead of those that it has of this minute."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    if path.exists():
        before = pq.read_table(path, schema=SCHEMA)
        table = pa.concat_tables([before.filter(pc.field("minute") != minute), table])
    temporary = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def _rows(root: Path, queues: str, minute: int) -> Iterator[dict[str, Any]]:
    committed = committed_offsets(root / "config" / "consumerOffset.json")
    topics = {topic for topic, _ in committed}
    ends = {(topic, queue): queue_end(folder) for topic, queue, folder in queue_folders(queues) if topic in topics}
    for (topic, group), offsets in sorted(committed.items()):
        for queue_id, offset in sorted(offsets.items()):
            behind = max(ends.get((topic, queue_id), 0) - offset, 0)
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
