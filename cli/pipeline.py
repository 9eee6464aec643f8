"""`ledgermq pipeline`: the data pipeline on Spark as commands; the exit code is the verdict."""

import argparse
import csv
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ledgermq.message.index_unit import IndexLayout
from node.errors import CommandError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from ledgermq.spark.log_files import StoreDirectory

_SHOWN_MAX = 20
_PATTERN = frozenset("*?[{")
_PROGRESS_S = 2.0
_CLUSTER_WAIT_MS = 10_000


class PipelineCommandError(CommandError):
    """A job could not run, or found damage."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def add_parser(commands: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words of `ledgermq pipeline`."""
    parser = commands.add_parser(
        "pipeline", help="read, audit and archive logs and topics on Spark (Java 17 is needed)"
    )
    words = parser.add_subparsers(dest="word", metavar="COMMAND", required=True)

    audit = words.add_parser("audit", help="what producers were told against every replica's log; exit code 0: sound")
    audit.add_argument(
        "stores", nargs="+", metavar="DIR", help="store directory of each replica; nodes must be stopped"
    )
    audit.add_argument(
        "--history",
        action="append",
        default=[],
        metavar="FILE",
        help="JSON Lines of what was told; any path of Spark's",
    )
    audit.add_argument("--topics", default="", metavar="A,B", help="only these; default: those of the history, or all")
    audit.add_argument("--copies", type=int, metavar="N", help="logs that must hold what was acknowledged (majority)")
    audit.add_argument("--json", type=Path, metavar="FILE", help="write counts and findings there")
    audit.set_defaults(run=_audit)

    count = words.add_parser("count", help="messages and bytes by topic and queue")
    count.add_argument("stores", nargs="+", metavar="DIR", help="store directories of different groups")
    count.set_defaults(run=_count)

    stats = words.add_parser("stats", help="messages, bytes and delay by topic, queue and minute; counts what is new")
    stats.add_argument("stores", nargs="+", metavar="DIR", help="store directories of different groups")
    stats.add_argument("--state", metavar="FOLDER", help="keeps what was counted; without it everything is counted")
    stats.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each topic, queue and minute")
    stats.add_argument("--svg", type=Path, metavar="FILE", help="draw messages a minute by topic")
    stats.add_argument("--lag-csv", type=Path, metavar="FILE", help="write the lag of each group, queue and minute")
    stats.add_argument("--lag-svg", type=Path, metavar="FILE", help="draw the lag of each group and topic")
    stats.set_defaults(run=_stats)

    _add_topic_words(words)
    _add_archive_words(words)


def _add_topic_words(words: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    export = words.add_parser("export", help="messages of topics to Parquet, each once; run again for what is new")
    export.add_argument(
        "output", metavar="FOLDER", help="Parquet files, and in _checkpoint how far they go; any path of Spark's"
    )
    export.add_argument("--namesrv", required=True, metavar="HOST:PORT", help="nameservers, with semicolons")
    export.add_argument("--topics", required=True, metavar="A,B")
    export.set_defaults(run=_export)

    send = words.add_parser("send", help="rows of Parquet to topics, at least once")
    send.add_argument(
        "rows",
        metavar="FOLDER",
        help="with body, and topic, keys, tags, queue_id, properties if wanted; any path of Spark's, or a pattern",
    )
    send.add_argument("--namesrv", required=True, metavar="HOST:PORT", help="nameservers, with semicolons")
    send.add_argument("--topic", metavar="NAME", help="instead of the column topic")
    send.set_defaults(run=_send)


def _add_archive_words(words: "_SubParsersAction[argparse.ArgumentParser]") -> None:
    archive = words.add_parser("archive", help="sealed files of a log to Parquet, with a manifest each")
    archive.add_argument("store", metavar="DIR", help="store directory; its broker may be running")
    archive.add_argument("archive", metavar="ARCHIVE", help="folder for this log alone; archivePath of its brokers")
    archive.add_argument("--keep-damage", action="store_true", help="archive damaged files too")
    archive.set_defaults(run=_archive)

    restore = words.add_parser("restore", help="archived files back into a new store directory, byte for byte")
    restore.add_argument("archive", metavar="ARCHIVE")
    restore.add_argument("output", metavar="DIR", help="store directory to write into")
    restore.set_defaults(run=_restore)

    rebuild = words.add_parser("rebuild", help="consume queues, or the index by key, from the log")
    rebuild.add_argument("store", metavar="DIR", help="store directory")
    rebuild.add_argument(
        "--output", metavar="FOLDER", help="for what is made; without it that replaces the store's own"
    )
    rebuild.add_argument("--index", action="store_true", help="make the index by key, not the queues")
    sizes = IndexLayout()
    rebuild.add_argument("--slots", type=int, default=sizes.slots, help="of a file of the index (maxHashSlotNum)")
    rebuild.add_argument("--entries", type=int, default=sizes.entries, help="of a file of the index (maxIndexNum)")
    rebuild.set_defaults(run=_rebuild)

    verify = words.add_parser("verify", help="whether an archive can be restored whole; exit code 0: it can")
    verify.add_argument("archive", metavar="ARCHIVE")
    verify.set_defaults(run=_verify)


def _check_stores(*paths: str) -> "list[StoreDirectory]":
    """Raise NotAStoreError unless each path is a store directory."""
    from ledgermq.spark.log_files import open_store

    return [open_store(path) for path in paths]


def _check_present(*paths: str) -> None:
    """Raise OptionError unless each path exists and may be read."""
    from ledgermq.spark.log_files import local_path

    for path in map(local_path, paths):
        _refuse(not path.exists(), f"{path} does not exist")
        _refuse(not os.access(path, os.R_OK), f"{path}: Permission denied")


def _check_archive(path: str) -> None:
    """Raise OptionError unless the folder has a manifest or a Parquet file."""
    from ledgermq.archive import archived_starts
    from ledgermq.spark.log_files import local_path

    _check_present(path)
    found = local_path(path)
    _refuse(not found.is_dir(), f"{path} is not a directory")
    is_empty = not archived_starts(found) and not any(found.glob("*.parquet"))
    _refuse(is_empty, f"{path} is not an archive: it has neither manifests nor Parquet files")


def _check_cluster(namesrv: str, topics: str) -> None:
    """Raise ClusterError unless a nameserver answers, and knows the topics."""
    from ledgermq.spark.topic_client import Access, TopicClient

    with TopicClient(Access(namesrv, _CLUSTER_WAIT_MS)) as client:
        if topics:
            client.queues([topic.strip() for topic in topics.split(",")])
        else:
            client.topics()


def _check_read_by_spark(*paths: str) -> None:
    """Raise OptionError unless each path exists and may be read; URIs and patterns are left to Spark."""
    from ledgermq.spark.log_files import is_uri

    _check_present(*(path for path in paths if not is_uri(path) and (Path(path).exists() or not _PATTERN & {*path})))


def _check_folders(*paths: str) -> None:
    """Raise OptionError unless each path is a directory or can become one."""
    from ledgermq.spark.log_files import local_path

    for path in map(local_path, paths):
        nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
        _refuse(not nearest.is_dir(), f"{nearest} is not a directory")
        _refuse(not os.access(nearest, os.W_OK | os.X_OK), f"{nearest}: Permission denied")


def _check_files(*paths: Path | None) -> None:
    """Raise OptionError unless each given path can be written as a file."""
    for path in (path for path in paths if path is not None):
        _refuse(path.is_dir(), f"{path} is a directory")
        _refuse(not path.parent.is_dir(), f"{path.parent} is not a directory")
        _refuse(not os.access(path if path.exists() else path.parent, os.W_OK), f"{path}: Permission denied")


def _refuse(is_wrong: bool, text: str) -> None:
    from ledgermq.spark.errors import OptionError

    if is_wrong:
        raise OptionError(text)


def _audit(arguments: argparse.Namespace) -> int:
    def check() -> None:
        from ledgermq.spark.audit import copies_needed

        _check_stores(*arguments.stores)
        copies_needed(arguments.stores, arguments.copies)
        _check_read_by_spark(*arguments.history)
        _check_files(arguments.json)

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

    return _run(job, check)


def _count(arguments: argparse.Namespace) -> int:
    def check() -> None:
        from ledgermq.spark.store_source import refuse_replicas

        refuse_replicas(_check_stores(*arguments.stores))

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

    return _run(job, check)


def _stats(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_stores(*arguments.stores)
        _check_folders(*filter(None, (arguments.state,)))
        _check_files(arguments.csv, arguments.svg, arguments.lag_csv, arguments.lag_svg)

    def job(spark: Any) -> int:
        from pyspark.sql import functions

        from ledgermq.spark.statistics import statistics

        with tempfile.TemporaryDirectory() as temporary:
            state = arguments.state or temporary
            found = statistics(spark, arguments.stores, state).persist()
            totals = found.groupBy("topic").agg(
                functions.sum("messages").alias("messages"),
                functions.sum("bytes").alias("bytes"),
                functions.min("minute").alias("first"),
                functions.max("minute").alias("last"),
                functions.expr("sum(delay_avg_ms * messages) / sum(messages)").alias("delay"),
                functions.max("delay_max_ms").alias("longest"),
            )
            print(f"{'topic':<32} {'messages':>12} {'bytes':>16} {'delay ms':>9} {'longest':>9}  first and last minute")
            for row in totals.orderBy("topic").toLocalIterator():
                print(
                    f"{row.topic:<32} {row.messages:>12,} {row.bytes:>16,} {row.delay:>9.1f} {row.longest:>9}"
                    f"  {row['first']:%Y-%m-%d %H:%M} {row['last']:%Y-%m-%d %H:%M}"
                )
            _write_rows(arguments.csv, found.orderBy("minute", "topic", "queue_id"))
            _draw(arguments.svg, "Messages", found.groupBy("topic", "minute").sum("messages"), "topic")
            _lag(arguments, spark, state)
        return 0

    return _run(job, check)


def _lag(arguments: argparse.Namespace, spark: Any, state: str) -> None:
    """Print how far groups are behind now, and write the history of the lag."""
    from pyspark.sql import functions

    from ledgermq.spark.statistics import lag

    found = lag(spark, arguments.stores, state).persist()
    name = functions.concat_ws(" of ", "group", "topic").alias("name")
    totals = found.groupBy(name, "minute").sum("lag").persist()
    last = found.select(functions.max("minute").alias("minute"))
    for row in totals.join(last, "minute").orderBy("name").toLocalIterator():
        print(f"{row['sum(lag)']:>12,} messages behind: {row.name}")
    _write_rows(arguments.lag_csv, found.orderBy("minute", "group", "topic", "queue_id"))
    _draw(arguments.lag_svg, "Messages behind", totals, "name")


def _write_rows(path: Path | None, rows: Any) -> None:
    """Write rows as CSV, if a file is given."""
    if path is not None:
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(rows.columns)
            lines.writerows(rows.toLocalIterator())


def _draw(path: Path | None, title: str, found: Any, by: str) -> None:
    """Draw the third column of rows by minute, one line for each value of column `by`, if a file is given."""
    from ledgermq.spark.chart import line_chart

    if path is None:
        return
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in found.orderBy(by, "minute").toLocalIterator():
        lines.setdefault(row[by], []).append((int(row.minute.timestamp()), float(row[2])))
    path.write_text(line_chart(title, "by minute, UTC", lines))


def _export(arguments: argparse.Namespace) -> int:
    output = arguments.output

    def check() -> None:
        from ledgermq.spark.log_files import is_uri

        if not is_uri(output):
            _check_folders(output)
        _check_cluster(arguments.namesrv, arguments.topics)

    def job(spark: Any) -> int:
        from ledgermq.spark.session import patiently

        options = {"namesrv": arguments.namesrv, "subscribe": arguments.topics, "startingOffsets": "earliest"}
        writer = (
            spark.readStream.format("ledgermq")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{output}/_checkpoint")
            .trigger(availableNow=True)
        )

        def finish() -> Any:
            query = writer.start(output)
            query.awaitTermination()
            return query

        query = patiently(finish)
        print(f"{sum(progress['numInputRows'] for progress in query.recentProgress):,} messages added")
        return 0

    return _run(job, check)


def _send(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_read_by_spark(arguments.rows)
        _check_cluster(arguments.namesrv, "")

    def job(spark: Any) -> int:
        options = {"namesrv": arguments.namesrv} | ({"topic": arguments.topic} if arguments.topic else {})
        rows = spark.read.parquet(arguments.rows)
        rows.write.format("ledgermq").mode("append").options(**options).save()
        print(f"{rows.count():,} messages sent")
        return 0

    return _run(job, check)


def _archive(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_stores(arguments.store)
        _check_folders(arguments.archive)

    def job(spark: Any) -> int:
        from ledgermq.spark.archive import archive

        done = archive(spark, arguments.store, arguments.archive, keep_damage=arguments.keep_damage)
        new = [each for each in done if not each.was_there]
        size = sum(each.length for each in new)
        print(f"{len(new)} files archived ({size:,} bytes), {len(done) - len(new)} were there and are right")
        return 0

    return _run(job, check)


def _restore(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_archive(arguments.archive)
        _check_folders(arguments.output)

    def job(spark: Any) -> int:
        from ledgermq.spark.archive import restore

        done = restore(spark, arguments.archive, arguments.output)
        new = [each for each in done if not each.was_there]
        print(
            f"{len(new)} files restored ({sum(each.length for each in new):,} bytes), {len(done) - len(new)} were there"
        )
        return 0

    return _run(job, check)


def _rebuild(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_stores(arguments.store)
        if arguments.output is not None:
            _refuse(os.path.lexists(arguments.output), f"{arguments.output}: File exists")
            _check_folders(arguments.output)
        if arguments.index:
            _refuse(arguments.slots < 1 or arguments.entries < 2, "an index file has 1 slot and 2 entries at least")

    def job(spark: Any) -> int:
        from ledgermq.spark.rebuild import rebuild
        from ledgermq.spark.rebuild_index import rebuild_index

        if arguments.index:
            layout = IndexLayout(arguments.slots, arguments.entries)
            made = rebuild_index(spark, arguments.store, arguments.output, layout=layout)
            print(f"{made.files:,} index files rebuilt, {made.entries:,} entries")
            return 0
        done = rebuild(spark, arguments.store, arguments.output)
        print(f"{done.queues:,} queues rebuilt, {done.units:,} units")
        return 0

    return _run(job, check)


def _verify(arguments: argparse.Namespace) -> int:
    def check() -> None:
        _check_archive(arguments.archive)

    def job(spark: Any) -> int:
        from ledgermq.spark.archive import verify

        found = verify(spark, arguments.archive)
        for fault in found.faults:
            print(fault)
        print(f"{found.segments} files archived ({found.length:,} bytes), {len(found.faults)} faults")
        return 1 if found.faults or not found.segments else 0

    return _run(job, check)


@contextmanager
def _progress(spark: Any) -> Iterator[None]:
    """Print to standard error how many tasks of the running stages are done, every two seconds while that changes."""
    from py4j.protocol import Py4JError

    ended, tracker = threading.Event(), spark.sparkContext.statusTracker()

    def tell() -> None:
        shown = ""
        while not ended.wait(_PROGRESS_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            texts = [f"{each.numCompletedTasks} of {each.numTasks} tasks" for each in stages if each is not None]
            if texts and (text := ", ".join(texts)) != shown:
                print(f"  {text}", file=sys.stderr, flush=True)
                shown = text

    def tell_while_it_lives() -> None:
        with suppress(Py4JError, ConnectionError):
            tell()

    teller = threading.Thread(target=tell_while_it_lives, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _run(job: Callable[[Any], int], check: Callable[[], None]) -> int:
    """Run a job in a session of its own, after `check` has accepted its paths.

    Raises:
        PipelineCommandError: the check, the job, or the start of Spark failed.
    """
    from ledgermq.spark.errors import PipelineError
    from ledgermq.spark.session import check_tools, make_session

    try:
        check_tools()
        check()
    except PipelineError as error:
        raise PipelineCommandError(str(error), error.exit_code) from None
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    began = time.monotonic()
    spark = make_session("ledgermq pipeline", {"spark.log.level": "FATAL"})  # every failure becomes one line
    print(f"Spark {spark.version} started in {time.monotonic() - began:.1f} s", file=sys.stderr)
    began = time.monotonic()
    try:
        with _progress(spark):
            code = job(spark)
    except PipelineError as error:
        raise PipelineCommandError(str(error), error.exit_code) from None
    except PySparkException as error:
        raise PipelineCommandError(*_own_error(str(error))) from None
    except Py4JJavaError as error:
        if _is_of_python(text := _text_of(error.java_exception)):
            raise
        raise PipelineCommandError(*_own_error(text)) from None
    except (Py4JError, ConnectionError):
        if _answers(spark):
            raise
        raise PipelineCommandError(
            "Spark's JVM has ended; the system may have killed it for lack of memory", 2
        ) from None
    finally:
        with suppress(Py4JError, ConnectionError):
            spark.stop()
    print(f"done in {time.monotonic() - began:.1f} s", file=sys.stderr)
    return code


def _answers(spark: Any) -> bool:
    """Return whether Spark's JVM answers."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jvm.System.currentTimeMillis())
    except (Py4JError, ConnectionError):
        return False


def _text_of(error: Any) -> str:
    """Return the text of an exception of the JVM, followed by its cause."""
    texts = [str(error.getMessage() or error.toString())]
    while (error := error.getCause()) is not None:
        texts[1:] = [str(error.getMessage() or error.toString())]
    return ": ".join(text if "Traceback" in text else text.strip().partition("\n")[0] for text in texts)


def _is_of_python(text: str) -> bool:
    """Return whether an error in a Python worker of Spark was not raised by our code."""
    return "Traceback" in text and "ledgermq.spark.errors." not in text


def _own_error(text: str) -> tuple[str, int]:
    """Return the text of an error that our code raised in a worker of Spark, without traceback, and its exit code."""
    from ledgermq.spark import errors

    for line in reversed(text.splitlines()):
        name, _, detail = line.strip().partition(": ")
        kind = getattr(errors, name.rpartition(".")[2], None) if name.startswith("ledgermq.spark.errors.") else None
        if kind is not None:
            return detail, kind.exit_code
    return text.strip().splitlines()[0], 2
