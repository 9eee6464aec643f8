"""`spark.read.format("ledgermq-store").load(DIR)`: the records of store directories, without a broker.

    planner   directories -> parts of logs (a snapshot)         once per DataFrame
    task      part -> blocks -> Arrow batches of some MiB       a function of the part and the options alone

| option | values, default first | |
|---|---|---|
| path, paths | | directory, or a JSON list of them |
| broker | null | broker names with commas, one a directory |
| mode | records, headers, raw, index, digests | headers: no body, no properties; raw: whole records; index: units |
| columns | all of the mode | some of them, with commas |
| topics, queueIds | all | with commas |
| startingOffset, endingOffset | | queue offsets, half-open |
| startingTimestamp, endingTimestamp | | store times, half-open: ms since 1970 or ISO 8601 |
| damage | fail, report | report: a row for each damaged place, with the column `damage` set |
| verify | true if body or record is read | compare each body with its CRC |
| splitBytes | 67108864 | bytes of log for one task; 0: one task for each file |
| allowReplicas | false | read directories that hold copies of the same log |

Mode digests gives a row for each topic, queue and run of 4,096 queue offsets in a block: the number of records, and a
sum over hashes of (bytes, queue offset). The sums of equal runs are equal wherever the log was divided.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ledgermq.message.frames import QUEUE_UNIT
from ledgermq.message.queue_unit import UNIT_SIZE
from ledgermq.spark.columns import SQL_TYPES, TYPES, Want, damage_batch, record_batch, repeated
from ledgermq.spark.errors import DamagedLogError, OptionError
from ledgermq.spark.log_files import LogFile, StoreDirectory, frame_head, offset_files, open_store, queue_folders
from ledgermq.spark.options import Options
from ledgermq.spark.parts import SPLIT_BYTES, Block, Damage, LogPart, plan_parts, prepare_worker, read_part

KNOWN: Final = (
    "path", "paths", "broker", "mode", "columns", "topics", "queueIds", "startingOffset", "endingOffset",
    "startingTimestamp", "endingTimestamp", "damage", "verify", "splitBytes", "allowReplicas",
)  # fmt: skip

_RECORDS: Final = tuple(name for name in TYPES if not name.startswith("record"))
_MODES: Final = {
    "records": _RECORDS,
    "headers": tuple(name for name in _RECORDS if name not in ("body", "properties")),
    "raw": ("broker", "phys_offset", "size", "record", "damage"),
}
_INDEX: Final = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "phys_offset": pa.int64(),
    "size": pa.int32(),
    "tags_code": pa.int64(),
}
_NOT_OF_UNITS: Final = ("startingTimestamp", "endingTimestamp", "damage", "verify", "splitBytes")
_DIGESTS: Final = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "bucket": pa.int64(),
    "records": pa.int64(),
    "digest": pa.int64(),
}
_NO_DIGESTS: Final = pa.RecordBatch.from_pylist([], pa.schema(list(_DIGESTS.items())))
DIGEST_OFFSETS: Final = 4096
"""Queue offsets of one bucket."""
_UNITS_A_BATCH: Final = 1 << 16


@dataclass(frozen=True)
class StorePart(InputPartition):
    """One task: a part of a log, or in index mode a file of units."""

    broker: str | None
    log: LogPart | None = None
    units: LogFile | None = None
    topic: str = ""
    queue_id: int = -1


class StoreSource(DataSource):
    """The data source `ledgermq-store`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ledgermq-store"

    def schema(self) -> str:
        """Return the columns as DDL: those of the mode, or those asked for."""
        return schema_of(Options(self.options, KNOWN))

    def reader(self, schema: StructType) -> "StoreReader":
        """Return the reader; a schema of the user's own only chooses columns."""
        return StoreReader(Options(self.options, KNOWN), schema.fieldNames())


def schema_of(options: Options) -> str:
    """Return the columns that these options read, as DDL.

    Raises:
        OptionError: a column that the mode does not have.
    """
    types = _types(options)
    names = options.names("columns") or list(types)
    for name in names:
        if name not in types:
            raise OptionError(f"columns: {name!r} is not one of {', '.join(types)}")
    return ", ".join(f"{name} {SQL_TYPES[types[name]]}" for name in names)


def _types(options: Options) -> dict[str, pa.DataType]:
    mode = options.choice("mode", "records", "headers", "raw", "index", "digests")
    if mode in ("index", "digests"):
        return _INDEX if mode == "index" else _DIGESTS
    # An explicit list of columns may name any column of a record, whichever the mode.
    names = TYPES if options.has("columns") else _MODES[mode]
    return {name: TYPES[name] for name in names}


class StoreReader(DataSourceReader):
    """Plans parts and reads them.

    Raises:
        OptionError: an option has no such value.
    """

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._names = list(names)
        self._mode = options.text("mode")
        if self._mode == "index":
            for name in _NOT_OF_UNITS:
                if options.has(name):
                    raise OptionError(f"{name} has no meaning with mode=index")
        self._directories = _directories(options)
        self._brokers = _brokers(options, len(self._directories))
        self._split_bytes = SPLIT_BYTES if (split := options.number("splitBytes")) is None else split
        self._reports = options.choice("damage", "fail", "report") == "report"
        self._verify = options.flag("verify", "body" in names or "record" in names)
        self._allow_replicas = options.flag("allowReplicas", False)
        self._topics = options.names("topics")
        self._queue_ids = options.numbers("queueIds")
        self._offsets = options.number("startingOffset"), options.number("endingOffset")
        self._times = options.time_ms("startingTimestamp"), options.time_ms("endingTimestamp")

    def partitions(self) -> Sequence[StorePart]:
        """Return the tasks.

        Raises:
            NotAStoreError: a directory is none.
            OptionError: two directories hold copies of one log.
        """
        stores = [open_store(path) for path in self._directories]
        if not self._allow_replicas:
            refuse_replicas(stores)
        parts: list[StorePart] = []
        for store, broker in zip(stores, self._brokers, strict=True):
            if self._mode == "index":
                parts += self._queue_parts(store, broker)
            else:
                parts += [StorePart(broker, log=part) for part in plan_parts(store, self._split_bytes)]
        return parts

    def _queue_parts(self, store: StoreDirectory, broker: str | None) -> Iterator[StorePart]:
        for topic, queue_id, folder in queue_folders(store.queues):
            if (not self._topics or topic in self._topics) and (not self._queue_ids or queue_id in self._queue_ids):
                for file in offset_files(folder):
                    yield StorePart(broker, units=file, topic=topic, queue_id=queue_id)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises:
            DamagedLogError: a damaged place, unless `damage=report`.
        """
        prepare_worker()
        if not isinstance(partition, StorePart):
            return
        if partition.units is not None:
            yield from self._read_units(partition, partition.units)
        elif partition.log is not None:
            yield from self._read_log(partition, partition.log)

    def _read_log(self, partition: StorePart, part: LogPart) -> Iterator[pa.RecordBatch]:
        want = Want(self._topics, self._queue_ids, self._offsets, self._times)
        for found in read_part(part, verify=self._verify):
            if isinstance(found, Damage):
                if not self._reports:
                    raise DamagedLogError(found.path, found.physical_offset, f"{found.detail}; read with damage=report")
                if self._mode != "digests":
                    yield damage_batch(self._names, partition.broker, found.physical_offset, found.length, found.detail)
                continue
            if found.faults and not self._reports:
                row, detail = next(iter(found.faults.items()))
                place = found.base + int(found.starts[row])
                raise DamagedLogError(part.file.path, place, f"{detail}; read with damage=report")
            if self._mode == "digests":
                batch = digests(found, partition.broker, want).select(self._names)
            else:
                batch = record_batch(found, self._names, partition.broker, want.rows(found))
            if batch.num_rows:
                yield batch

    def _read_units(self, partition: StorePart, file: LogFile) -> Iterator[pa.RecordBatch]:
        low, high = self._offsets
        with open(file.path, "rb") as opened:  # noqa: PTH123 - a plain path
            first = file.start // UNIT_SIZE
            while data := opened.read(_UNITS_A_BATCH * UNIT_SIZE):
                units = np.frombuffer(data[: len(data) // UNIT_SIZE * UNIT_SIZE], QUEUE_UNIT)
                offsets = np.arange(first, first + len(units))
                first += len(units)
                used = units["size"] > 0
                if low is not None:
                    used &= offsets >= low
                if high is not None:
                    used &= offsets < high
                if not used.any():
                    if not any(data):
                        return
                    continue
                units, offsets = units[used], offsets[used]
                arrays = {
                    "topic": repeated(partition.topic, len(units)),
                    "broker": repeated(partition.broker, len(units)),
                    "queue_id": pa.array(np.full(len(units), partition.queue_id, np.int32)),
                    "queue_offset": pa.array(offsets),
                    "phys_offset": pa.array(units["physical"].astype(np.int64)),
                    "size": pa.array(units["size"].astype(np.int32)),
                    "tags_code": pa.array(units["code"].astype(np.int64)),
                }
                yield pa.RecordBatch.from_arrays([arrays[name] for name in self._names], self._names)


def digests(block: Block, broker: str | None, want: Want) -> pa.RecordBatch:
    """Return the digests of the wanted records of a block."""
    found = record_batch(block, ["topic", "queue_id", "queue_offset", "record_crc"], None, want.rows(block))
    offsets, crcs = (found.column(name).to_numpy().astype(np.uint64) for name in ("queue_offset", "record_crc"))
    mixed = (crcs << np.uint64(32) | offsets & np.uint64(0xFFFFFFFF)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    values = (mixed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(16)  # 48 bits: the sum of 4,096 fits
    table = pa.table(
        {
            "topic": found.column("topic"),
            "queue_id": found.column("queue_id"),
            "bucket": pa.array(offsets.astype(np.int64) // DIGEST_OFFSETS),
            "value": pa.array(values.astype(np.int64)),
        }
    )
    sums = table.group_by(["topic", "queue_id", "bucket"]).aggregate([("value", "count"), ("value", "sum")])
    arrays = {
        "topic": sums.column("topic"),
        "broker": repeated(broker, len(sums)),
        "queue_id": sums.column("queue_id"),
        "bucket": sums.column("bucket"),
        "records": sums.column("value_count"),
        "digest": sums.column("value_sum"),
    }
    return pa.table(arrays).combine_chunks().to_batches()[0] if len(sums) else _NO_DIGESTS


def _directories(options: Options) -> list[str]:
    if options.has("paths"):
        found: Any = json.loads(options.text("paths"))
        return [str(path) for path in found]
    if not options.has("path"):
        raise OptionError("no directory is given: load(DIR)")
    return [options.text("path")]


def _brokers(options: Options, count: int) -> list[str | None]:
    names = options.names("broker")
    if names and len(names) != count:
        raise OptionError(f"broker has {len(names)} names for {count} directories")
    return list(names) if names else [None] * count


def refuse_replicas(stores: Sequence[StoreDirectory]) -> None:
    """Refuse directories that hold the same bytes at the same place of their logs.

    Raises:
        OptionError: two do.
    """
    for number, store in enumerate(stores):
        files = {file.start: file for file in store.files}
        for other in stores[:number]:
            shared = next((file for file in reversed(other.files) if file.start in files), None)
            if shared is not None and (head := frame_head(shared)) and head == frame_head(files[shared.start]):
                raise OptionError(
                    f"{other.root} and {store.root} hold copies of one log: each message would be read twice."
                    " Read one of them, or set allowReplicas=true"
                )
