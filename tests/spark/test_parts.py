"""What lies in a log's files, divided anywhere: torn tails, damage, imitated records, files made ahead, live stores."""

import fcntl
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.log.entry import encode_entry
from ledgermq.message.record import encode_record
from ledgermq.spark.errors import DamagedLogError, NotAStoreError, PipelineError
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import Block, Damage, plan_parts, read_part
from tests.spark.logs import record, write_log


def read(root: Path, split_bytes: int = 0, *, verify: bool = True) -> tuple[list[int], list[Damage], dict[int, str]]:
    """Physical offsets of the records, damaged places, and faults by physical offset."""
    offsets: list[int] = []
    damages: list[Damage] = []
    faults: dict[int, str] = {}
    for part in plan_parts(open_store(str(root)), split_bytes):
        for found in read_part(part, verify=verify):
            if isinstance(found, Damage):
                damages.append(found)
                continue
            assert isinstance(found, Block)
            places = (found.starts + found.base).tolist()
            offsets += places
            faults |= {places[row]: detail for row, detail in found.faults.items()}
    return offsets, damages, faults


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("raft", [False, True])
@pytest.mark.parametrize("split_bytes", [0, 200, 1000, 1 << 20])
def test_every_record_is_read_once_wherever_the_log_is_divided(tmp_path: Path, raft: bool, split_bytes: int) -> None:
    placed = write_log(tmp_path, [record(n, body=b"x" * (n * 37 % 400)) for n in range(60)], raft=raft)
    assert read(tmp_path, split_bytes) == ([each.physical_offset for each in placed], [], {})


@pytest.mark.parametrize("raft", [False, True])
def test_a_torn_tail_is_reported_with_its_place(tmp_path: Path, raft: bool) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(5)], raft=raft)
    (path,) = (tmp_path / ("dledger-n0/data" if raft else "commitlog")).iterdir()
    last = placed[-1]
    overwrite(path, last.physical_offset + last.size - 60, bytes(60))
    offsets, (damage,), faults = read(tmp_path)
    assert offsets == [each.physical_offset for each in placed[:-1]]
    assert damage.physical_offset == last.physical_offset - (48 if raft else 0)
    assert damage.detail.startswith("torn tail")
    assert faults == {}


def test_a_bad_crc_is_reported_where_it_is_and_the_rest_is_read(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n, body=b"body of %d" % n) for n in range(30)])
    bad = placed[4]
    overwrite(tmp_path / "commitlog" / f"{0:020d}", bad.physical_offset + 88, b"B")
    offsets, damages, faults = read(tmp_path)
    assert offsets == [each.physical_offset for each in placed]
    assert damages == []
    assert list(faults) == [bad.physical_offset]
    assert "body CRC" in faults[bad.physical_offset]
    assert read(tmp_path, verify=False)[2] == {}


@pytest.mark.parametrize("raft", [False, True])
@pytest.mark.parametrize("split_bytes", [0, 500])
def test_records_behind_a_gap_are_found_again(tmp_path: Path, raft: bool, split_bytes: int) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(60)], raft=raft)
    first = sorted((tmp_path / ("dledger-n0/data" if raft else "commitlog")).iterdir())[0]
    header = 48 if raft else 0
    bad = placed[5]
    overwrite(first, bad.physical_offset - header, b"\xff" * 60)
    offsets, (damage,), _ = read(tmp_path, split_bytes)
    assert offsets == [each.physical_offset for each in placed if each is not bad]
    assert (damage.physical_offset, damage.length) == (bad.physical_offset - header, bad.size + header)


@pytest.mark.parametrize("raft", [False, True])
@pytest.mark.parametrize("split_bytes", [0, 500])
def test_a_record_of_an_unknown_version_is_reported_and_the_rest_is_read(
    tmp_path: Path, raft: bool, split_bytes: int
) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(60)], raft=raft)
    first = sorted((tmp_path / ("dledger-n0/data" if raft else "commitlog")).iterdir())[0]
    newer = placed[5]
    overwrite(first, newer.physical_offset + 4, struct.pack(">i", newer.magic + 7))
    offsets, (damage,), _ = read(tmp_path, split_bytes)
    assert offsets == [each.physical_offset for each in placed if each is not newer]
    assert damage.physical_offset == newer.physical_offset - (48 if raft else 0)
    assert damage.detail == f"{damage.length} bytes are no records; records follow"


def test_a_sealed_file_that_ends_in_zeros_is_damaged(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(60)])
    first = tmp_path / "commitlog" / f"{0:020d}"
    last = max(each.physical_offset + each.size for each in placed if each.physical_offset < 4096)
    overwrite(first, last, bytes(8))
    offsets, (damage,), _ = read(tmp_path)
    assert offsets == [each.physical_offset for each in placed]
    assert damage.physical_offset == last
    assert "next file" in damage.detail


@pytest.mark.parametrize("raft", [False, True])
def test_a_body_that_imitates_records_misleads_nobody(tmp_path: Path, raft: bool) -> None:
    """Sound records lie inside a body, at the places they say; a division in the body finds them."""
    outer = record(0, body=b"")
    header = 48 if raft else 0
    body_at = header + outer.size - len(outer.properties) - 2 - 1 - len(outer.topic)
    inner, at = b"", body_at
    for number in range(8):
        forged = encode_record(replace(record(number), physical_offset=at + header))
        forged = encode_entry(number, 1, at, forged) if raft else forged
        inner, at = inner + forged, at + len(forged)
    placed = write_log(tmp_path, [record(0, body=inner + b"tail"), *(record(n) for n in range(1, 10))], raft=raft)
    assert read(tmp_path, 0)[0] == [each.physical_offset for each in placed]
    with pytest.raises(DamagedLogError, match="splitBytes=0") as caught:
        read(tmp_path, 300)
    assert caught.value.exit_code == 1


def test_a_record_larger_than_a_block_is_read(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(0), record(1, body=b"z" * (5 << 20)), record(2)], file_size=6 << 20)
    assert read(tmp_path)[0] == [each.physical_offset for each in placed]


def test_records_of_one_size_are_read_across_blocks(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n, body=b"x" * 3000) for n in range(2000)], file_size=8 << 20)
    assert read(tmp_path, verify=False)[0] == [each.physical_offset for each in placed]


def test_files_made_ahead_are_no_part_of_the_log(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(40)])
    for start in (2, 3):
        (tmp_path / "commitlog" / f"{start * 4096:020d}").write_bytes(bytes(4096))
    assert read(tmp_path) == ([each.physical_offset for each in placed], [], {})


def test_a_plan_of_a_live_store_is_a_snapshot(tmp_path: Path) -> None:
    placed = write_log(tmp_path, [record(n) for n in range(5)])
    path = tmp_path / "commitlog" / f"{0:020d}"
    end = placed[-1].physical_offset + placed[-1].size
    overwrite(path, end, struct.pack(">ii", 500, -626843481))  # the next record is half written
    with (tmp_path / "lock").open("w") as lock:  # asked for by a child, for a process does not see its own
        fcntl.lockf(lock, fcntl.LOCK_EX)
        script = (
            "import sys; from ledgermq.spark.log_files import open_store; from ledgermq.spark.parts import plan_parts;"
            f"store = open_store({str(tmp_path)!r}); print(store.is_live, plan_parts(store)[-1].end)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(end)]
    assert read(tmp_path)[1], "nobody writes it any more: a torn tail"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda root: None, "neither commitlog nor dledger"),
        (lambda root: (root / "commitlog").mkdir(), "has no log file"),
        (lambda root: (root / "store" / "commitlog").mkdir(parents=True), "store may be one"),
        (lambda root: [(root / f"dledger-{n}" / "data").mkdir(parents=True) for n in "ab"], "several DLedger members"),
    ],
)
def test_a_directory_that_is_no_store_is_refused(tmp_path: Path, make: Callable[[Path], object], text: str) -> None:
    make(tmp_path)
    with pytest.raises(NotAStoreError, match=text):
        open_store(str(tmp_path))
    with pytest.raises(NotAStoreError, match="does not exist"):
        open_store(str(tmp_path / "absent"))


def test_a_file_that_was_deleted_after_the_plan_is_named(tmp_path: Path) -> None:
    write_log(tmp_path, [record(n) for n in range(5)])
    (part,) = plan_parts(open_store(str(tmp_path)))
    Path(part.file.path).unlink()
    with pytest.raises(PipelineError, match="is gone"):
        list(read_part(part, verify=False))
