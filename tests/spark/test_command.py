"""`ledgermq pipeline`: the verdict is the exit code; what is wrong is told in one line."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cli.main import main
from ledgermq.history import Outcome, Send
from ledgermq.spark import archive, session
from tests.spark.conftest import RunningBroker
from tests.spark.logs import record, write_log
from tests.spark.test_topic_source import numbers, outgoing, reader, rows_of
from tests.store.support import GOLDEN, golden

pytestmark = pytest.mark.timeout(600)


def test_an_audit_with_a_loss_exits_with_1_and_a_jvm_that_is_killed_with_2(
    own_session: dict[str, str], tmp_path: Path
) -> None:
    """In a process with a JVM of its own, whose end is told in one line: it is no verdict of the job."""
    records = [record(n, properties=f"UNIQ_KEY\x01K{n}\x02".encode()) for n in range(9)]
    write_log(tmp_path / "n0", records)
    sends = [Send("p", n, f"K{n}", "T", Outcome.OK, 0, n) for n in range(10)]
    for name, part in (("h1", sends[:4]), ("h2", sends[4:8]), ("more", sends[8:])):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(send.line() for send in part))
    code = (
        "import os, signal\n"
        "from ledgermq.spark import archive\n"
        "from cli.main import main\n"
        "def kill(spark, *_, **__):\n"
        "    jvm = spark.sparkContext._jvm\n"
        "    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)\n"
        "    spark.range(1).collect()\n"
        "archive.archive = kill\n"
        "history = ['--history', 'h?.jsonl', '--history', 'file://' + os.path.abspath('more.jsonl')]\n"
        "print(main(['pipeline', 'audit', 'n0', *history, '--json', 'out.json']))\n"
        "print(main(['pipeline', 'archive', 'n0', 'a']))\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=500, cwd=tmp_path, env=own_session
    )
    assert done.stdout.endswith("NOT SOUND\n1\n2\n"), done.stderr
    assert "lost: T/0 @9  key K9: in 0 of 1 logs, 1 are needed" in done.stdout
    assert "error: Spark's JVM has ended; the system may have killed it for lack of memory\n" in done.stderr
    report = json.loads((tmp_path / "out.json").read_bytes())
    assert (report["sound"], report["counts"]["lost"], len(report["findings"])) == (False, 1, 1)


LATE = "Python worker failed to connect back"
TWICE = (
    "{0}/store and {0}/store hold copies of one log: each message would be read twice."
    " Read one of them, or set allowReplicas=true"
)
NO_STORE = "{0}/empty is not a store: it has neither commitlog nor dledger-*/data"
NO_ARCHIVE = "{0}/empty is not an archive: it has neither manifests nor Parquet files"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("audit {0}/empty", NO_STORE),
        ("audit {0}/store --history {0}/none", "{0}/none does not exist"),
        ("audit {0}/store --json {0}/none/a.json", "{0}/none is not a directory"),
        ("audit {0}/store {0}/empty/../store", "{0}/store is given twice: each store is a replica of its own"),
        ("audit {0}/store --copies 2", "2 copies of 1 stores"),
        ("count {0}/store {0}/store", TWICE),
        ("count {0}/empty", NO_STORE),
        ("stats {0}/empty", NO_STORE),
        ("stats {0}/store --csv {0}", "{0} is a directory"),
        ("stats {0}/store --state {0}/file/state", "{0}/file is not a directory"),
        ("export {0}/file --namesrv n:1 --topics T", "{0}/file is not a directory"),
        ("export {0}/new --namesrv n --topics T", "address 'n' is not of the form host:port"),
        ("send {0}/none --namesrv n:1", "{0}/none does not exist"),
        (
            "send {0}/empty --namesrv 127.0.0.1:1",
            "cannot connect to 127.0.0.1:1: [Errno 111] Connect call failed ('127.0.0.1', 1)",
        ),
        ("archive {0}/empty {0}/a", NO_STORE),
        ("archive {0}/store {0}/file", "{0}/file is not a directory"),
        ("restore {0}/none {0}/r", "{0}/none does not exist"),
        ("restore {0}/empty {0}/r", NO_ARCHIVE),
        ("restore {0}/archive {0}/file", "{0}/file is not a directory"),
        ("rebuild {0}/empty", NO_STORE),
        ("rebuild {0}/store --output {0}/empty", "{0}/empty: File exists"),
        ("rebuild {0}/store --index --slots 0", "an index file has 1 slot and 2 entries at least"),
        ("verify {0}/none", "{0}/none does not exist"),
        ("verify {0}/empty", NO_ARCHIVE),
        ("verify {0}/file", "{0}/file is not a directory"),
        ("verify hdfs://n/a", "hdfs://n/a: is opened without Spark, so give a local or mounted path"),
        ("count hdfs://n/s", "hdfs://n/s: is opened without Spark, so give a local or mounted path"),
        ("archive {0}/store s3:/a", "s3:/a: is opened without Spark, so give a local or mounted path"),
    ],
)
def test_a_wrong_path_is_told_in_one_line_before_spark_starts(
    words: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "archive").mkdir()
    for name in ("file", f"archive/{0:020d}.parquet"):
        (tmp_path / name).touch()
    write_log(tmp_path / "store", [record(0)])
    monkeypatch.setattr("cli.pipeline._CLUSTER_WAIT_MS", 100)
    monkeypatch.setattr(session, "java_version", lambda: session.JAVA_MIN)
    monkeypatch.setattr(session, "make_session", lambda *_: pytest.fail("Spark was started"))
    assert main(["pipeline", *words.format(tmp_path).split()]) == 2
    assert capsys.readouterr().err == f"error: {text.format(tmp_path)}\n"


@pytest.mark.parametrize(("method", "outcome"), [("unheardOf", Py4JError), ("currentTimeMillis", 1)])
def test_only_the_end_of_the_jvm_is_told_as_such(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    method: str,
    outcome: Any,
) -> None:
    """Not a call that the JVM refuses, nor that nobody reads what is printed."""

    def job(kept: Kept, *_: Any, **__: Any) -> None:
        getattr(kept.sparkContext._jvm.System, method)()
        raise BrokenPipeError

    write_log(tmp_path / "store", [record(0)])
    monkeypatch.setattr(session, "make_session", lambda *_: Kept(spark))
    monkeypatch.setattr(archive, "archive", job)
    words = ["pipeline", "archive", str(tmp_path / "store"), str(tmp_path / "a")]
    monkeypatch.setattr("cli.main.drop", lambda _: None)
    if outcome == 1:
        assert main(words) == 1
    else:
        with pytest.raises(outcome):
            main(words)
    assert "has ended" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("pipeline audit n0 --histroy h.jsonl", "unknown option --histroy; did you mean --history?"),
        ("pipeline export F --namesrc=n:1 --topics T", "unknown option --namesrc; did you mean --namesrv?"),
        ("pipeline archive S A --keep-damaged", "unknown option --keep-damaged; did you mean --keep-damage?"),
        ("pipeline verify A --zzz", "unknown option --zzz; known are --help"),
        ("cluster up --nodse 3", "unknown option --nodse; did you mean --nodes?"),
        ("--versoin", "unknown option --versoin; did you mean --version?"),
    ],
)
def test_an_option_that_is_misspelt_is_told_with_the_nearest_one(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {text}\n")


class Kept:
    """A session that a command does not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Leave it to the others."""


def test_statistics_are_told_written_and_drawn(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_: Kept(spark))
    golden.restore_tree(GOLDEN / "store-classic" / "clean", tmp_path / "store")
    files = [tmp_path / name for name in ("a.csv", "a.svg", "lag.csv", "lag.svg")]
    options = [word for name, path in zip(("csv", "svg", "lag-csv", "lag-svg"), files, strict=True)
               for word in (f"--{name}", str(path))]  # fmt: skip
    assert main(["pipeline", "stats", str(tmp_path / "store"), "--state", str(tmp_path / "state"), *options]) == 0
    shown = capsys.readouterr().out
    counts, drawn, lags, drawn_lags = (path.read_text() for path in files)
    assert re.search(r"^GoldenNormal +\d+ ", shown, re.MULTILINE) and "GoldenNormal" in counts and "<svg" in drawn
    behind = {tuple(row[:3]): int(row[4]) for row in csv.reader(lags.splitlines()[1:])}
    total = sum(
        lag for (group, topic, _), lag in behind.items() if (group, topic) == ("GoldenSqlGroup", "GoldenNormal")
    )
    assert total > 0 and f"{total} messages behind: GoldenSqlGroup of GoldenNormal\n" in shown
    assert "GoldenSqlGroup of GoldenNormal" in drawn_lags


def test_topics_go_to_parquet_and_back_by_any_path_of_spark(
    spark: SparkSession,
    broker: RunningBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_: Kept(spark))

    def told(word: str, *words: str) -> str:
        code, shown = main(["pipeline", word, *words, "--namesrv", broker.namesrv]), capsys.readouterr()
        return shown.out if code == 0 else f"{code}: {shown.err.splitlines()[-1]}"

    for topic in ("Exported", "Sent"):
        broker.create(topic, 2)
    folder = tmp_path / "rows"
    for first, count in ((0, 50), (50, 5)):
        broker.send("Exported", outgoing(count, first))
        assert told("export", f"file://{folder}", "--topics", "Exported") == f"{count} messages added\n"
    for rows in (f"file://{folder}", f"{folder}/*.parquet"):
        assert told("send", rows, "--topic", "Sent") == "55 messages sent\n"
    source = reader(broker, subscribe="Sent")
    assert numbers(rows_of(source, source.partitions())) == sorted([*range(55), *range(55)])
    assert "Path does not exist" in told("send", f"{folder}/*.csv", "--topic", "Sent")
    (tmp_path / "text").write_text("hello")
    assert "text is not a Parquet file" in told("send", f"{tmp_path}/text", "--topic", "Sent")
    assert main(["pipeline", "audit", str(broker.root), "--history", str(tmp_path / "text")]) == 2
    assert f"Encountered error while reading file file://{tmp_path}/text" in capsys.readouterr().err
    assert "'Unheard'" in told("export", f"{folder}2", "--topics", "Exported, Unheard")


@pytest.mark.parametrize(("faults", "starts"), [([LATE] * 2, 3), ([LATE] * 5, 5), (["another"], 1)])
def test_a_stream_whose_worker_spark_did_not_wait_for_is_started_again(faults: list[str], starts: int) -> None:
    left, started = list(faults), 0

    def run() -> bool:
        nonlocal started
        started += 1
        if left:
            raise StreamingQueryException(left.pop())
        return True

    if starts > len(faults):
        assert session.patiently(run)
    else:
        with pytest.raises(StreamingQueryException, match=faults[0]):
            session.patiently(run)
    assert started == starts


def test_an_archive_of_another_log_is_told_in_one_line_with_exit_code_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "make_session", lambda *_: Kept(spark))
    for name, body in (("one", b"1" * 99), ("two", b"2" * 99)):
        write_log(tmp_path / name, [record(n, body=body) for n in range(40)])
    assert main(["pipeline", "archive", str(tmp_path / "one"), str(tmp_path / "archive")]) == 0
    assert capsys.readouterr().out.startswith("2 files archived")
    assert main(["pipeline", "archive", str(tmp_path / "two"), str(tmp_path / "archive")]) == 1
    shown = capsys.readouterr()
    assert "an archive holds one log" in shown.err
    assert "Traceback" not in shown.out


@pytest.mark.parametrize(
    ("version", "text"), [(None, "no Java is found"), (11, "Java 11 is too old; Spark needs Java 17 or newer")]
)
def test_without_a_fitting_java_it_says_so_and_exits_with_2(
    version: int | None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "java_version", lambda: version)
    assert main(["pipeline", "count", str(tmp_path)]) == 2
    assert text in capsys.readouterr().err
