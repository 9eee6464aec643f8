"""Archives: byte for byte there and back, the same on each run, whole after any kill, and nothing taken on trust."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ledgermq.archive import ManifestError, archive_fault, decode_manifest, read_manifest
from ledgermq.spark import archive as module
from ledgermq.spark.archive import (
    archive,
    archive_segment,
    restore,
    restore_segment,
    sealed_files,
    segment_fault,
    verify,
)
from ledgermq.spark.errors import ArchiveError, DamagedLogError, OptionError
from ledgermq.spark.log_files import open_store
from ledgermq.spark.rebuild import rebuild
from ledgermq.spark.rebuild_index import rebuild_index
from ledgermq.spark.statistics import lag, statistics
from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint
from tests.spark.logs import V6, record, write_log
from tests.spark.test_parts import overwrite
from tests.store.support import GOLDEN, golden

pytestmark = pytest.mark.timeout(600)

MIXED = [
    record(
        n,
        queue_id=n % 3,
        topic="T" if n % 5 else "t" * 130,
        body=b"body %d " % n * (n % 40),
        stored=V6 if n % 7 == 0 else record().store_host,
    )
    for n in range(90)
]


def archive_all(root: Path, target: Path, **options: Any) -> list[bool]:
    """Archive the sealed files of a store; returns which were there."""
    target.mkdir(exist_ok=True)
    store = open_store(str(root))
    return [archive_segment(target, store.kind, file, **options).was_there for file in store.files[:-1]]


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def segments(root: Path, *, raft: bool) -> list[Path]:
    return sorted((root / ("dledger-n0/data" if raft else "commitlog")).iterdir())[:-1]


@pytest.mark.parametrize("raft", [False, True])
def test_segments_come_back_byte_for_byte_and_again_the_same(tmp_path: Path, raft: bool) -> None:
    write_log(tmp_path / "store", MIXED, raft=raft)
    sealed = segments(tmp_path / "store", raft=raft)
    assert len(sealed) >= 3
    first, second = tmp_path / "a", tmp_path / "b"
    assert archive_all(tmp_path / "store", first) == [False] * len(sealed)
    assert archive_all(tmp_path / "store", first) == [True] * len(sealed)
    archive_all(tmp_path / "store", second)
    assert files_of(first) == files_of(second)
    assert sorted(files_of(first)) == sorted(
        name for path in sealed for name in (f"_{path.name}.json", f"{path.name}.parquet")
    )
    (tmp_path / "out").mkdir()
    for path in sealed:
        manifest = read_manifest(first, int(path.name))
        assert manifest is not None
        assert archive_fault(first, path) is None
        assert segment_fault(first, manifest) is None
        assert not restore_segment(first, tmp_path / "out", manifest).was_there
        assert restore_segment(first, tmp_path / "out", manifest).was_there
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [path.name for path in sealed]


def test_columns_and_manifest_tell_of_the_records(tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", MIXED)
    archive_all(tmp_path / "store", tmp_path / "a")
    rows = [
        row
        for path in sorted((tmp_path / "a").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
        if row["topic"] is not None
    ]
    sealed = placed[: len(rows)]
    assert [(row["topic"], row["queue_id"], row["queue_offset"], row["phys_offset"]) for row in rows] == [
        (each.topic, each.queue_id, each.queue_offset, each.physical_offset) for each in sealed
    ]
    for row, each in zip(rows, sealed, strict=True):
        assert row["body"] == each.body
        assert (row["keys"], row["tags"]) == ("k1 k2", "a")
    manifest = read_manifest(tmp_path / "a", 0)
    assert manifest is not None
    inside = [each for each in placed if each.physical_offset < 4096]
    assert (manifest.records, manifest.length, manifest.kind) == (len(inside), 4096, "classic")
    assert (manifest.first_store_ms, manifest.last_store_ms) == (
        inside[0].store_timestamp,
        inside[-1].store_timestamp,
    )
    for queue in manifest.queues:
        offsets = [e.queue_offset for e in inside if (e.topic, e.queue_id) == (queue.topic, queue.queue_id)]
        assert (queue.first_offset, queue.last_offset, queue.records) == (min(offsets), max(offsets), len(offsets))
    assert decode_manifest(manifest.encode()) == manifest


@pytest.mark.parametrize("name", ["clean", "kill9"])
def test_directories_of_java_come_back(tmp_path: Path, name: str) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / name, tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "a").mkdir()
    (tmp_path / "out").mkdir()
    for file in store.files:  # the last one too, here: nobody writes it any more
        archive_segment(tmp_path / "a", store.kind, file, keep_damage=True)
        manifest = read_manifest(tmp_path / "a", file.start)
        assert manifest is not None and manifest.records
        restore_segment(tmp_path / "a", tmp_path / "out", manifest)
        assert (tmp_path / "out" / Path(file.path).name).read_bytes() == Path(file.path).read_bytes()


DYING = """
import os, sys
from pathlib import Path
from ledgermq.spark import archive
from ledgermq.spark.log_files import open_store

def torn(path, data, sync_names):
    path.with_suffix(".json.tmp").write_bytes(data[:50])
    os._exit(9)

places = {"parquet": ("_write_group", lambda *_: os._exit(9)), "manifest": ("replace_durably", torn)}
setattr(archive, *places[sys.argv[1]])
store = open_store(sys.argv[2])
archive.archive_segment(Path(sys.argv[3]), store.kind, store.files[0])
"""


@pytest.mark.parametrize("step", ["parquet", "manifest"])
def test_a_job_that_was_killed_is_repeated_to_the_same_bytes(tmp_path: Path, step: str) -> None:
    """A process that ends in mid-Parquet, and one that ends between the Parquet file and its manifest."""
    write_log(tmp_path / "store", MIXED)
    archive_all(tmp_path / "store", tmp_path / "whole")
    target = tmp_path / "a"
    target.mkdir()
    words = [sys.executable, "-c", DYING, step, str(tmp_path / "store"), str(target)]
    assert subprocess.run(words, check=False).returncode == 9
    assert (target / f"{0:020d}.parquet").exists() is (step == "manifest")
    assert not list(target.glob("*.json"))
    assert archive_fault(target, segments(tmp_path / "store", raft=False)[0]) is not None
    assert not any(archive_all(tmp_path / "store", target))
    assert files_of(target) == files_of(tmp_path / "whole")


def test_a_lost_or_changed_parquet_file_is_a_fault_and_is_written_anew(tmp_path: Path) -> None:
    write_log(tmp_path / "store", MIXED)
    target = tmp_path / "a"
    archive_all(tmp_path / "store", target)
    before, segment = files_of(target), segments(tmp_path / "store", raft=False)[0]
    parquet, manifest = target / f"{0:020d}.parquet", read_manifest(target, 0)
    assert manifest is not None
    overwrite(parquet, parquet.stat().st_size // 2, bytes(range(99)))
    assert "is not the file that its manifest describes" in str(archive_fault(target, segment))
    assert segment_fault(target, manifest) is not None
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError):
        restore_segment(target, tmp_path / "out", manifest)
    assert not (tmp_path / "out" / segment.name).exists()
    parquet.unlink()
    assert "does not exist" in str(archive_fault(target, segment))
    assert archive_all(tmp_path / "store", target)[:2] == [False, True]
    assert files_of(target) == before


def test_an_archive_of_another_log_is_not_touched(tmp_path: Path) -> None:
    write_log(tmp_path / "one", MIXED)
    write_log(tmp_path / "two", [replace(each, queue_id=9) for each in MIXED])
    archive_all(tmp_path / "one", tmp_path / "a")
    before = files_of(tmp_path / "a")
    with pytest.raises(ArchiveError, match="an archive holds one log"):
        archive_all(tmp_path / "two", tmp_path / "a")
    assert files_of(tmp_path / "a") == before
    assert "other bytes" in str(archive_fault(tmp_path / "a", segments(tmp_path / "two", raft=False)[0]))


def test_a_manifest_is_of_the_bytes_that_were_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a Raft group may cut its log, and write it anew, while the job reads it."""
    placed = write_log(tmp_path / "store", MIXED)
    (segment, *_) = segments(tmp_path / "store", raft=False)
    batches = module._batches

    def rewritten(*words: Any, **options: Any) -> Any:
        overwrite(segment, placed[2].physical_offset + 12, b"\0\0\0\7")  # the queue's id
        return batches(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_batches", rewritten)
        archive_all(tmp_path / "store", tmp_path / "a")
    manifest = read_manifest(tmp_path / "a", 0)
    assert manifest is not None
    assert segment_fault(tmp_path / "a", manifest) is None
    assert archive_fault(tmp_path / "a", segment) is None


def test_damage_is_not_archived_unless_it_is_wanted(tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", MIXED)
    (segment, *_) = segments(tmp_path / "store", raft=False)
    overwrite(segment, placed[2].physical_offset + 88, b"X")
    with pytest.raises(DamagedLogError, match=r"body CRC.*not archived") as caught:
        archive_all(tmp_path / "store", tmp_path / "a")
    assert caught.value.physical_offset == placed[2].physical_offset
    assert not list((tmp_path / "a").glob("*.json"))
    overwrite(segment, placed[5].physical_offset, b"\xff" * 50)
    archive_all(tmp_path / "store", tmp_path / "a", keep_damage=True)
    manifest = read_manifest(tmp_path / "a", 0)
    assert manifest is not None
    (tmp_path / "out").mkdir()
    restore_segment(tmp_path / "a", tmp_path / "out", manifest)
    assert (tmp_path / "out" / segment.name).read_bytes() == segment.read_bytes()


def test_a_topic_that_is_not_utf_8_comes_back(tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", MIXED)
    (segment, *_) = segments(tmp_path / "store", raft=False)
    (short, long) = (next(each for each in placed if len(each.topic) == size) for size in (1, 130))
    for each in (short, long):
        overwrite(segment, each.physical_offset + each.size - len(each.properties) - 3, b"\xff")
    archive_all(tmp_path / "store", tmp_path / "a")
    rows = pq.read_table(tmp_path / "a" / f"{0:020d}.parquet").to_pylist()
    topics = {row["phys_offset"]: row["topic"] for row in rows}
    assert [topics[each.physical_offset] for each in (short, long)] == ["\ufffd", "t" * 129 + "\ufffd"]
    manifest = read_manifest(tmp_path / "a", 0)
    assert manifest is not None
    (tmp_path / "out").mkdir()
    restore_segment(tmp_path / "a", tmp_path / "out", manifest)
    assert (tmp_path / "out" / segment.name).read_bytes() == segment.read_bytes()


def test_two_jobs_do_not_write_one_segment_at_once(tmp_path: Path) -> None:
    write_log(tmp_path / "store", MIXED)
    (tmp_path / "a").mkdir()
    with module._alone(tmp_path / "a", 0), pytest.raises(ArchiveError, match="another job writes this segment"):
        archive_all(tmp_path / "store", tmp_path / "a")
    archive_all(tmp_path / "store", tmp_path / "a")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":1}', b'{"version":2,"queues":[]}', b'{"version":2'])
def test_what_is_no_manifest_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ManifestError):
        decode_manifest(data)
    (tmp_path / f"_{0:020d}.json").write_bytes(data)
    (tmp_path / f"{0:020d}").write_bytes(b"x")
    assert str(tmp_path) in str(archive_fault(tmp_path, tmp_path / f"{0:020d}"))


def test_what_may_still_be_replaced_is_not_sealed(tmp_path: Path) -> None:
    """Entries of a Raft log that are not committed, or not durable. Only a checkpoint of ours tells of them."""
    write_log(tmp_path / "store", MIXED, raft=True)
    count = len(segments(tmp_path / "store", raft=True))

    def sealed(progress: Progress | None) -> int:
        checkpoint = StoreCheckpoint(log_timestamp=5, progress=progress)
        (tmp_path / "store" / "checkpoint").write_bytes(checkpoint.encode())
        return len(sealed_files(open_store(str(tmp_path / "store"))))

    assert len(sealed_files(open_store(str(tmp_path / "store")))) == count >= 3
    assert sealed(Progress(1 << 40, 2 * 4096 - 1, 0)) == 1
    assert sealed(Progress(2 * 4096, 1 << 40, 0)) == 2
    assert sealed(Progress(1 << 40, 1 << 40, 0)) == count
    assert sealed(None) == count


def test_a_store_that_is_open_or_has_another_log_is_not_restored_into(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "dledger-restored" / "data"
    module._check_output(tmp_path / "out", folder)
    module._check_output(tmp_path / "out", folder)
    with pytest.raises(ArchiveError, match="has another log"):
        module._check_output(tmp_path / "out", tmp_path / "out" / "commitlog")
    held = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(flush=True); input()"
    words = [sys.executable, "-c", held, str(tmp_path / "out" / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ArchiveError, match=f"process {holder.pid} has the store open"):
            module._check_output(tmp_path / "out", folder)
        holder.communicate(b"\n")


def test_nothing_is_written_into_a_folder_that_has_the_name_of_a_uri(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "store", MIXED)
    sealed = segments(tmp_path / "store", raft=False)
    monkeypatch.chdir(tmp_path)
    store, target, uri = str(tmp_path / "store"), str(tmp_path / "archive"), "hdfs://n/a"
    assert len(archive(spark, store, target)) == len(sealed)
    for act in (
        lambda: archive(spark, store, uri),
        lambda: restore(spark, target, uri),
        lambda: verify(spark, uri),
        lambda: rebuild(spark, store, uri),
        lambda: rebuild_index(spark, store, uri),
        lambda: statistics(spark, [store], uri),
        lambda: lag(spark, [store], uri),
        lambda: archive(spark, uri, target),
    ):
        with pytest.raises(OptionError, match="hdfs://n/a: is opened without Spark"):
            act()
    assert {path.name for path in tmp_path.iterdir()} == {"store", "archive"}


def test_a_faulty_segment_keeps_no_other_from_being_done(spark: SparkSession, tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", MIXED)
    (first, *others) = segments(tmp_path / "store", raft=False)
    overwrite(first, placed[2].physical_offset + 88, b"X")
    with pytest.raises(DamagedLogError) as caught:
        archive(spark, str(tmp_path / "store"), str(tmp_path / "a"))
    assert caught.value.physical_offset == placed[2].physical_offset
    assert all(archive_fault(tmp_path / "a", path) is None for path in others)
    (tmp_path / "a" / f"_{int(others[1].name):020d}.json").unlink()
    with pytest.raises(ArchiveError, match=r"no segment is archived between .* all that is archived is restored"):
        restore(spark, str(tmp_path / "a"), str(tmp_path / "out"))
    restored = sorted(path.name for path in (tmp_path / "out" / "commitlog").iterdir())
    assert restored == [path.name for path in others if path != others[1]]


def test_a_job_archives_verifies_and_restores(spark: SparkSession, tmp_path: Path) -> None:
    placed = write_log(tmp_path / "store", MIXED, raft=True)
    sealed = segments(tmp_path / "store", raft=True)
    done = archive(spark, str(tmp_path / "store"), str(tmp_path / "a"))
    assert [(each.start, each.was_there) for each in done] == [(int(path.name), False) for path in sealed]
    assert all(each.was_there for each in archive(spark, str(tmp_path / "store"), str(tmp_path / "a")))
    assert verify(spark, str(tmp_path / "a")).faults == ()
    restore(spark, str(tmp_path / "a"), str(tmp_path / "out"))
    rows = spark.read.format("ledgermq-store").load(str(tmp_path / "out"))
    assert rows.count() == sum(each.physical_offset < 4096 * len(sealed) for each in placed)
    bodies = spark.read.parquet(str(tmp_path / "a")).where("topic is not null").orderBy("phys_offset")
    first = bodies.select("body").limit(5).collect()
    assert [bytes(row.body) for row in first] == [each.body for each in placed[:5]]
    (tmp_path / "a" / f"_{4096:020d}.json").unlink()
    faults = verify(spark, str(tmp_path / "a")).faults
    assert faults[0] == "no segment is archived between 4096 and 8192"
    assert [fault.endswith("has no manifest: archive the log again") for fault in faults] == [False, True]
    with pytest.raises(ArchiveError, match="holds no manifest"):
        restore(spark, str(tmp_path), str(tmp_path / "out"))
