"""Queues that are rebuilt have the bytes of those that Java's and our store built, and of the doctor's."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from doctor.check.index_check import list_index, open_index
from doctor.read.directory import open_layout
from doctor.repair.run import repair_store
from ledgermq.message.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import IndexLayout, index_keys, key_text
from ledgermq.spark.errors import DamagedLogError, PipelineError
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import plan_parts
from ledgermq.spark.rebuild import Rebuilt, _usual_size, rebuild, write_blanks, write_units
from ledgermq.spark.rebuild_index import KeyFile, finish, index_parts, rebuild_index, write_index, write_keys
from store.index.batch import Entries
from store.index.file_set import IndexFiles
from tests.spark.logs import V6, record, write_log
from tests.spark.test_parts import overwrite
from tests.store.support import GOLDEN, golden

pytestmark = pytest.mark.timeout(600)

SIZE = 200
LOG = [
    record(
        # begins inside a file of units, and lacks offsets
        37 + n // 3 + (n > 60) * 5,
        topic=f"T{n % 3}" if n % 3 else "t" * 130,
        queue_id=n % 3,
        stored=V6 if n % 11 == 0 else record().store_host,
        properties=b"TAGS\x01a\x02" if n % 2 else b"",
    )
    for n in range(120)
]


def rebuilt(root: Path, side: Path, size: int, *, backwards: bool = False) -> Rebuilt:
    """Rebuild without Spark; the tasks in any order."""
    parts = plan_parts(open_store(str(root)), 0)
    side.mkdir(exist_ok=True)
    runs = [write_units(side, size, part) for part in (parts[::-1] if backwards else parts)]
    ordered = runs[::-1] if backwards else runs
    return write_blanks(side, size, [run for part in ordered for run in part])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["clean", "kill9"])
def test_queues_of_java_come_out_the_same(tmp_path: Path, name: str) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / name, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    size = _usual_size(store.queues)
    done = rebuilt(tmp_path / "store", tmp_path / "side", size)
    repaired = repair_store(open_layout(tmp_path / "store"), output=tmp_path / "doctor", queue_file_size=size)
    assert not repaired.log.not_repaired
    assert tree(tmp_path / "side") == tree(tmp_path / "doctor" / "consumequeue")
    assert done.units > 100
    if name == "clean":
        used = {path: data for path, data in tree(Path(store.queues)).items() if any(data)}
        assert tree(tmp_path / "side") == used


@pytest.mark.parametrize("raft", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_blanks_and_gaps_are_those_of_the_doctor(tmp_path: Path, raft: bool, backwards: bool) -> None:
    records = [
        replace(each, sys_flag=each.sys_flag | flag)
        for each, flag in zip(LOG, [0, 0, 0, TRANSACTION_PREPARED, 0, TRANSACTION_ROLLBACK] * 20, strict=True)
    ]
    write_log(tmp_path / "store", records, raft=raft)
    (tmp_path / "store" / "consumequeue").mkdir()
    done = rebuilt(tmp_path / "store", tmp_path / "side", SIZE, backwards=backwards)
    again = rebuilt(tmp_path / "store", tmp_path / "side", SIZE)  # a task, or all, may run again
    assert (done.queues, done.units) == (again.queues, again.units) == (3, 80)
    if not raft:
        repair_store(open_layout(tmp_path / "store"), output=tmp_path / "doctor", queue_file_size=SIZE)
        assert tree(tmp_path / "side") == tree(tmp_path / "doctor" / "consumequeue")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (record(0, properties=b"INNER_MULTI_DISPATCH\x01a\x02"), "batch or light queues"),
        (record(0, topic="../../etc"), "no queue can have it"),
        (record(5), "queue offset 5 follows 6"),
        (record(1 << 40), "follows 6; repair the store"),
    ],
)
def test_logs_that_are_refused(tmp_path: Path, bad: object, text: str) -> None:
    write_log(tmp_path / "store", [*(record(n) for n in range(6)), bad])  # type: ignore[list-item]
    with pytest.raises(PipelineError, match=text):
        rebuilt(tmp_path / "store", tmp_path / "side", SIZE)
    assert {path.name for path in (tmp_path / "side").iterdir()} <= {"T"}


def test_a_body_may_speak_of_inner_properties(tmp_path: Path) -> None:
    write_log(tmp_path / "store", [record(n, body=b"INNER_NUM\x01") for n in range(6)])
    assert rebuilt(tmp_path / "store", tmp_path / "side", SIZE) == Rebuilt(1, 6)


def rebuilt_index(root: Path, side: Path, layout: IndexLayout, *, backwards: bool = False) -> int:
    """Rebuild without Spark; the tasks in any order."""
    (side / "keys").mkdir(parents=True, exist_ok=True)
    parts = plan_parts(open_store(str(root)), 0)
    order = slice(None, None, -1 if backwards else 1)
    found = [write_keys(side, part) for part in parts[order]][order]
    files = index_parts(found, layout)
    for part in files[order]:
        write_index(side, layout, found, part)
    finish(side)
    return sum(each.count for each in found)


def index_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("name", ["clean", "kill9"])
def test_the_index_of_java_comes_out_the_same(tmp_path: Path, name: str) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / name, tmp_path / "store")
    layout = open_index(list_index(tmp_path / "store")[0]).layout
    assert rebuilt_index(tmp_path / "store", tmp_path / "side", layout) > 100
    repair_store(open_layout(tmp_path / "store"), output=tmp_path / "doctor")
    assert tree(tmp_path / "side") == tree(tmp_path / "doctor" / "index")
    if name == "clean":
        assert index_of(tmp_path / "side") == index_of(tmp_path / "store" / "index")


@pytest.mark.parametrize("raft", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_an_index_of_several_files_is_that_of_our_store(
    tmp_path: Path, raft: bool, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        record(
            number,
            topic="T" if number % 5 else "t" * 130,
            stored=V6 if number % 11 == 0 else record().store_host,
            properties=f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number % 7} ü  all\x02".encode() if number % 3 else b"",
            sys_flag=TRANSACTION_ROLLBACK if number % 13 == 0 else TRANSACTION_PREPARED if number % 17 == 0 else 0,
        )
        for number in range(300)
    ]
    layout = IndexLayout(50, 70)
    placed = write_log(tmp_path / "store", records, raft=raft)
    count = rebuilt_index(tmp_path / "store", tmp_path / "side", layout, backwards=backwards)
    monkeypatch.setattr("ledgermq.spark.rebuild_index._KEYS_AT_ONCE", 13)
    assert rebuilt_index(tmp_path / "store", tmp_path / "again", layout) == count > 500
    assert tree(tmp_path / "side") == tree(tmp_path / "again")
    files = IndexFiles(tmp_path / "ours", layout)
    keys = [
        (index_hash(key_text(each.topic, key.decode())), each)
        for each in placed
        for key in index_keys(each.sys_flag, each.properties)
    ]
    left = Entries(
        np.array([key for key, _ in keys], np.int32),
        np.array([each.physical_offset for _, each in keys]),
        np.array([each.store_timestamp for _, each in keys]),
    )
    while left:
        left = left.behind(files.put(left))
    files.sync()
    files.close()
    assert index_of(tmp_path / "side") == index_of(tmp_path / "ours")


def test_a_task_of_the_index_has_a_part_of_its_keys_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgermq.spark.rebuild_index._KEYS_AT_ONCE", 4_000)
    keys = np.zeros(100_000, [("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
    keys["offset"] = keys["time"] = np.arange(1, len(keys) + 1)
    keys.tofile(tmp_path / "keys")
    layout, found = IndexLayout(500, len(keys) + 1), [KeyFile(str(tmp_path / "keys"), len(keys))]
    (part,) = index_parts(found, layout)
    tracemalloc.start()
    write_index(tmp_path, layout, found, part)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < keys.nbytes / 2
    assert open_index(tmp_path / part.name).count == len(keys)


def test_a_job_replaces_the_index_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / "clean", tmp_path / "store")
    folder = tmp_path / "store" / "index"
    before, layout = index_of(folder), open_index(list_index(tmp_path / "store")[0]).layout
    with pytest.raises(PipelineError, match="give the slots and entries"):
        rebuild_index(spark, str(tmp_path / "store"))
    for path in folder.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert rebuild_index(spark, str(tmp_path / "store"), layout=layout).files == len(before)
    assert index_of(folder) == before


def test_a_job_replaces_the_queues_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / "clean", tmp_path / "store")
    queues = tmp_path / "store" / "consumequeue"
    before = {path: data for path, data in tree(queues).items() if any(data)}
    for path in [found for found in sorted(queues.rglob("0*")) if found.is_file()][::2]:
        path.write_bytes(bytes(path.stat().st_size))
    rebuild(spark, str(tmp_path / "store"))
    assert tree(queues) == before
    assert not (tmp_path / "store" / "consumequeue.old").exists()
    with pytest.raises(PipelineError, match="File exists"):
        rebuild(spark, str(tmp_path / "store"), str(queues))
    placed = write_log(tmp_path / "bad", LOG)
    overwrite(tmp_path / "bad" / "commitlog" / f"{0:020d}", placed[3].physical_offset, b"\xff" * 8)
    with pytest.raises(Exception, match="repair the store first"):
        rebuild(spark, str(tmp_path / "bad"))
    assert not (tmp_path / "bad" / "consumequeue").exists()
    assert DamagedLogError.exit_code == 1
