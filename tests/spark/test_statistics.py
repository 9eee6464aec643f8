"""Statistics are what the records say, whatever was counted before; the chart is well-formed."""

import struct
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ledgermq.message.record import Record
from ledgermq.spark.chart import line_chart
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import plan_parts
from ledgermq.spark.statistics import count_part, lag, queue_end, statistics
from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint
from tests.spark.logs import record, write_log
from tests.spark.test_parts import overwrite
from tests.store.support import GOLDEN, golden

pytestmark = pytest.mark.timeout(600)

RECORDS = [
    replace(
        record(n, topic=f"T{n % 2}", queue_id=n % 3, body=bytes(n)),
        born_timestamp=1_790_000_000_000 + n * 1500 - n % 7,
        store_timestamp=1_790_000_000_000 + n * 1500,
    )
    for n in range(200)
]


def expected(records: list[Record]) -> dict[tuple[Any, ...], list[int]]:
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for each in records:
        delay = each.store_timestamp - each.born_timestamp
        sums = found[each.topic, each.queue_id, each.store_timestamp // 60_000]
        sums[:] = sums[0] + 1, sums[1] + each.size, sums[2] + delay, max(sums[3], delay)
    return dict(found)


def test_a_file_of_a_log_is_counted(tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", RECORDS, file_size=1 << 20)
    (part,) = plan_parts(open_store(str(tmp_path / "store")), 0)
    count_part(tmp_path, (part, "x.parquet"))
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "x.parquet").to_pylist()]
    assert {row[:3]: list(row[3:]) for row in rows} == expected(placed)
    assert rows == sorted(rows)
    assert [path.name for path in tmp_path.glob("*parquet*")] == ["x.parquet"]


def test_a_damaged_file_is_not_counted(tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", RECORDS, file_size=1 << 20)
    overwrite(tmp_path / "store" / "commitlog" / f"{0:020d}", placed[9].physical_offset, b"\xff" * 8)
    (part,) = plan_parts(open_store(str(tmp_path / "store")), 0)
    with pytest.raises(DamagedLogError):
        count_part(tmp_path, (part, "x.parquet"))
    assert not list(tmp_path.glob("*.parquet"))


def test_only_new_files_are_counted_and_deleted_ones_stay(spark: SparkSession, tmp_path: Path) -> None:
    state, folder = tmp_path / "state", tmp_path / "store" / "commitlog"

    def counted() -> dict[tuple[Any, ...], list[int]]:
        rows = statistics(spark, [str(tmp_path / "store")], str(state)).collect()
        return {
            (row.topic, row.queue_id, int(row.minute.timestamp()) // 60): [
                row.messages, row.bytes, round(row.delay_avg_ms * row.messages), row.delay_max_ms,
            ]
            for row in rows
        }  # fmt: skip

    write_log(tmp_path / "whole", RECORDS)
    folder.mkdir(parents=True)
    paths = sorted((tmp_path / "whole" / "commitlog").iterdir())
    placed = write_log(tmp_path / "again", RECORDS)
    for path in paths[:3]:
        (folder / path.name).write_bytes(path.read_bytes())
    assert counted() == expected([each for each in placed if each.physical_offset < 3 * 4096])
    before = {path: path.stat().st_mtime_ns for path in state.glob("0*.parquet")}
    assert len(before) == 2
    for path in paths:
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / paths[0].name).unlink()
    assert counted() == expected(placed)
    assert counted() == expected(placed)
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what is sealed is counted once"
    assert len(list(state.glob("active-*.parquet"))) == 1


def test_a_chart_is_well_formed_and_draws_the_largest_lines() -> None:
    lines = {f"<topic & {n}>": [(60 * at, float(n * at)) for at in range(5)] for n in range(12)}
    chart = ElementTree.fromstring(line_chart("messages", "a minute", lines))
    texts = [each.text for each in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert "<topic & 11>" in texts and "<topic & 3>" not in texts
    polylines = list(chart.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(polylines) == 8
    assert polylines[0].get("points", "").split()[-1] == "880.0,50.0"
    ElementTree.fromstring(line_chart("nothing", "a minute", {}))


def test_files_with_entries_that_may_be_replaced_are_counted_again_each_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "store", RECORDS, raft=True)
    page = StoreCheckpoint(progress=Progress(1 << 40, 4096, 0)).encode()
    (tmp_path / "store" / "checkpoint").write_bytes(page)
    statistics(spark, [str(tmp_path / "store")], str(tmp_path / "state"))
    names = [path.name for path in (tmp_path / "state").glob("*.parquet")]
    assert [name[:20] for name in names if not name.startswith("active-")] == [f"{0:020d}"]
    assert len(names) > 3


def test_lag_is_what_groups_have_not_committed_and_each_minute_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Of a directory that Java wrote; the ends of its queues by the records of its log."""
    golden.restore_tree(GOLDEN / "store-classic" / "clean", tmp_path / "store")
    store, state = tmp_path / "store", tmp_path / "state"
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for row in spark.read.format("ledgermq-store").option("mode", "headers").load(str(store)).collect():
        ends[row.topic, row.queue_id] = max(ends[row.topic, row.queue_id], row.queue_offset + 1)
    committed = {0: 105, 1: 108, 2: 98, 3: 105}  # of GoldenSqlGroup in the file

    def found(now_s: float) -> dict[tuple[str, str, int, int], int]:
        rows = lag(spark, [str(store)], str(state), now_s).collect()
        return {(row.group, row.topic, row.queue_id, int(row.minute.timestamp())): row.lag for row in rows}

    path = store / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace('"offsetTable":{', '"offsetTable":{"Batches@GoldenSqlGroup":{0:5},'))
    first = found(1_790_000_000)
    assert "Batches" not in {topic for _, topic, _, _ in first}, "it has no consume queue"
    minute = 1_790_000_000 // 60 * 60
    for queue, offset in committed.items():
        assert first["GoldenSqlGroup", "GoldenNormal", queue, minute] == ends["GoldenNormal", queue] - offset
    assert sum(first.values()) > 0
    path.write_text(path.read_text().replace("0:105,", "0:107,"))
    again = found(1_790_000_030)  # in the same minute
    assert len(again) == len(first)
    assert sum(again.values()) == sum(first.values()) - 2
    later = found(1_790_086_400)  # on another day
    assert len(later) == 2 * len(first)
    assert {key: value for key, value in later.items() if key[3] == minute} == again
    path.write_text("{}")
    with pytest.raises(PipelineError, match="does not hold the offsets of groups"):
        found(1_790_090_000)


def test_where_a_queue_ends(tmp_path: Path) -> None:
    unit = struct.Struct(">qiq")
    assert queue_end(str(tmp_path)) == 0
    for start, used in ((0, 50), (1000, 37), (2000, 0)):
        units = b"".join(unit.pack(n * 100, 100, 0) for n in range(used))
        (tmp_path / f"{start:020d}").write_bytes(units.ljust(1000, b"\0"))
    assert queue_end(str(tmp_path)) == 87
