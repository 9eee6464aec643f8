"""`ledgermq pipeline`: the data pipeline on Spark as commands; the exit code is the verdict."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from node.errors import CommandError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_SHOWN_MAX = 20


class PipelineCommandError(CommandError):
    """A job could not run, or found damage."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def add_parser(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words of `ledgermq pipeline`."""
    parser = commands.add_parser("pipeline", help="read and audit store directories on Spark (Java 17 is needed)")
    words = parser.add_subparsers(dest="word", metavar="COMMAND", required=True)

    audit = words.add_parser("audit", help="what producers were told against every replica's log; exit code 0: sound")
    audit.add_argument(
        "stores", nargs="+", metavar="DIR", help="store directory of each replica; nodes must be stopped"
    )
    audit.add_argument("--history", action="append", default=[], metavar="FILE", help="JSON Lines of what was told")
    audit.add_argument("--topics", default="", metavar="A,B", help="only these; default: those of the history, or all")
    audit.add_argument("--copies", type=int, metavar="N", help="logs that must hold what was acknowledged (majority)")
    audit.add_argument("--json", type=Path, metavar="FILE", help="write counts and findings there")
    audit.set_defaults(run=_audit)

    count = words.add_parser("count", help="messages and bytes by topic and queue")
    count.add_argument("stores", nargs="+", metavar="DIR", help="store directories of different groups")
    count.set_defaults(run=_count)


def _audit(arguments: argparse.Namespace) -> int:
    def job(spark: Any) -> int:
        from ledgermq.spark.audit import audit

        topics = [topic for topic in arguments.topics.split(",") if topic]
        found = audit(spark, arguments.stores, arguments.history, topics=topics, copies=arguments.copies)
        for store, records in found.records.items():
            print(f"{records:>12,} records  {store}")
        if arguments.history:
            print(f"{found.acknowledged:>12,} acknowledged")
        for kind, number in found.counts.items():
            print(f"{number:>12,} {kind}")
        for row in found.findings.orderBy("kind", "topic", "queue_id", "queue_offset").limit(_SHOWN_MAX).collect():
            place = f"{row.topic}/{row.queue_id} @{row.queue_offset}"
            print(f"  {row.kind}: {place}  key {row.key}: {row.detail}")
        if arguments.json is not None:
            rows = [row.asDict() for row in found.findings.toLocalIterator()]
            report = {"sound": found.is_sound, "counts": found.counts, "records": found.records, "findings": rows}
            arguments.json.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        print("sound" if found.is_sound else "NOT SOUND")
        return 0 if found.is_sound else 1

    return _run(job)


def _count(arguments: argparse.Namespace) -> int:
    def job(spark: Any) -> int:
        from pyspark.sql import functions

        rows = spark.read.format("ledgermq-store").option("mode", "headers").load(arguments.stores)
        total = rows.groupBy("topic", "queue_id").agg(
            functions.count("*").alias("messages"),
            functions.sum("size").alias("bytes"),
            functions.min("queue_offset").alias("first"),
            functions.max("queue_offset").alias("last"),
        )
        print(f"{'topic':<40} {'queue':>5} {'messages':>12} {'bytes':>16} {'first':>12} {'last':>12}")
        for row in total.orderBy("topic", "queue_id").toLocalIterator():
            print(
                f"{row.topic:<40} {row.queue_id:>5} {row.messages:>12,} {row.bytes:>16,} {row.first:>12} {row.last:>12}"
            )
        return 0

    return _run(job)


def _run(job: Any) -> int:
    """Run a job in a session of its own; the start of Spark is told apart.

    Raises:
        PipelineCommandError: what the job, or the start of Spark, refused.
    """
    from ledgermq.spark.errors import PipelineError
    from ledgermq.spark.session import check_tools, make_session

    try:
        check_tools()
    except PipelineError as error:
        raise PipelineCommandError(str(error), error.exit_code) from None
    from pyspark.errors import PySparkException

    began = time.monotonic()
    spark = make_session("ledgermq pipeline")
    print(f"Spark {spark.version} started in {time.monotonic() - began:.1f} s", file=sys.stderr)
    began = time.monotonic()
    try:
        code: int = job(spark)
    except PipelineError as error:
        raise PipelineCommandError(str(error), error.exit_code) from None
    except PySparkException as error:
        raise PipelineCommandError(*_own_error(str(error))) from None
    finally:
        spark.stop()
    print(f"done in {time.monotonic() - began:.1f} s", file=sys.stderr)
    return code


def _own_error(text: str) -> tuple[str, int]:
    """Return the text of the error that our code raised in a worker of Spark, without traceback, and its exit code."""
    from ledgermq.spark import errors

    for line in reversed(text.splitlines()):
        name, _, detail = line.strip().partition(": ")
        kind = getattr(errors, name.rpartition(".")[2], None) if name.startswith("ledgermq.spark.errors.") else None
        if kind is not None:
            return detail, kind.exit_code
    return text.strip().splitlines()[0], 2
