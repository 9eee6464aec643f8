"""A task whose worker dies is run again by Spark: its rows are read once, and stored once where that is promised."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ledgermq.spark.numbered import Addressed
from ledgermq.spark.options import Options
from ledgermq.spark.session import patiently
from ledgermq.spark.store_source import KNOWN, StoreReader, StoreSource
from ledgermq.spark.topic_sink import TopicWriter
from ledgermq.spark.topic_source import (
    KNOWN_BATCH,
    KNOWN_STREAM,
    TopicPart,
    TopicReader,
    TopicSource,
    TopicStreamReader,
)
from tests.limits import STRANGER_WAIT_S
from tests.spark.conftest import RunningBroker
from tests.spark.logs import record, write_log
from tests.spark.test_topic_source import outgoing, reader, rows_of

pytestmark = pytest.mark.timeout(600)


def register_dying(spark: SparkSession, marker: Path) -> None:
    """Make the formats `dying-store` and `dying` known: ours, but the first worker that has made rows dies, once.

    The classes are local, so that they go to the workers by value: these cannot import this file.
    """

    def die_once() -> None:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os._exit(1)

    def dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            die_once()

    class DyingStoreReader(StoreReader):
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            return dying(super().read(partition))

    class DyingStore(StoreSource):
        @classmethod
        def name(cls) -> str:
            return "dying-store"

        def reader(self, schema: StructType) -> StoreReader:
            return DyingStoreReader(Options(self.options, KNOWN), schema.fieldNames())

    class DyingWriter(TopicWriter):
        @contextlib.contextmanager
        def _send(self) -> Iterator[Callable[[Sequence[Addressed]], None]]:
            def send(messages: Sequence[Addressed]) -> None:
                half = len(messages) // 2
                inner(messages[:half])
                die_once()
                inner(messages[half:])

            with super()._send() as inner:
                yield send

    class DyingReader(TopicReader):
        def rows(self, part: TopicPart) -> Iterator[pa.RecordBatch]:
            return dying(super().rows(part))

    class DyingStreamReader(TopicStreamReader):
        def rows(self, part: TopicPart) -> Iterator[pa.RecordBatch]:
            return dying(super().rows(part))

    class DyingTopics(TopicSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def reader(self, schema: StructType) -> TopicReader:
            return DyingReader(Options(self.options, KNOWN_BATCH), schema.fieldNames())

        def streamReader(self, schema: StructType) -> TopicStreamReader:
            return DyingStreamReader(Options(self.options, KNOWN_STREAM), schema.fieldNames())

        def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
            return DyingWriter(*self._sink(overwrite), schema)

    spark.dataSource.register(DyingStore)
    spark.dataSource.register(DyingTopics)


def test_rows_of_a_store_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / "store", [record(n) for n in range(60)])
    register_dying(spark, marker := tmp_path / "died")
    frame = spark.read.format("dying-store").option("splitBytes", "2000").load(str(tmp_path / "store"))
    assert sorted(row.queue_offset for row in frame.select("queue_offset").collect()) == list(range(60))
    assert marker.exists()


@pytest.mark.parametrize("is_stream", [False, True])
def test_messages_of_a_topic_are_read_once(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, is_stream: bool
) -> None:
    broker.create(topic := f"Died{is_stream}", 1)
    broker.send(topic, outgoing(100))
    register_dying(spark, marker := tmp_path / "died")
    options = {"namesrv": broker.namesrv, "subscribe": topic, "splitBytes": "5000", "startingOffsets": "earliest"}
    output = str(tmp_path / "rows")
    if is_stream:
        query = (
            spark.readStream.format("dying")
            .options(**options, maxOffsetsPerTrigger="60")
            .load()
            .writeStream.format("parquet")
            .options(path=output, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        assert patiently(lambda: query.start().awaitTermination(int(STRANGER_WAIT_S)))
    else:
        spark.read.format("dying").options(**options).load().write.parquet(output)
    assert marker.exists()
    assert sorted(row.queue_offset for row in spark.read.parquet(output).collect()) == list(range(100))


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_rows_are_stored_once_or_at_least_once(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, is_idempotent: bool
) -> None:
    broker.create(topic := f"Resent{is_idempotent}", 2)
    register_dying(spark, marker := tmp_path / "died")
    once = {"idempotent": "true", "writeId": "w"} if is_idempotent else {}
    rows = spark.range(0, 200, 1, 2).selectExpr("cast(id as string) as body")
    rows.write.format("dying").mode("append").options(namesrv=broker.namesrv, topic=topic, **once).save()
    assert marker.exists()
    source = reader(broker, subscribe=topic)
    stored = sorted(int(row["body"]) for row in rows_of(source, source.partitions()))
    assert sorted(set(stored)) == list(range(200))
    assert len(stored) == (200 if is_idempotent else 250), "the task that died had sent half of its 100 rows"
