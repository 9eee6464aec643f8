"""How fast does Spark read topics of a live broker on the same cores, and what does a micro-batch cost?

    python -m benchmarks.spark.topics [--messages 1000000] [--rounds 5] [--batches 40]

Starts a nameserver and a broker of ours, and fills a topic of four queues with messages of 1 KiB. Each round reads all
of it in turn: the bytes by our client in this process alone, the same rows as the source's, still without Spark, and
the topic source on Spark. CPU time includes the broker.

Then, micro-batches of one message each, to a sink that drops them, and to another topic. The baselines are Spark's own
source `rate-micro-batch` with an empty `foreachBatch`, and a source and a sink in Python that ask nobody: what these
take is Spark's own. One line more is the topic source with the checksums that Spark writes by itself.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from benchmarks.node_process import pair
from benchmarks.spark.processes import adopt, cpu_s
from benchmarks.spark.rounds import Goal, Rounds, print_goals, print_rates, run
from ledgermq.client import Admin, Outgoing, Producer
from ledgermq.spark.columns import TYPES
from ledgermq.spark.options import Options
from ledgermq.spark.session import make_session
from ledgermq.spark.topic_client import Access, TopicClient
from ledgermq.spark.topic_source import KNOWN_BATCH, TopicReader

QUEUES = 4
BODY_BYTES = 1024
SENT_AT_ONCE = 20_000
NAMES = [name for name in TYPES if not name.startswith("record")]
BYTES, ROWS, SPARK = "our client, bytes", "our client, rows", "topic source"
GOALS = [(SPARK, Goal(300, "k")), (SPARK, Goal(0.4, BYTES)), (SPARK, Goal(0.8, ROWS))]
OVERHEAD_GOAL_MS = 120
WITH_CHECKSUMS = "the same, with Spark's own checksums"


class OneRow(DataSource):
    """The least that a source and a sink in Python can do: each micro-batch has one row, which is dropped."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "one-row"

    def schema(self) -> str:
        """One column."""
        return "body binary"

    def streamReader(self, schema: StructType) -> "OneRowReader":  # noqa: N802 - Spark's name
        """The reader."""
        return OneRowReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> "OneRowWriter":  # noqa: N802 - Spark's name
        """The writer."""
        return OneRowWriter()


class OneRowReader(DataSourceStreamReader):
    """Counts micro-batches."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The start."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """One more."""
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task."""
        return [InputPartition(end["n"])]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """One row."""
        yield pa.RecordBatch.from_arrays([pa.array([b"x"], pa.binary())], ["body"])


class OneRowWriter(DataSourceStreamArrowWriter):
    """Takes rows and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing."""


async def fill(namesrv: str, topic: str, queues: int, count: int) -> None:
    """Make a topic with messages of hex digits, no two alike."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, queues)
        for queue in range(queues):
            for first in range(0, count // queues, SENT_AT_ONCE):
                number = min(SENT_AT_ONCE, count // queues - first)
                messages = [Outgoing(os.urandom(BODY_BYTES // 2).hex().encode()) for _ in range(number)]
                await producer.send_many(topic, messages, queue=queue)


def pull(namesrv: str, topic: str) -> int:
    """Pull all bytes of a topic, queue by queue; their number."""
    with TopicClient(Access(namesrv)) as client:
        ends = client.ends(client.queues([topic]))
        return sum(len(found.data) for queue, end in ends.items() for found in client.fetched(queue, 0, end))


def rows(namesrv: str, topic: str) -> int:
    """Make the rows of a topic as the source does; their number."""
    reader = TopicReader(Options({"namesrv": namesrv, "subscribe": topic}, KNOWN_BATCH), NAMES)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.rows(part))


def reading(spark: SparkSession, namesrv: str, count: int, rounds: int) -> None:
    """Measure reads of one topic."""
    topic = "Read"
    asyncio.run(fill(namesrv, topic, QUEUES, count))
    frame = spark.read.format("ledgermq").options(namesrv=namesrv, subscribe=topic).load()
    jobs: dict[str, Callable[[], object]] = {
        BYTES: lambda: pull(namesrv, topic),
        ROWS: lambda: rows(namesrv, topic),
        SPARK: lambda: run(frame),
    }
    measured = {name: Rounds(count, count * BODY_BYTES / 1e6) for name in jobs}
    run(frame)
    for _ in range(rounds):
        for name, act in jobs.items():
            measured[name].run(act)
    print_rates(measured, [BYTES, ROWS])
    print_goals(measured, GOALS)


def batch_ms(writer: Any, batches: int) -> list[dict[str, int]]:
    """Run a stream until it has done so many micro-batches; ms of each but the first two, by what they were for."""
    query = writer.start()
    while query.isActive and len(query.recentProgress) < batches:
        time.sleep(0.05)
    query.stop()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    durations = [each["durationMs"] for each in query.recentProgress]
    return [each for each in durations if "addBatch" in each][2:]


def micro_batches(spark: SparkSession, namesrv: str, batches: int, folder: str) -> None:
    """Measure micro-batches of one message."""
    asyncio.run(fill(namesrv, "Small", 1, batches))
    asyncio.run(fill(namesrv, "Copies", 1, 1))
    own = spark.readStream.format("ledgermq").options(
        namesrv=namesrv, subscribe="Small", startingOffsets="earliest", maxOffsetsPerTrigger="1"
    )
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    spark.dataSource.register(OneRow)
    one_row = spark.readStream.format("one-row")
    writers = {
        "rate-micro-batch, empty foreachBatch": rate.writeStream.foreachBatch(lambda *_: None),
        "one row of Python, dropped": one_row.load().writeStream.format("noop"),
        "one row of Python, sink in Python": one_row.load().writeStream.format("one-row"),
        "topic source, rows dropped": own.load().writeStream.format("noop"),
        WITH_CHECKSUMS: own.load().writeStream.format("noop"),
        "topic source, topic sink": own.load()
        .selectExpr("body", "keys")
        .writeStream.format("ledgermq")
        .options(namesrv=namesrv, topic="Copies"),
    }
    parts = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
    titles = "".join(f"{part:>15}" for part in parts)
    print(f"\n{'micro-batches of one message':<38}{'median ms':>10}{'best':>6}{'/ base':>8}{'CPU ms':>8}{titles}")
    base = 0.0
    for number, (name, writer) in enumerate(writers.items()):
        kind = "LocalFs" if name == WITH_CHECKSUMS else "RawLocalFs"
        spark.conf.set("fs.AbstractFileSystem.file.impl", f"org.apache.hadoop.fs.local.{kind}")
        began_cpu = cpu_s()
        started = writer.option("checkpointLocation", f"{folder}/{number}").trigger(processingTime="0 seconds")
        taken = batch_ms(started, batches)
        cpu_ms = 1000 * (cpu_s() - began_cpu) / batches
        whole = [each["triggerExecution"] for each in taken]
        median = statistics.median(whole)
        base = base or median
        met = "met" if median <= OVERHEAD_GOAL_MS else "MISSED"
        verdict = f"  goal {OVERHEAD_GOAL_MS}: {met}" if name.startswith(SPARK) else ""
        shares = "".join(f"{statistics.median(each.get(part, 0) for each in taken):>15.0f}" for part in parts)
        print(f"{name:<38}{median:>10.0f}{min(whole):>6}{median / base:>8.2f}{cpu_ms:>8.0f}{shares}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    arguments = parser.parse_args()
    adopt()
    with pair() as brokers, tempfile.TemporaryDirectory() as folder:
        Path(folder, "checkpoints").mkdir()
        began = time.perf_counter()
        # Spark keeps the progress of 99 batches by itself, one less than this setting: a wait for more would not end
        kept = {"spark.sql.streaming.numRecentProgressUpdates": str(arguments.batches + 1)}
        spark = make_session("topics", kept)
        spark.range(1).collect()
        print(f"Spark's start and first job: {time.perf_counter() - began:.1f} s")
        micro_batches(spark, brokers.namesrv, arguments.batches, f"{folder}/checkpoints")
        reading(spark, brokers.namesrv, arguments.messages, arguments.rounds)
        spark.stop()


if __name__ == "__main__":
    main()
