"""The programs of examples/pipeline run; one of them on a cluster of Spark with executors of their own."""

import itertools
import os
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ledgermq.history import Outcome, Send
from ledgermq.spark.session import make_session
from tests.spark.conftest import SETTINGS, RunningBroker
from tests.spark.logs import record, write_log
from tests.spark.test_topic_source import outgoing

PROJECT = Path(__file__).parents[2]
_numbers = itertools.count()


def run(name: str, *words: object) -> int:
    """Run a program in this process, whose session it takes; returns its exit code."""
    before, sys.argv = sys.argv, [name, *map(str, words)]
    try:
        runpy.run_path(str(PROJECT / "examples" / "pipeline" / name), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.mark.parametrize("name", ["orders_by_minute.py", "audit_after_failover.py", "nightly_archive.py"])
def test_a_program_without_its_words_tells_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "one") == 2
    assert f"python examples/pipeline/{name} " in capsys.readouterr().err


def test_a_program_takes_the_session_that_there_is_with_its_settings(spark: SparkSession) -> None:
    assert make_session("another") is spark
    with ThreadPoolExecutor(1) as another_thread:
        assert another_thread.submit(make_session, "another").result() is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == SETTINGS["spark.sql.shuffle.partitions"]


def test_orders_by_minute_prints_what_is_new(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"Orders{next(_numbers)}"
    broker.create(topic, 1)
    for first in (0, 40):
        broker.send(topic, outgoing(40, first))
        run("orders_by_minute.py", broker.namesrv, topic, tmp_path / "checkpoint")
        lines = re.findall(r"\d\d:\d\d (\w+) +(\d+) orders", capsys.readouterr().out)
        assert {tag: sum(int(count) for name, count in lines if name == tag) for tag, _ in lines} == {
            "even": 20,
            "odd": 20,
        }


def test_audit_after_failover_tells_a_loss(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [record(n, properties=f"UNIQ_KEY\x01K{n}\x02".encode()) for n in range(9)]
    stores = [tmp_path / name for name in "abc"]
    for store in stores:
        write_log(store, records)
    sends = [Send("p", n, f"K{n}", "T", Outcome.OK, 0, n) for n in range(10)]
    (tmp_path / "h.jsonl").write_bytes(b"".join(send.line() for send in sends))
    assert run("audit_after_failover.py", tmp_path / "h.jsonl", *stores) == 1
    assert "lost: T/0 @9 key K9: in 0 of 3 logs" in capsys.readouterr().out


@pytest.mark.java
def test_the_archive_runs_under_spark_submit_with_executors_of_their_own(tmp_path: Path) -> None:
    write_log(tmp_path / "store", [record(n) for n in range(60)])
    settings = {name: value for name, value in SETTINGS.items() if name != "spark.master"}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "spark-submit"), "--master", "local-cluster[2,1,1024]", *words,
            str(PROJECT / "examples" / "pipeline" / "nightly_archive.py"),
            str(tmp_path / "store"), str(tmp_path / "archive"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=500,
        env=os.environ
        | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    sealed = len(list((tmp_path / "store" / "commitlog").iterdir())) - 1
    assert f"{sealed} new files, {sealed} in all, {sealed * 4096:,} bytes" in done.stdout
    assert len(list((tmp_path / "archive").glob("*.parquet"))) == sealed
