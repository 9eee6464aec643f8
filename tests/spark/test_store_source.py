"""`spark.read.format("ledgermq-store")`: options, damage, replicas, snapshots. Rows themselves: test_columns."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from ledgermq.spark import register
from ledgermq.spark.options import Options
from ledgermq.spark.store_source import schema_of
from tests.spark.logs import record, write_log
from tests.spark.test_parts import overwrite
from tests.store.support import GOLDEN, golden


def test_a_directory_of_java_is_read_whole_and_by_columns(spark: SparkSession, tmp_path: Path) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / "kill9", tmp_path / "store")
    everything = spark.read.format("ledgermq-store").option("broker", "b0").load(str(tmp_path / "store"))
    rows = everything.collect()
    assert len(rows) == 593
    assert {row.broker for row in rows} == {"b0"}
    places = [row.phys_offset for row in rows]
    assert sorted(places) == places and len(set(places)) == len(places)
    topic, count = everything.groupBy("topic").count().orderBy("count", ascending=False).collect()[0]
    few = spark.read.format("ledgermq-store").options(topics=topic, columns="queue_id,queue_offset,record")
    found = few.load(str(tmp_path / "store"))
    assert found.columns == ["queue_id", "queue_offset", "record"]
    assert found.count() == count
    units = spark.read.format("ledgermq-store").options(mode="index", topics=topic).load(str(tmp_path / "store"))
    by_place = {row.phys_offset: row for row in rows}
    for unit in units.collect():
        row = by_place[unit.phys_offset]
        assert (row.topic, row.queue_id, row.queue_offset, row.size) == (
            unit.topic, unit.queue_id, unit.queue_offset, unit.size,
        )  # fmt: skip
    assert units.count() == count


def test_a_raft_members_directory_is_read(spark: SparkSession, tmp_path: Path) -> None:
    golden.restore_tree(GOLDEN / "store-dledger" / "healed" / "n0", tmp_path / "store")
    assert spark.read.format("ledgermq-store").option("mode", "headers").load(str(tmp_path / "store")).count() == 204


def test_damage_fails_unless_it_is_to_be_reported(spark: SparkSession, tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(100)])
    first = tmp_path / "commitlog" / f"{0:020d}"
    overwrite(first, placed[3].physical_offset + 88, b"X")
    overwrite(first, placed[7].physical_offset, b"\xff" * 40)
    reader = spark.read.format("ledgermq-store")
    with pytest.raises(PySparkException, match="damage=report"):
        reader.load(str(tmp_path)).collect()
    rows = spark.read.format("ledgermq-store").option("damage", "report").load(str(tmp_path)).collect()
    assert len(rows) == 100
    bad = {row.phys_offset: row for row in rows if row.damage is not None}
    assert sorted(bad) == [placed[3].physical_offset, placed[7].physical_offset]
    assert bad[placed[3].physical_offset].topic == "T"
    assert bad[placed[7].physical_offset].topic is None


def test_copies_of_one_log_are_refused_unless_they_are_wanted(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        write_log(tmp_path / name, [record(n) for n in range(10)])
    write_log(tmp_path / "c", [record(n, body=b"another") for n in range(10)])
    paths = [str(tmp_path / name) for name in "abc"]
    with pytest.raises(PySparkException, match="copies of one log"):
        spark.read.format("ledgermq-store").load(paths).count()
    assert spark.read.format("ledgermq-store").load([paths[0], paths[2]]).count() == 20
    assert spark.read.format("ledgermq-store").option("allowReplicas", "true").load(paths).count() == 30


def test_a_filter_does_not_leak_into_other_queries(spark: SparkSession, tmp_path: Path) -> None:
    """Where Spark pushes filters into sources in Python, it does so for all queries on one frame: we take none."""
    write_log(tmp_path, [record(n, queue_id=n % 2) for n in range(10)])
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        frame = spark.read.format("ledgermq-store").load(str(tmp_path))
        first, second = frame.where("queue_id = 0"), frame.where("queue_id = 1")
        assert (first.count(), frame.count(), first.union(second).select("queue_offset").distinct().count()) == (
            5,
            10,
            10,
        )
    finally:
        spark.conf.unset(setting)


def test_a_frame_is_a_snapshot_and_a_new_load_sees_more(spark: SparkSession, tmp_path: Path) -> None:
    placed = write_log(tmp_path / "a", [record(n) for n in range(10)])
    before = spark.read.format("ledgermq-store").load(str(tmp_path / "a"))
    assert before.count() == 10
    write_log(tmp_path / "b", [record(n) for n in range(40)], file_size=4096)
    for path in (tmp_path / "b" / "commitlog").iterdir():
        (tmp_path / "a" / "commitlog" / path.name).write_bytes(path.read_bytes())
    after = spark.read.format("ledgermq-store").load(str(tmp_path / "a"))
    assert after.count() == 40
    assert placed[0].topic == after.collect()[0].topic


def test_workers_on_this_machine_run_the_python_of_the_program(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one of PATH, which may know nothing of us."""
    write_log(tmp_path, [record(0)])
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/bin/false")
    register(spark)
    assert spark.read.format("ledgermq-store").load(str(tmp_path)).count() == 1
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/false")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/bin/false")
    register(spark)
    assert spark.sparkContext.pythonExec == "/bin/false", "the user's choice"
    monkeypatch.undo()
    register(spark)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"colums": "topic"}, "did you mean columns"),
        ({"columns": "topik"}, "'topik' is not one of"),
        ({"mode": "fast"}, "mode='fast' must be one of records, headers, raw, index"),
        ({"startingOffset": "-1"}, "startingOffset='-1' must be a whole number"),
        ({"startingTimestamp": "soon"}, "neither ms since 1970 nor a time"),
        ({"verify": "maybe"}, "must be true or false"),
        ({"mode": "index", "endingTimestamp": "5"}, "endingTimestamp has no meaning with mode=index"),
        ({"broker": "a,b"}, "2 names for 1 directories"),
        ({"queueIds": "0;1"}, "whole numbers with commas"),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path, options: dict[str, str], text: str) -> None:
    write_log(tmp_path, [record(0)])
    with pytest.raises((AnalysisException, PySparkException), match=text):
        spark.read.format("ledgermq-store").options(**options).load(str(tmp_path)).count()


def test_a_directory_that_is_no_store_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="neither commitlog nor dledger"):
        spark.read.format("ledgermq-store").load(str(tmp_path)).count()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    assert spark.read.format("ledgermq-store").load(str(tmp_path)).count() == 0


def test_every_column_has_a_type_in_ddl() -> None:
    assert "properties map<string,string>" in schema_of(Options({}, ()))
    assert schema_of(Options({"mode": "raw"}, ("mode",))).startswith("broker string, phys_offset bigint")
