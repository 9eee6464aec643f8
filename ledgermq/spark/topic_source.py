"""`spark.read` and `spark.readStream` of `format("ledgermq")`: messages of topics, read from their brokers.

    planner   queues, starts, ends (all confirmed) -> ranges of about equal bytes    Spark writes a stream's down
    task      range -> pulls -> Arrow batches                                       the same rows at each run

| option | values, default first | |
|---|---|---|
| namesrv | | addresses of nameservers, with semicolons |
| subscribe | | topics with commas; or subscribePattern, a regular expression of whole names; or assign, JSON |
| tags | all | tags joined by two vertical bars |
| startingOffsets | earliest (batch), latest (stream) | also group:NAME, or JSON |
| endingOffsets | latest | batch only: also JSON |
| startingTimestamp, endingTimestamp | | store times instead, the end not included: ms since 1970 or ISO 8601 |
| failOnDataLoss | true | false: a row with the column `damage` for offsets that are gone |
| columns | all | some of them, with commas |
| splitBytes | 67108864 | bytes for one task, about |
| maxOffsetsPerTrigger | | stream: messages of one batch, at most |
| maxBytesPerTrigger | 268435456 | stream: bytes of one batch, about |
| commitGroup | | stream: a group for which the offsets of finished batches are committed |
| fetchTimeoutMs | 120000 | how long one request is tried again, at a new leader too |
| tls, accessKey, secretKey | | |
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ledgermq.client import LedgerMQError
from ledgermq.client.core.compression import decompress
from ledgermq.client.group.subscription import parse_subscription
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import COMPRESSED
from ledgermq.message.frames import Ints
from ledgermq.remoting.route import MessageQueue
from ledgermq.spark.columns import SQL_TYPES, TYPES, Want, record_batch
from ledgermq.spark.errors import ClusterError, OptionError, PipelineError
from ledgermq.spark.options import Options
from ledgermq.spark.parts import Block, block_of_records, prepare_worker
from ledgermq.spark.query_metrics import Batches, add_fetches
from ledgermq.spark.topic_client import TIMEOUT_MS, Access, TopicClient
from ledgermq.spark.topic_offsets import (
    EARLIEST,
    LATEST,
    SPLIT_BYTES,
    VERSION,
    Offsets,
    Position,
    Range,
    Selection,
    cut,
    decode_offsets,
    encode_offsets,
    gone_ranges,
    loss_text,
    ranges_between,
    refuse_loss,
    refuse_new_life,
    share,
)
from ledgermq.spark.topic_sink import TopicStreamWriter, TopicWriter

_log: Final = logging.getLogger(__name__)

ACCESS: Final = ("namesrv", "tls", "accessKey", "secretKey", "fetchTimeoutMs")
_READ: Final = (
    *ACCESS, *Selection.NAMES, "tags", "startingOffsets", "startingTimestamp", "failOnDataLoss", "columns",
    "splitBytes",
)  # fmt: skip
KNOWN_BATCH: Final = (*_READ, "endingOffsets", "endingTimestamp")
KNOWN_STREAM: Final = (*_READ, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "commitGroup")
KNOWN_SINK: Final = (*ACCESS, "topic", "idempotent", "writeId", "queues")
KNOWN: Final = tuple(dict.fromkeys((*KNOWN_BATCH, *KNOWN_STREAM)))
BATCH_BYTES: Final = 256 << 20
_OF_SPARK: Final = ("checkpointlocation", "path", "queryname")
_COLUMNS: Final = tuple(name for name in TYPES if not name.startswith("record"))


@dataclass(frozen=True)
class TopicPart(InputPartition):
    """One task: a range of one queue."""

    range: Range


def access_of(options: Options) -> Access:
    """Return how to reach the cluster.

    Raises:
        OptionError: no nameserver is given, or a value is none.
    """
    if not options.text("namesrv"):
        raise OptionError("namesrv is not given: the addresses of the nameservers")
    timeout_ms = options.number("fetchTimeoutMs")
    return Access(
        options.text("namesrv"),
        TIMEOUT_MS if timeout_ms is None else max(timeout_ms, 1),
        options.flag("tls", False),
        options.text("accessKey"),
        options.text("secretKey"),
    )


class _Topics:
    """The common part of batch and stream: the options, and the rows of a range."""

    _fetch_sums: Accumulator[Batches] | None = None

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._names = list(names)
        self._access = access_of(options)
        self._selection = Selection(options)
        self._tags = options.text("tags")
        try:
            parse_subscription("T", self._tags, 0)
        except LedgerMQError as error:
            raise OptionError(f"tags: {error}") from None
        self._fails = options.flag("failOnDataLoss", True)
        self._split_bytes = SPLIT_BYTES if (size := options.number("splitBytes")) is None else size

    def _parts(self, client: TopicClient, ranges: Sequence[Range]) -> list[TopicPart]:
        """Divide ranges into tasks.

        Raises:
            DataLossError: messages in them are gone, and that is to fail.
        """
        looks = client.looks({each.queue: each.start for each in ranges})
        if self._fails:
            refuse_loss(gone_ranges(ranges, {queue: look.first for queue, look in looks.items()}))
        sizes = {queue: look.record_bytes for queue, look in looks.items()}
        return [TopicPart(each) for each in cut(ranges, sizes, self._split_bytes)]

    def rows(self, part: TopicPart) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task.

        Raises:
            DataLossError, ClusterError, PipelineError: see `TopicSource`.
        """
        prepare_worker()
        queue, position = part.range.queue, part.range.start
        with TopicClient(self._access, kept=TaskContext.get() is not None) as client:
            for fetched in client.fetched(queue, position, part.range.end, self._tags):
                if fetched.gone is not None:
                    gone = Range(queue, *fetched.gone)
                    if self._fails:
                        refuse_loss([gone])
                    yield self._loss_row(gone)
                elif fetched.data:
                    yield self._batch(queue, fetched.data, position, fetched.end)
                position = fetched.end
            add_fetches(self._fetch_sums, client.fetches)

    def _batch(self, queue: MessageQueue, data: bytes, start: int, end: int) -> pa.RecordBatch:
        try:
            block = block_of_records(data)
        except CorruptRecordError as error:
            raise PipelineError(f"{queue}: the broker's answer from offset {start} on: {error}") from None
        rows = Want(offsets=(start, end)).rows(block)
        offsets = record_batch(block, ["queue_offset"], None, rows).column(0).to_numpy()
        if (np.diff(offsets) <= 0).any():  # with tags a pull may reach into the range of the next one
            rows = rows[np.unique(offsets, return_index=True)[1]]
        if self._tags:
            wanted = parse_subscription(queue.topic, self._tags, 0)
            tags = record_batch(block, ["tags"], None, rows).column(0).to_pylist()
            rows = rows[np.array([wanted.wants(tag.encode() if tag else None) for tag in tags], np.bool_)]
        batch = record_batch(block, self._names, queue.broker, rows)
        return _inflated(batch, block, rows) if "body" in self._names else batch

    def _loss_row(self, gone: Range) -> pa.RecordBatch:
        row = {
            "topic": gone.queue.topic,
            "broker": gone.queue.broker,
            "queue_id": gone.queue.queue_id,
            "queue_offset": gone.start,
            "damage": loss_text([gone]),
        }
        return pa.RecordBatch.from_arrays([pa.array([row.get(name)], TYPES[name]) for name in self._names], self._names)


def _inflated(batch: pa.RecordBatch, block: Block, rows: Ints) -> pa.RecordBatch:
    """Return the batch with bodies as their senders gave them.

    Raises:
        PipelineError: a body cannot be decompressed.
    """
    flags = block.heads["sys_flag"].astype(np.int64)[rows]
    packed = np.flatnonzero(flags & COMPRESSED).tolist()
    if not packed:
        return batch
    place = batch.schema.get_field_index("body")
    bodies = batch.column(place).to_pylist()
    try:
        for row in packed:
            bodies[row] = decompress(bodies[row], int(flags[row]))
    except LedgerMQError as error:
        raise PipelineError(str(error)) from None
    return batch.set_column(place, "body", pa.array(bodies, pa.binary()))


class TopicSource(DataSource):
    """The data source `ledgermq`, which also writes.

    Raises, from reading:
        OptionError: an option is unknown or has no such value.
        ClusterError: the cluster refuses, or does not answer in time.
        DataLossError: messages that must be read are gone.
    """

    fetch_sums: ClassVar[Accumulator[Batches] | None] = None
    """Sums the pulls of streams' tasks; set by `register`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ledgermq"

    def schema(self) -> str:
        """Return the columns as DDL."""
        options = Options(self.options, KNOWN)
        names = options.names("columns") or list(_COLUMNS)
        for name in names:
            if name not in TYPES:
                raise OptionError(f"columns: {name!r} is not one of {', '.join(TYPES)}")
        return ", ".join(f"{name} {SQL_TYPES[TYPES[name]]}" for name in names)

    def reader(self, schema: StructType) -> "TopicReader":
        """Return the reader of a batch."""
        return TopicReader(self._reading(KNOWN_BATCH, "batch"), schema.fieldNames())

    def streamReader(self, schema: StructType) -> "TopicStreamReader":  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        return TopicStreamReader(self._reading(KNOWN_STREAM, "stream"), schema.fieldNames(), self.fetch_sums)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        """Return the writer of a batch."""
        return TopicWriter(*self._sink(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream."""
        return TopicStreamWriter(*self._sink(overwrite), schema)

    def _reading(self, known: Sequence[str], kind: str) -> Options:
        options = Options(self.options, KNOWN)
        for name in KNOWN:
            if options.has(name) and name not in known:
                raise OptionError(f"{name} has no meaning in a {kind}")
        return options

    def _sink(self, overwrite: bool) -> tuple[Options, Access]:
        if overwrite:
            raise OptionError("messages are appended only: write with mode append")
        given = {name: value for name, value in self.options.items() if name.lower() not in _OF_SPARK}
        options = Options(given, KNOWN_SINK)
        return options, access_of(options)


class TopicReader(_Topics, DataSourceReader):
    """Reads once, from start to end as they are when the plan is made."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        super().__init__(options, names)
        self._start = Position(options, "starting", EARLIEST)
        self._stop = Position(options, "ending", LATEST)

    def partitions(self) -> Sequence[TopicPart]:
        """Return the tasks."""
        with TopicClient(self._access) as client:
            queues = self._selection.queues(client)
            starts, ends = self._start.resolve(client, queues), self._stop.resolve(client, queues)
            ranges = [Range(queue, starts[queue], ends[queue]) for queue in queues if starts[queue] < ends[queue]]
            return self._parts(client, ranges)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self.rows(partition) if isinstance(partition, TopicPart) else iter(())


class TopicStreamReader(_Topics, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Its offsets are those of `topic_offsets`; a replayed batch reads the same ones."""

    def __init__(self, options: Options, names: Sequence[str], fetch_sums: Accumulator[Batches] | None = None) -> None:
        super().__init__(options, names)
        self._fetch_sums = fetch_sums
        self._start = Position(options, "starting", LATEST)
        self._offsets_max = options.number("maxOffsetsPerTrigger")
        bytes_max = options.number("maxBytesPerTrigger")
        self._bytes_max = BATCH_BYTES if bytes_max is None else bytes_max
        for name, value in (("maxOffsetsPerTrigger", self._offsets_max), ("maxBytesPerTrigger", self._bytes_max)):
            if value is not None and value < 1:
                raise OptionError(f"{name} must be 1 or more")
        self._group = options.text("commitGroup")
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._client: TopicClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections, for the copies of tasks."""
        return self.__dict__ | {"_client": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before everything; the first batch pins where each queue begins."""
        return {"q": {}, "v": VERSION}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return that batches are limited; the options set the limits."""
        return ReadMaxRows(self._offsets_max) if self._offsets_max is not None else ReadMaxBytes(self._bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read up to the ends of this moment and no further."""
        client = self._connected()
        self._target = client.ends(self._selection.queues(client))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` itself if there is nothing to read and no new queue.

        Raises:
            DataLossError: a queue ends before what was read of it, and that is to fail.
        """
        client = self._connected()
        known, _ = decode_offsets(start)
        queues = self._selection.queues(client)
        if (target := self._target) is None:
            target = self._latest = client.ends(queues)
        anew = client.still_before({queue: at for queue, at in known.items() if target.get(queue, at) < at})
        if self._fails:
            refuse_new_life(anew, known)
        elif anew:
            _log.warning("read from their beginning, since their topics were made again: %s", sorted(map(str, anew)))
        fresh = [queue for queue in queues if queue not in known and queue in target]
        pinned = client.firsts(list(anew))
        target = target | anew
        if fresh:  # those of a first batch begin where the options say, later ones at their first message
            pinned |= client.firsts(fresh) if known else self._start.resolve(client, fresh)
            pinned = {queue: min(at, target[queue]) for queue, at in pinned.items()}
        begins = known | pinned
        backlogs = {queue: target[queue] - at for queue, at in begins.items() if target.get(queue, 0) > at}
        if not backlogs and not pinned:
            return start
        if not isinstance(limit, ReadAllAvailable):
            backlogs = self._limited(client, backlogs, begins)
        return encode_offsets({queue: at + backlogs.get(queue, 0) for queue, at in begins.items()}, pinned)

    def _limited(self, client: TopicClient, backlogs: Offsets, begins: Offsets) -> Offsets:
        if self._offsets_max is not None:
            backlogs = share(backlogs, self._offsets_max)
        looks = client.looks({queue: begins[queue] for queue in backlogs})
        total = sum(count * looks[queue].record_bytes for queue, count in backlogs.items())
        if total <= self._bytes_max:
            return backlogs
        return share(backlogs, max(int(sum(backlogs.values()) * self._bytes_max / total), 1))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of the queues, for the query's progress: those that the batch was planned by, if it was."""
        client = self._connected()
        ends, self._latest = self._latest, None
        return encode_offsets(client.ends(self._selection.queues(client)) if ends is None else ends, {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TopicPart]:
        """Return the tasks of a batch."""
        return self._parts(self._connected(), ranges_between(start, end))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self.rows(partition) if isinstance(partition, TopicPart) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Commit a finished batch's end for the group, if there is one; a failure is logged only."""
        if self._group:
            try:
                self._connected().commit(self._group, decode_offsets(end)[0])
            except ClusterError as error:
                _log.warning("the offsets of group %s are not committed: %s", self._group, error)

    def stop(self) -> None:
        """Close the connections. Spark does not always call this; the end of its process closes them too."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> TopicClient:
        if self._client is None:
            self._client = TopicClient(self._access)
        return self._client
