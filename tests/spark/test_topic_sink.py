"""Rows become messages: columns, order within a queue, what is refused; and a repeated task sends again."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructField, StructType

from ledgermq.client import MessageQueue
from ledgermq.spark.errors import ClusterError, OptionError
from ledgermq.spark.numbered import Identity, NumberedSender
from ledgermq.spark.options import Options
from ledgermq.spark.query_metrics import write_metrics
from ledgermq.spark.session import patiently
from ledgermq.spark.topic_client import Access
from ledgermq.spark.topic_sink import Sent, TopicStreamWriter, TopicWriter
from ledgermq.spark.topic_source import KNOWN_SINK, TopicSource
from tests.limits import STRANGER_WAIT_S, WAIT_S
from tests.spark.conftest import RunningBroker
from tests.spark.test_topic_source import outgoing, reader, rows_of

pytestmark = pytest.mark.timeout(600)
_numbers = itertools.count()
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema_of(text: str) -> StructType:
    """Of `name type, ...`; Spark's own parser needs a session."""
    pairs = [part.split(" ") for part in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    name = f"Sink{next(_numbers)}"
    broker.create(name, 2)
    return name


def writer(namesrv: str, ddl: str, **options: str) -> TopicWriter:
    return TopicWriter(Options(options, KNOWN_SINK), Access(namesrv, 5000), schema_of(ddl))


def read(broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    source = reader(broker, subscribe=topic)
    return sorted(rows_of(source, source.partitions()), key=lambda row: (row["queue_id"], row["queue_offset"]))


def test_rows_are_messages_in_their_order(broker: RunningBroker, topic: str) -> None:
    ddl = (
        "topic string, body binary, keys array<string>, tags string, queue_id int, properties map<string,string>, x int"
    )
    columns = {
        "topic": pa.array([topic] * 300),
        "body": pa.array([b"%05d" % n for n in range(300)], pa.binary()),
        "keys": pa.array([[f"k{n}", "all"] if n else None for n in range(300)], pa.list_(pa.string())),
        "tags": pa.array([None if n % 2 else "even" for n in range(300)]),
        "queue_id": pa.array([n % 2 for n in range(300)], pa.int32()),
        "properties": pa.array(
            [[("colour", "red"), ("UNIQ_KEY", "old"), ("none", "")]] * 300, pa.map_(pa.string(), pa.string())
        ),
        "x": pa.array([1] * 300, pa.int32()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    assert writer(broker.namesrv, ddl).write(iter([batch.slice(0, 200), batch.slice(200)])) == Sent(300)
    rows = read(broker, topic)
    assert [row["body"] for row in rows] == [b"%05d" % n for n in (*range(0, 300, 2), *range(1, 300, 2))]
    assert [row["tags"] for row in rows] == ["even"] * 150 + [None] * 150
    assert {row["keys"] for row in rows} == {None, *(f"k{n} all" for n in range(1, 300))}
    properties = [dict(row["properties"]) for row in rows]
    assert {each["colour"] for each in properties} == {"red"}
    assert not any("none" in each or each["UNIQ_KEY"] == "old" for each in properties)


@pytest.mark.parametrize(
    ("ddl", "options", "text"),
    [
        ("topic string", {}, "no column body"),
        ("body binary", {}, "no column topic, and the option topic is not given"),
        ("body int, topic string", {}, "column body is int, not binary or string"),
        ("body string, queue_id string", {"topic": "T"}, "column queue_id is string, not int"),
    ],
)
def test_columns_that_are_refused(ddl: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        writer("127.0.0.1:1", ddl, **options)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None, "topic": "T"}, "its body is null"),
        ({"body": b"", "topic": "T"}, "a row cannot be sent"),
        ({"body": b"x", "topic": None}, "its topic is null or empty"),
    ],
)
def test_rows_that_are_refused(broker: RunningBroker, row: dict[str, Any], text: str) -> None:
    schema = pa.schema([("body", pa.binary()), ("topic", pa.string())])
    with pytest.raises(OptionError, match=text):
        writer(broker.namesrv, "body binary, topic string").write(iter([pa.RecordBatch.from_pylist([row], schema)]))


def test_overwriting_and_unknown_options_are_refused() -> None:
    schema = schema_of("body binary")
    with pytest.raises(OptionError, match="mode append"):
        TopicSource({"namesrv": "n:1", "topic": "T"}).writer(schema, overwrite=True)
    with pytest.raises(OptionError, match="did you mean topic"):
        TopicSource({"namesrv": "n:1", "topik": "T"}).writer(schema, overwrite=False)


def test_a_cluster_that_does_not_answer_fails_the_task() -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x"])})
    write = TopicWriter(Options({"topic": "T"}, KNOWN_SINK), Access("127.0.0.1:1", 300), schema_of("body binary"))
    with pytest.raises(ClusterError, match="1 of 1 messages were not acknowledged"):
        write.write(iter([batch]))


def numbered_batch(first: int, count: int) -> pa.RecordBatch:
    queues = [n % 2 if n % 3 else None for n in range(first, first + count)]
    bodies = [b"%05d" % n for n in range(first, first + count)]
    columns = {"body": pa.array(bodies, pa.binary()), "queue_id": pa.array(queues, pa.int32())}
    return pa.RecordBatch.from_pydict(columns)


def waited_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def idempotent(broker: RunningBroker, topic: str, write_id: str) -> TopicWriter:
    columns = "body binary, queue_id int"
    return writer(broker.namesrv, columns, topic=topic, idempotent="true", writeId=write_id)


@pytest.mark.parametrize("sent_before", [0, 1, 1700, 3000])
def test_rows_of_a_task_that_runs_again_are_stored_once(broker: RunningBroker, topic: str, sent_before: int) -> None:
    if sent_before:
        idempotent(broker, topic, "w").write(iter([numbered_batch(0, sent_before)]))
    again = [numbered_batch(first, 1000) for first in range(0, 3000, 1000)]
    for _ in range(2):
        assert idempotent(broker, topic, "w").write(iter(again)) == Sent(3000)
    rows = read(broker, topic)
    assert sorted(row["body"] for row in rows) == [b"%05d" % n for n in range(3000)]
    for queue in (0, 1):  # the order within a queue that the rows name
        named = [int(row["body"]) for row in rows if row["queue_id"] == queue and int(row["body"]) % 3]
        assert named == sorted(named)
    idempotent(broker, topic, "v").write(iter([numbered_batch(0, 10)]))
    assert len(read(broker, topic)) == 3010


def task_3(broker: RunningBroker, topic: str, **options: str) -> TopicWriter:
    """What writes the rows of task 3, which name no queue, with 1 s of patience."""
    options = {"topic": topic, "idempotent": "true", "writeId": "w"} | options
    made = TopicWriter(Options(options, KNOWN_SINK), Access(broker.namesrv, 1000), schema_of("body binary"))
    made._identity = lambda: Identity("w", 0, 3)  # type: ignore[method-assign]
    return made


def bodies_from(first: int, count: int) -> Iterator[pa.RecordBatch]:
    return iter([numbered_batch(first, count).select(["body"])])


def test_rows_that_name_no_queue_go_on_where_they_began_when_the_topic_has_more_queues(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = task_3(broker, topic)
    planned.write(bodies_from(0, 1500))
    broker.create(topic, 5)
    questions: list[int] = []
    opened = NumberedSender._opened

    def counted(self: NumberedSender, queue: MessageQueue) -> Any:
        questions.append(queue.queue_id)
        return opened(self, queue)

    monkeypatch.setattr(NumberedSender, "_opened", counted)
    assert task_3(broker, topic).write(bodies_from(0, 2000)) == Sent(2000)
    assert questions == [3, 1], "a broker is asked once for all its queues, then the lane that it named"
    assert planned.write(bodies_from(0, 2000)) == Sent(2000)
    rows = read(broker, topic)
    assert [(row["queue_id"], int(row["body"])) for row in rows] == [(1, n) for n in range(2000)]
    with pytest.raises(ClusterError, match="has 5 queues that may be written, not queues=2: its number was changed"):
        task_3(broker, topic, queues="2")


def test_a_broker_that_left_the_route_is_waited_for_and_its_rows_go_nowhere_else(
    tmp_path: Path,
) -> None:
    with contextlib.closing(RunningBroker(tmp_path)) as running:
        with running.joined_by("c"):
            running.create("T", 2)  # task 3 writes the second queue of c
            planned = task_3(running, "T")
            planned.write(bodies_from(0, 100))
        with pytest.raises(ClusterError, match="broker c"):
            planned.write(bodies_from(0, 200))
        with pytest.raises(ClusterError, match="has 2 queues that may be written, not queues=4: a broker is away"):
            task_3(running, "T", queues="4")
        with running.joined_by("c"):
            waited_until(lambda: len(reader(running, subscribe="T").partitions()) == 1)
            assert task_3(running, "T", queues="4").write(bodies_from(0, 200)) == Sent(200)
            assert planned.write(bodies_from(0, 200)) == Sent(200)
            rows = read(running, "T")
    assert [(row["broker"], row["queue_id"], int(row["body"])) for row in rows] == [("c", 1, n) for n in range(200)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queues": "2"}, "with idempotent=true only"),
        ({"idempotent": "true"}, "needs writeId"),
        ({"idempotent": "true", "writeId": "a/b"}, "writeId='a/b'"),
        ({"writeId": "a"}, "with idempotent=true only"),
        ({"idempotent": "yes"}, "true or false"),
    ],
)
def test_options_of_idempotent_writes_that_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        writer("127.0.0.1:1", "body binary", topic="T", **options)
    if "needs" not in text:
        with pytest.raises(OptionError):
            TopicStreamWriter(Options({"topic": "T"} | options, KNOWN_SINK), Access("n:1"), schema_of("body binary"))


def test_a_batch_that_a_stream_repeats_is_stored_once(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}From"
    broker.create(source, 1)
    broker.send(source, outgoing(60))
    query = (
        spark.readStream.format("ledgermq")
        .options(namesrv=broker.namesrv, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
        .selectExpr("body", "keys")
        .writeStream.format("ledgermq")
        .options(
            namesrv=broker.namesrv, topic=topic, idempotent="true", checkpointLocation=str(tmp_path / "checkpoint")
        )
    )

    def run() -> None:
        patiently(lambda: query.trigger(availableNow=True).start().awaitTermination(int(STRANGER_WAIT_S)))

    lines = tmp_path / "metrics.jsonl"
    lines.touch()

    def batches() -> list[tuple[int, ...]]:
        names = "batchId", "numInputRows", "numQueues", "maxOffsetsBehindLatest"
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        return [tuple(row[name] for name in names) for row in rows if "batchId" in row]

    listener = write_metrics(spark, lines)
    try:
        run()
        commits = tmp_path / "checkpoint" / "commits"  # as if Spark had been killed before it wrote the last batch down
        (commits / "1").unlink()
        assert not list(commits.glob(".*")), "no checksums, for which Hadoop would start processes"
        broker.send(source, outgoing(5))
        run()
        waited_until(lambda: len(batches()) >= 4)
    finally:
        spark.streams.removeListener(listener)
    first, second, again, more = batches()
    assert [first, second, more] == [(0, 40, 1, 20), (1, 20, 1, 0), (2, 5, 1, 0)]
    assert again[:3] == (1, 20, 1)
    for row in (json.loads(line) for line in lines.read_text().splitlines()):
        if "batchId" in row:
            assert row["plannedInputRows"] == row["numInputRows"]
            assert (row["batchFetchRequests"] >= 1, row["totalFetchErrors"]) == (True, 0)
            assert 0 < row["avgFetchLatencyMs"] <= row["maxFetchLatencyMs"]
    assert len(read(broker, topic)) == 65


def test_a_batch_and_a_stream_from_topic_to_topic(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    spark.range(50).selectExpr("cast(id as string) as body", "'t' as tags").write.format("ledgermq").mode(
        "append"
    ).options(namesrv=broker.namesrv, topic=topic).save()
    assert sorted(int(row["body"]) for row in read(broker, topic)) == list(range(50))
    source = f"{topic}From"
    broker.create(source, 1)
    broker.send(source, outgoing(60))
    rows = spark.readStream.format("ledgermq").options(
        namesrv=broker.namesrv, subscribe=source, startingOffsets="earliest"
    )
    query = (
        rows.load()
        .selectExpr("body", "keys", "tags", "properties", "0 as queue_id")
        .writeStream.format("ledgermq")
        .options(namesrv=broker.namesrv, topic=f"{topic}To", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    broker.create(f"{topic}To", 1)
    assert patiently(lambda: query.trigger(availableNow=True).start().awaitTermination(int(STRANGER_WAIT_S)))
    before, after = read(broker, source), read(broker, f"{topic}To")
    assert [(row["body"], row["keys"], row["tags"]) for row in after] == [
        (row["body"], row["keys"], row["tags"]) for row in before
    ]
    with pytest.raises(PySparkException, match="mode append"):
        spark.range(1).selectExpr("'x' as body").write.format("ledgermq").mode("overwrite").options(
            namesrv=broker.namesrv, topic=topic
        ).save()
