"""The topic source and sink on the real RocketMQ 5.3.3 broker, and its store beside them while it runs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from ledgermq.client import Admin
from ledgermq.spark.columns import record_batch
from ledgermq.spark.errors import ClusterError
from ledgermq.spark.log_files import open_store
from ledgermq.spark.options import Options
from ledgermq.spark.parts import Block, plan_parts, read_part
from ledgermq.spark.session import patiently
from ledgermq.spark.topic_client import Access
from ledgermq.spark.topic_sink import Sent, TopicWriter
from ledgermq.spark.topic_source import KNOWN_BATCH, KNOWN_SINK, KNOWN_STREAM, TopicReader, TopicStreamReader
from tests.client import java
from tests.limits import STRANGER_WAIT_S
from tests.spark.test_topic_sink import schema_of
from tests.spark.test_topic_source import NAMES, rows_of

no = java.why_not()
pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(no is not None, reason=no or ""),
]
ROWS = 700


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of the nameserver, and the folder below which the broker has its store."""
    folder = tmp_path_factory.mktemp("rocketmq")
    with java.run_java_broker(folder) as namesrv:
        yield namesrv, folder


def create(namesrv: str, topic: str) -> None:
    async def work() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, 2)

    asyncio.run(work())


async def until_readable(namesrv: str, topic: str) -> None:
    """RocketMQ acknowledges a message before it is in its queue: wait until all are."""
    async with Admin(namesrv) as admin, asyncio.timeout(STRANGER_WAIT_S):
        queues = (await admin.route(topic)).read_queues
        while sum([await admin.max_offset(queue) for queue in queues]) < ROWS:
            await asyncio.sleep(0.1)


def writer(namesrv: str, topic: str, **options: str) -> TopicWriter:
    schema = schema_of("body binary, keys string, tags string, queue_id int, properties map<string,string>")
    return TopicWriter(Options({"topic": topic, **options}, KNOWN_SINK), Access(namesrv), schema)


def batch() -> pa.RecordBatch:
    columns = {
        "body": pa.array([b"%06d" % n for n in range(ROWS)], pa.binary()),
        "keys": pa.array([f"k{n}" for n in range(ROWS)]),
        "tags": pa.array(["even" if n % 2 == 0 else "odd" for n in range(ROWS)]),
        "queue_id": pa.array([n % 3 % 2 for n in range(ROWS)], pa.int32()),
        "properties": pa.array([[("colour", "red")]] * ROWS, pa.map_(pa.string(), pa.string())),
    }
    return pa.RecordBatch.from_pydict(columns)


def place(row: dict[str, Any]) -> tuple[int, int, bytes]:
    return row["queue_id"], row["queue_offset"], row["body"]


def test_rows_go_into_a_topic_of_rocketmq_and_come_back(rocketmq: tuple[str, Path]) -> None:
    namesrv, folder = rocketmq
    create(namesrv, "Spark")
    assert writer(namesrv, "Spark").write(iter([batch().slice(0, 400), batch().slice(400)])) == Sent(ROWS)
    asyncio.run(until_readable(namesrv, "Spark"))
    access = {"namesrv": namesrv, "subscribe": "Spark"}
    read = TopicReader(Options({**access, "splitBytes": "5000"}, KNOWN_BATCH), NAMES)
    parts = list(read.partitions())
    rows = sorted(rows_of(read, parts), key=place)
    assert len(parts) > 2
    assert sorted(row["body"] for row in rows) == [b"%06d" % n for n in range(ROWS)]
    for row in rows:
        number = int(row["body"])
        assert (row["keys"], row["tags"]) == (f"k{number}", "even" if number % 2 == 0 else "odd")
        assert row["queue_id"] == number % 3 % 2
        assert dict(row["properties"])["colour"] == "red"
    for queue_id in (0, 1):
        own = [row["body"] for row in rows if row["queue_id"] == queue_id]
        assert own == sorted(own)
    odd = TopicReader(Options({**access, "tags": "odd"}, KNOWN_BATCH), NAMES)
    assert len(rows_of(odd, odd.partitions())) == ROWS // 2

    stored: list[dict[str, Any]] = []
    (root,) = [found.parent for found in folder.rglob("commitlog") if found.is_dir()]
    for part in plan_parts(open_store(str(root))):
        for block in read_part(part, verify=True):
            assert isinstance(block, Block)
            stored += record_batch(block, NAMES, None).to_pylist()
    stored = [row for row in stored if row["topic"] == "Spark"]
    assert sorted(map(place, stored)) == [place(row) for row in rows]
    assert {row["msg_id"] for row in stored} == {row["msg_id"] for row in rows}


def test_a_stream_of_rocketmq_repeats_a_batch_with_the_same_rows(rocketmq: tuple[str, Path]) -> None:
    namesrv, _ = rocketmq
    create(namesrv, "Stream")
    writer(namesrv, "Stream").write(iter([batch()]))
    asyncio.run(until_readable(namesrv, "Stream"))
    options = {
        "namesrv": namesrv,
        "subscribe": "Stream",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "300",
    }
    read = TopicStreamReader(Options(options, KNOWN_STREAM), NAMES)
    offset, bodies = read.initialOffset(), []
    while (following := read.latestOffset(offset, read.getDefaultReadLimit())) != offset:
        rows = rows_of(read, read.partitions(offset, following))
        again = TopicStreamReader(Options(options, KNOWN_STREAM), NAMES)
        assert rows_of(again, again.partitions(offset, following)) == rows
        again.stop()
        bodies += [row["body"] for row in rows]
        offset = following
    read.stop()
    assert sorted(bodies) == [b"%06d" % n for n in range(ROWS)]


def test_an_idempotent_write_is_refused_before_its_first_row(rocketmq: tuple[str, Path]) -> None:
    namesrv, _ = rocketmq
    create(namesrv, "Once")
    with pytest.raises(ClusterError, match="keeps no numbers of messages"):
        writer(namesrv, "Once", idempotent="true", writeId="w").write(iter([batch()]))
    read = TopicReader(Options({"namesrv": namesrv, "subscribe": "Once"}, KNOWN_BATCH), NAMES)
    assert rows_of(read, read.partitions()) == []


@pytest.mark.timeout(1200)  # a start of Spark, and retries of its workers on a loaded machine
def test_jobs_of_spark_write_stream_and_read_topics_of_rocketmq(
    spark: SparkSession, rocketmq: tuple[str, Path], tmp_path: Path
) -> None:
    namesrv, _ = rocketmq
    create(namesrv, "JobsFrom")
    create(namesrv, "JobsTo")

    def rows(topic: str) -> DataFrame:
        return spark.read.format("ledgermq").options(namesrv=namesrv, subscribe=topic).load()

    orders = spark.range(ROWS).selectExpr(
        "cast(id as string) as body", "concat('k', id) as keys", "'red' as tags", "cast(id % 2 as int) as queue_id"
    )
    orders.write.format("ledgermq").mode("append").options(namesrv=namesrv, topic="JobsFrom").save()
    asyncio.run(until_readable(namesrv, "JobsFrom"))
    copies = (
        spark.readStream.format("ledgermq")
        .options(namesrv=namesrv, subscribe="JobsFrom", startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load()
        .select("body", "keys", "tags", "queue_id")
        .writeStream.format("ledgermq")
        .options(namesrv=namesrv, topic="JobsTo", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    assert patiently(lambda: copies.trigger(availableNow=True).start().awaitTermination(int(STRANGER_WAIT_S)))
    asyncio.run(until_readable(namesrv, "JobsTo"))
    columns = "body", "keys", "tags", "queue_id", "queue_offset"
    sent = sorted(rows("JobsFrom").select(*columns).collect())
    assert sorted(int(row.body) for row in sent) == list(range(ROWS))
    copied = rows("JobsTo").select(*columns).collect()
    assert {row[:4] for row in copied} == {row[:4] for row in sent}
    assert len(copied) == len({(row.queue_id, row.queue_offset) for row in copied}) >= ROWS
