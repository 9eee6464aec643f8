"""`format("ledgermq")` from a broker: rows, offsets that are gone, streams and their restarts, a change of leader."""

import asyncio
import contextlib
import itertools
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyspark.sql.datasource
import pyspark.sql.streaming.datasource
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from broker.pull import processor
from ledgermq.client import Admin, MessageQueue, Outgoing, Producer
from ledgermq.client.core.calls import Answered, Calls
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.spark.columns import TYPES
from ledgermq.spark.errors import ClusterError, DataLossError, OptionError
from ledgermq.spark.options import Options
from ledgermq.spark.session import patiently
from ledgermq.spark.topic_client import Access, TopicClient
from ledgermq.spark.topic_source import (
    KNOWN_BATCH,
    KNOWN_STREAM,
    TopicPart,
    TopicReader,
    TopicSource,
    TopicStreamReader,
)
from tests.cluster.processes import Cluster, raft_group
from tests.limits import STRANGER_WAIT_S
from tests.spark.conftest import RunningBroker

pytestmark = pytest.mark.timeout(600)
NAMES = [name for name in TYPES if not name.startswith("record")]
_numbers = itertools.count()


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    """A new topic with two queues."""
    name = f"Source{next(_numbers)}"
    broker.create(name, 2)
    return name


def outgoing(count: int, first: int = 0, size: int = 20) -> list[Outgoing]:
    return [
        Outgoing(f"{n:06d}".encode().ljust(size, b"."), tags="even" if n % 2 == 0 else "odd", keys=[f"k{n}"])
        for n in range(first, first + count)
    ]


async def create_group(broker: RunningBroker, group: str) -> None:
    async with Admin(broker.namesrv) as admin:
        await admin.create_group(group)


def reader(broker: RunningBroker, **options: str) -> TopicReader:
    return TopicReader(Options({"namesrv": broker.namesrv, **options}, KNOWN_BATCH), NAMES)


def stream(broker: RunningBroker, **options: str) -> TopicStreamReader:
    return TopicStreamReader(Options({"namesrv": broker.namesrv, **options}, KNOWN_STREAM), NAMES)


def rows_of(read: TopicReader | TopicStreamReader, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for batch in read.rows(part) for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"][:6]) for row in rows)


def test_rows_are_what_was_sent_whichever_the_parts(broker: RunningBroker, topic: str) -> None:
    results = broker.send(topic, outgoing(700), queue=0)
    broker.send(topic, outgoing(5, 700, size=300_000), queue=1)
    for split_bytes in ("0", "5000", "67108864"):
        read = reader(broker, subscribe=topic, splitBytes=split_bytes)
        parts = list(read.partitions())
        assert (len(parts) > 10) is (split_bytes == "5000")
        rows = rows_of(read, parts)
        assert numbers(rows) == list(range(705))
        by_offset = {row["queue_offset"]: row for row in rows if row["queue_id"] == 0}
        for result, number in zip(results, range(700), strict=True):
            row = by_offset[result.queue_offset]
            assert (row["msg_id"], row["keys"], row["tags"]) == (
                result.message_id, f"k{number}", "even" if number % 2 == 0 else "odd",
            )  # fmt: skip
            assert (row["topic"], row["broker"], row["damage"]) == (topic, "b", None)


@pytest.mark.parametrize("knows_bulk", [True, False])
def test_a_broker_that_does_not_know_of_bulk_pulls_is_read_in_many(
    broker: RunningBroker, topic: str, knows_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send(topic, outgoing(2000), queue=0)
    if not knows_bulk:
        monkeypatch.setattr(processor, "BULK", "unheard of")
    read = reader(broker, subscribe=topic)
    parts = list(read.partitions())
    before = broker.pulls_found
    assert numbers(rows_of(read, parts)) == list(range(2000))
    assert (broker.pulls_found - before <= 2) is knows_bulk, "32 messages, then all others in one answer"
    odd = reader(broker, subscribe=topic, tags="odd")
    assert numbers(rows_of(odd, odd.partitions())) == list(range(1, 2000, 2))


def test_bounds_and_tags_choose(broker: RunningBroker, topic: str) -> None:
    broker.send(topic, outgoing(300), queue=0)
    asyncio.run(asyncio.sleep(0.02))
    second = broker.send(topic, outgoing(100, 300), queue=0)
    given = json.dumps({topic: {"b": {"0": 120}}})
    read = reader(broker, subscribe=topic, startingOffsets=given, endingOffsets=given.replace("120", "310"))
    assert numbers(rows_of(read, read.partitions())) == list(range(120, 310))
    odd = reader(broker, subscribe=topic, tags="odd || none")
    assert numbers(rows_of(odd, odd.partitions())) == list(range(1, 400, 2))
    both = reader(broker, assign=json.dumps({topic: {"b": [0]}}), tags="odd||even")
    assert numbers(rows_of(both, both.partitions())) == list(range(400))
    with TopicClient(Access(broker.namesrv)) as client:
        queue = MessageQueue(topic, "b", 0)
        times = {row["queue_offset"]: row["store_ts"] for row in rows_of(both, both.partitions())}
        broker.run(create_group(broker, "readers"))
        moment = int(times[second[0].queue_offset].timestamp() * 1000)
        assert client.at_time([queue], moment)[queue] == 300
        assert client.at_time([queue], 0)[queue] == 0
        assert client.at_time([queue], moment + 10**7)[queue] == 400
        client.commit("readers", {queue: 390})
        assert client.committed("readers", [queue, queue._replace(queue_id=1)]) == {
            queue: 390,
            queue._replace(queue_id=1): None,
        }
    late = reader(broker, subscribe=topic, startingTimestamp=str(moment))
    assert numbers(rows_of(late, late.partitions())) == list(range(300, 400))
    group = reader(broker, subscribe=topic, startingOffsets="group:readers")
    assert numbers(rows_of(group, group.partitions())) == list(range(390, 400))


def test_compressed_bodies_are_as_they_were_sent(broker: RunningBroker, topic: str) -> None:
    async def send() -> None:
        async with Producer(broker.namesrv, compress_over_bytes=100) as producer:
            await producer.send(topic, b"z" * 5000, queue=0)
            await producer.send(topic, b"small", queue=0)

    broker.run(send())
    read = reader(broker, subscribe=topic)
    rows = sorted(rows_of(read, read.partitions()), key=lambda row: row["queue_offset"])
    assert [row["body"] for row in rows] == [b"z" * 5000, b"small"]
    assert [row["sys_flag"] & 1 for row in rows] == [1, 0]
    assert rows[0]["size"] < 1000


def test_offsets_that_are_gone_fail_with_their_ranges_or_are_rows(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path)
    try:
        broker.create("Gone", 1)
        broker.send("Gone", outgoing(60, size=50_000))
        read = reader(broker, subscribe="Gone")
        planned = list(read.partitions())
        told = stream(broker, subscribe="Gone", startingOffsets="earliest")
        end = told.latestOffset(told.initialOffset(), ReadAllAvailable())
        broker.clean()
        with TopicClient(Access(broker.namesrv)) as client:
            first = client.firsts([MessageQueue("Gone", "b", 0)])[MessageQueue("Gone", "b", 0)]
        assert 0 < first < 60
        text = f"{first} messages are gone: Gone/b/0: offsets 0 to {first - 1}"
        with pytest.raises(DataLossError, match=text):
            rows_of(read, planned)  # they were there when the plan was made
        with pytest.raises(DataLossError, match=text):
            told.partitions(told.initialOffset(), end)
        told.stop()
        begin = json.dumps({"Gone": {"b": {"0": 0}}})
        with pytest.raises(DataLossError, match=text) as caught:
            reader(broker, subscribe="Gone", startingOffsets=begin).partitions()
        assert caught.value.exit_code == 1
        lenient = reader(broker, subscribe="Gone", startingOffsets=begin, failOnDataLoss="false")
        rows = rows_of(lenient, lenient.partitions())
        lost, kept = [row for row in rows if row["damage"]], [row for row in rows if not row["damage"]]
        assert [(row["queue_offset"], row["damage"], row["body"]) for row in lost] == [(0, text, None)]
        assert numbers(kept) == list(range(first, 60))
        assert numbers(
            rows_of(reader(broker, subscribe="Gone"), reader(broker, subscribe="Gone").partitions())
        ) == list(range(first, 60))
    finally:
        broker.close()


def test_a_replayed_batch_reads_the_same_and_a_new_queue_is_read_from_its_beginning(
    broker: RunningBroker, topic: str
) -> None:
    broker.send(topic, outgoing(10), queue=0)
    first = stream(broker, subscribe=topic, startingOffsets="latest")
    start = first.initialOffset()
    empty = first.latestOffset(start, ReadAllAvailable())
    assert first.partitions(start, empty) == []
    assert first.latestOffset(empty, ReadAllAvailable()) is empty
    broker.send(topic, outgoing(50, 10), queue=0)
    end = first.latestOffset(empty, first.getDefaultReadLimit())
    parts = first.partitions(empty, end)
    assert numbers(rows_of(first, parts)) == list(range(10, 60))
    first.stop()
    # The engine dies before the commit; the head moves on; another process plans the batch from the log again.
    broker.send(topic, outgoing(50, 60), queue=0)
    again = stream(broker, subscribe=topic, startingOffsets="latest")
    written = json.loads(json.dumps(empty)), json.loads(json.dumps(end))
    assert numbers(rows_of(again, again.partitions(*written))) == list(range(10, 60))
    broker.create(topic, 3)
    broker.send(topic, outgoing(7, 200), queue=2)
    after = again.latestOffset(end, ReadAllAvailable())
    assert after["from"] == {f"{topic}/b/2": 0}
    assert numbers(rows_of(again, again.partitions(end, after))) == [*range(60, 110), *range(200, 207)]
    again.stop()


def test_a_micro_batch_is_planned_with_two_questions_a_queue_that_has_messages(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    at_leader = Calls.at_leader

    async def counted(self: Calls, *arguments: Any, **named: Any) -> Answered:
        asked[arguments[2]] += 1
        return await at_leader(self, *arguments, **named)

    read = stream(broker, subscribe=topic, startingOffsets="earliest")
    start = read.latestOffset(read.initialOffset(), read.getDefaultReadLimit())
    read.reportLatestOffset()
    broker.send(topic, outgoing(5), queue=0)
    monkeypatch.setattr(Calls, "at_leader", counted)
    end = read.latestOffset(start, read.getDefaultReadLimit())
    latest = read.reportLatestOffset()
    assert latest is not None and latest["q"] == end["q"] == {f"{topic}/b/0": 5, f"{topic}/b/1": 0}
    assert len(read.partitions(start, end)) == 1
    assert asked == {RequestCode.GET_MAX_OFFSET: 2, RequestCode.PULL_MESSAGE: 2}, "one end a queue, two looks"
    broker.send(topic, outgoing(1), queue=1)
    latest = read.reportLatestOffset()
    assert latest is not None and latest["q"][f"{topic}/b/1"] == 1, "not planned now: asked anew"
    read.stop()


def test_a_broker_that_is_lost_in_a_batch_fails_the_task_which_reads_the_same_when_it_is_back(tmp_path: Path) -> None:
    with contextlib.closing(RunningBroker(tmp_path)) as running:
        with running.joined_by("c"):
            running.create("T", 1)
            read = reader(running, assign='{"T":{"c":[0]}}', splitBytes="0", fetchTimeoutMs="1000")
            for first, end in ((0, 40), (40, 3000)):
                running.send("T", outgoing(end - first, first, size=4000), queue=1)  # of c; too much to read ahead
            parts = list(read.partitions())
            batches = read.rows(parts[0])
            begun = next(batches).num_rows
        with pytest.raises(ClusterError, match="broker c"):
            list(batches)
        assert 0 < begun < 3000
        with running.joined_by("c"):
            patient = reader(running, assign='{"T":{"c":[0]}}', splitBytes="0")
            assert numbers(rows_of(patient, parts)) == list(range(3000))


def test_a_commit_for_a_group_that_fails_is_logged_only(
    broker: RunningBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    read = stream(broker, subscribe=topic, commitGroup="nobody", fetchTimeoutMs="500")
    end = read.latestOffset(read.initialOffset(), ReadAllAvailable())
    gone = {name: ({f"{topic}/absent/0": 5} if name == "q" else value) for name, value in end.items()}
    read.commit(gone)
    assert "the offsets of group nobody are not committed" in caplog.text
    read.stop()


def test_a_topic_that_was_made_again_fails_or_is_read_from_its_beginning(broker: RunningBroker, topic: str) -> None:
    broker.send(topic, outgoing(10), queue=0)
    settings = {"subscribe": topic, "startingOffsets": "earliest", "fetchTimeoutMs": "300"}
    read = stream(broker, **settings)
    end = read.latestOffset(read.initialOffset(), ReadAllAvailable())
    broker.delete(topic)
    broker.create(topic, 2)
    broker.send(topic, outgoing(4, 50), queue=0)
    with pytest.raises(DataLossError, match=f"{topic}/b/0 ends at 4, and was read up to 10: a topic was removed"):
        read.latestOffset(end, ReadAllAvailable())
    read.stop()
    lenient = stream(broker, **settings, failOnDataLoss="false")
    after = lenient.latestOffset(end, ReadAllAvailable())
    assert after["from"] == {f"{topic}/b/0": 0}
    assert numbers(rows_of(lenient, lenient.partitions(end, after))) == list(range(50, 54))
    assert lenient.latestOffset(after, ReadAllAvailable()) is after
    lenient.stop()


def test_the_limits_of_a_batch_hold(broker: RunningBroker, topic: str) -> None:
    broker.send(topic, outgoing(90), queue=0)
    broker.send(topic, outgoing(10, 90), queue=1)
    read = stream(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert read.getDefaultReadLimit() == ReadMaxRows(20)
    read.prepareForTriggerAvailableNow()
    broker.send(topic, outgoing(30, 100), queue=1)  # after the query has begun: not its business
    offset, batches = read.initialOffset(), []
    while (following := read.latestOffset(offset, read.getDefaultReadLimit())) != offset:
        batches.append(numbers(rows_of(read, read.partitions(offset, following))))
        offset = following
    assert [len(batch) for batch in batches] == [20] * 5
    assert sorted(itertools.chain(*batches)) == list(range(100))
    assert all(any(number >= 90 for number in batch) for batch in batches), "both queues are read in each batch"
    read.stop()
    small = stream(broker, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="4000")
    end = small.latestOffset(small.initialOffset(), small.getDefaultReadLimit())
    rows = rows_of(small, small.partitions(small.initialOffset(), end))
    assert 2000 < sum(row["size"] for row in rows) <= 4400
    whole = small.latestOffset(small.initialOffset(), ReadAllAvailable())
    assert whole["q"] == {f"{topic}/b/0": 90, f"{topic}/b/1": 40}
    small.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscrib": "T"}, "did you mean subscribe"),
        ({"subscribe": "T", "endingOffsets": "latest"}, "unknown option 'endingoffsets'"),
        ({"subscribe": "T", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be 1 or more"),
        ({"subscribe": "T", "tags": "||"}, "names no tag"),
        ({"subscribe": "T", "namesrv": ""}, "namesrv is not given"),
    ],
)
def test_options_of_a_stream_that_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        TopicStreamReader(Options({"namesrv": "127.0.0.1:1", **options}, KNOWN_STREAM), NAMES)


def test_options_of_the_other_kind_of_query_are_named() -> None:
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger has no meaning in a batch"):
        TopicSource({"subscribe": "T", "maxoffsetspertrigger": "3"}).reader(StructType())
    with pytest.raises(OptionError, match="endingOffsets has no meaning in a stream"):
        TopicSource({"subscribe": "T", "endingoffsets": "latest"}).streamReader(StructType())


def test_sources_in_python_have_no_real_time_mode_yet() -> None:
    """When this fails, PySpark has got one: serve it, and change what docs/pipeline.md says of it."""
    names = {*dir(pyspark.sql.datasource), *dir(pyspark.sql.streaming.datasource), *dir(DataSourceStreamReader)}
    assert "SupportsTriggerAvailableNow" in names
    assert not [name for name in names if "realtime" in name.lower().replace("_", "")]


def test_a_cluster_that_does_not_answer_or_know_the_topic_is_told(broker: RunningBroker) -> None:
    with pytest.raises(ClusterError, match="nameserver"):
        TopicReader(
            Options({"namesrv": "127.0.0.1:1", "subscribe": "T", "fetchTimeoutMs": "300"}, KNOWN_BATCH), NAMES
        ).partitions()
    with pytest.raises(ClusterError, match="'Absent'"):
        reader(broker, subscribe="Absent", fetchTimeoutMs="300").partitions()


def test_batch_and_stream_in_spark(spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path) -> None:
    broker.send(topic, outgoing(100), queue=0)
    broker.run(create_group(broker, "lag"))
    load = {"namesrv": broker.namesrv, "subscribe": topic}
    frame = spark.read.format("ledgermq").options(**load).load()
    assert frame.selectExpr("count(*)", "count(distinct msg_id)").collect()[0][:] == (100, 100)
    broker.send(topic, outgoing(40, 100), queue=1)
    assert frame.count() == 100, "a plan is a snapshot"
    nothing = spark.read.format("ledgermq").options(**load, startingOffsets="latest").load()
    assert nothing.count() == 0
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        spark.read.format("ledgermq").option("subscribed", topic).load()

    def run() -> Any:
        source = spark.readStream.format("ledgermq").options(
            **load, startingOffsets="earliest", maxOffsetsPerTrigger="60", commitGroup="lag", columns="body,queue_id"
        )
        query = (
            source.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(STRANGER_WAIT_S))
        return query

    query = patiently(run)
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [60, 60, 20]
    broker.send(topic, outgoing(25, 140), queue=0)
    patiently(run)
    bodies = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.body[:6]) for row in bodies) == list(range(165))
    with TopicClient(Access(broker.namesrv)) as client:
        committed = client.committed("lag", client.queues([topic]))
    assert sum(offset or 0 for offset in committed.values()) == 140, "a commit comes with the batch after"


@pytest.mark.cluster
def test_a_change_of_leader_inside_a_batch_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with raft_group(tmp_path) as cluster:
        _read_through_failovers(cluster)


@pytest.mark.cluster
def test_each_queue_is_read_from_the_member_that_the_leader_suggests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    at_leader = Calls.at_leader

    async def watched(self: Calls, *arguments: Any, **named: Any) -> Answered:
        answered = await at_leader(self, *arguments, **named)
        if "first_id" in named:
            asked.add(answered.target.address)
        return answered

    async def fill(namesrv: str) -> None:
        async with Admin(namesrv, deadline_s=60) as admin, Producer(namesrv, deadline_s=60) as producer:
            await admin.create_topic("Spread", 3)
            for queue in range(3):
                await producer.send_many("Spread", outgoing(300, 300 * queue), queue=queue)

    with raft_group(tmp_path) as cluster:
        asyncio.run(fill(cluster.namesrv))
        options = {"namesrv": cluster.namesrv, "subscribe": "Spread", "splitBytes": "0"}
        read = TopicReader(Options(options, KNOWN_BATCH), NAMES)
        parts = list(read.partitions())
        monkeypatch.setattr(Calls, "at_leader", watched)
        assert numbers(rows_of(read, parts)) == list(range(900))
    assert len(asked) == 3, "three queues, three members"


def _read_through_failovers(cluster: Cluster) -> None:
    async def fill() -> None:
        async with Admin(cluster.namesrv, deadline_s=60) as admin, Producer(cluster.namesrv, deadline_s=60) as producer:
            await admin.create_topic("T", 1)
            await producer.send_many("T", outgoing(6000, size=400), queue=0)

    asyncio.run(fill())
    read = TopicReader(
        Options({"namesrv": cluster.namesrv, "subscribe": "T", "splitBytes": "0"}, KNOWN_BATCH), [*NAMES, "record_crc"]
    )
    (part,) = read.partitions()
    assert isinstance(part, TopicPart)
    rows: list[dict[str, Any]] = []
    deeds = [(500, ["kill", "leader"]), (3000, ["start", "dead"])]
    for batch in read.rows(part):
        rows += batch.to_pylist()
        while deeds and len(rows) > deeds[0][0]:
            cluster.act(*deeds.pop(0)[1])
    assert not deeds
    assert [row["queue_offset"] for row in rows] == list(range(6000))
    assert [zlib.crc32(row["body"]) for row in rows] == [zlib.crc32(each.body) for each in outgoing(6000, size=400)]
