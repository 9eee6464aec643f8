"""Every damaged directory that RocketMQ wrote: its damage is named at its place, and a repaired copy is whole.

What cannot be seen stands in UNSEEN with the reason; everything else must be named in the file, and at or before the
byte, that was damaged.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.log.commit_checkpoint import load_checkpoint
from dledger.log.opening import open_log
from doctor.check.findings import KINDS
from doctor.check.run import CheckResult, check_store
from doctor.read.directory import open_layout
from doctor.read.walk import walk
from doctor.repair.run import repair_store
from tests.doctor.doctor_support import restore, variants
from tests.store.support import GOLDEN, fast_directory, golden, open_classic

UNSEEN = {
    "clean-abort": "an abort file is a note: it says how the last run ended, not that anything is wrong",
    "healed-n0-abort": "as clean-abort",
    "one-n0-abort": "as clean-abort",
    "kill9-no-abort": "the files are those of a clean stop; nothing tells that one is missing",
    "dead-n1-no-abort": "as kill9-no-abort",
    "clean-flip-last-properties": "properties have no CRC, and neither tag nor key was hit; a note says zero bytes",
    "kill9-flip-last-properties": "as clean-flip-last-properties",
    "clean-log-first-file-missing": "exactly what cleaning by age leaves behind",
    "kill9-log-first-file-missing": "as clean-log-first-file-missing",
}
KIND_OF = {
    "clean-torn-last": "torn-properties",
    "healed-n0-torn-last": "torn-properties",
    "dead-n1-torn-last": "bad-body",
    "torn-last": "torn-tail",
    "torn-last-8": "torn-tail",
    "torn-last-3": "torn-tail",
    "torn-last-header": "torn-tail",
    "flip-last-body": "bad-body",
    "flip-middle-body": "bad-body",
    "flip-middle-of-last-file": "bad-body",
    "flip-middle-file": "bad-body",
    "flip-first-file": "bad-body",
    "flip-last-magic": "torn-tail",
    "flip-last-pos": "torn-tail",
    "flip-last-term": "torn-tail",
    "half-message": "torn-tail",
    "cq-cut-5": "queue-missing",
    "cq-file-missing": "queue-missing",
    "cq-topic-missing": "queue-missing",
    "cq-all-missing": "queue-missing",
    "cq-ahead": "queue-dangling",
    "index-last-zero": "unit-missing",
    "index-middle-wrong": "unit-wrong",
    "index-missing": "index-missing",
    "index-last-missing": "index-missing",
    "dead-n1-index-missing": "unit-missing",
    "healed-n0-index-missing": "unit-missing",
    "checkpoint-missing": "checkpoint-missing",
    "checkpoint-zero": "checkpoint-wrong",
    "checkpoint-late": "checkpoint-wrong",
    "checkpoint-ahead": "checkpoint-wrong",
    "currterm-missing": "term-missing",
    "log-last-file-missing": "missing-file",
    "data-last-file-missing": "missing-file",
    "log-hole": "missing-file",
    "log-missing": "missing-file",
    "log-bad-length": "bad-length",
    "data-bad-length": "bad-length",
}
SOMEWHERE_IN = {"clean-index-last-missing": "index", "kill9-index-last-missing": "index"}
"""A missing index file's name is not known: another one, or the folder, is named."""

CASES = [(folder, variant) for folder in ("store-classic", "store-dledger") for variant in variants(folder)]
UNDAMAGED = [name for name in (variant["name"] for _, variant in CASES) if name in ("clean", "kill9")]


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


def expected_kind(name: str) -> str:
    if name in KIND_OF:
        return KIND_OF[name]
    return KIND_OF[next(tail for tail in sorted(KIND_OF, key=len, reverse=True) if name.endswith(f"-{tail}"))]


def names_damage(result: CheckResult, variant: dict[str, Any]) -> bool:
    """Whether a fault of the expected kind lies in a damaged file, at or before a damaged byte."""
    kind = expected_kind(variant["name"])
    for fault in result.findings.faults:
        for op in variant["ops"]:
            end = op.get("offset", op["length"] if op["op"] == "cut" else 0) + op.get("length", 1)
            is_there = fault.file == op["path"] or (op["op"] == "delete" and fault.file.startswith(op["path"]))
            if fault.kind == kind and fault.offset < end and is_there:
                return True
            if fault.kind == kind and fault.file.startswith(SOMEWHERE_IN.get(variant["name"], "\0")):
                return True
    return False


@pytest.mark.parametrize(("folder", "variant"), CASES, ids=[variant["name"] for _, variant in CASES])
def test_damage_is_named_and_repaired(folder: str, variant: dict[str, Any], place: Path) -> None:
    damaged = restore(folder, variant, place / "damaged")
    layout = open_layout(damaged)
    found = check_store(layout, jobs=1)
    if not variant["ops"] or variant["name"] in UNSEEN:
        assert found.findings.faults == []
    else:
        assert names_damage(found, variant), found.findings.as_json()
    assert {fault.kind for fault in found.findings.faults} <= KINDS.keys()
    before = {path: path.stat().st_mtime_ns for path in damaged.rglob("*")}
    readable = [item for item in walk(layout) if item.frame.fault is None]

    result = repair_store(layout, output=place / "repaired", queue_file_size=1200)

    assert result.check.findings.faults == []
    repaired = {item.physical_offset: item.frame.record for item in walk(open_layout(place / "repaired"))}
    assert all(repaired.get(item.physical_offset) == item.frame.record for item in readable)
    assert {path: path.stat().st_mtime_ns for path in damaged.rglob("*")} == before
    _opens_with_our_store(folder, place / "repaired", result.check)


def _opens_with_our_store(folder: str, root: Path, check: CheckResult) -> None:
    """Nothing to cut, nothing damaged, every queue as the doctor built it."""
    if folder == "store-dledger":
        (directory,) = root.glob("dledger-*")
        opened = open_log(
            directory,
            data_file_size=32768,
            index_file_size=167_772_160,
            allocator=None,
            checkpoint=load_checkpoint(directory),
            intact=True,
        )
        assert opened.found.cut is None
        assert opened.found.damages == []
        assert opened.found.lost is None
        assert opened.found.last_index == check.facts.last_index
        opened.data.close()
        opened.units.close()
        return

    async def open_classic_one() -> tuple[int, int]:
        store = await open_classic(root, file_size=65536, queue_file_size=1200)
        end, count = store.store.log.max_offset, len([queue for queue in store.store.queues if queue.max_offset])
        await store.close()
        return end, count

    end, queues = asyncio.run(open_classic_one())
    assert end == check.max_offset
    assert queues == check.queues


@pytest.mark.parametrize(
    "tree",
    [f"store-dledger/{name}" for name in ("one/n1", "one/n2", "healed/n2", "plain/p0", "plain/p1", "plain/p2")]
    + [f"records/stores/{name}" for name in ("batchcq", "blank", "cqext", "crc", "lmq", "plain")]
    + [f"wire/ha/stores/{name}" for name in ("classic-m", "classic-s", "auto-s")],
)
def test_what_a_java_broker_left_is_clean_and_stays_so_in_a_repaired_copy(tree: str, place: Path) -> None:
    golden.restore_tree(GOLDEN / tree, place / "store")
    layout = open_layout(place / "store")
    result = check_store(layout, jobs=1)
    assert result.findings.faults == []
    copy = repair_store(layout, output=place / "copy").check
    assert copy.findings.faults == []
    assert (copy.records, copy.queues, copy.max_offset) == (result.records, result.queues, result.max_offset)
    assert copy.index_entries == result.index_entries


def test_units_of_entries_that_raft_cut_are_named_where_java_left_them(place: Path) -> None:
    """RocketMQ dispatched uncommitted entries, and Raft then cut them: its queues and index still know them."""
    golden.restore_tree(GOLDEN / "store-dledger/healed/n1", place / "store")
    faults = check_store(open_layout(place / "store"), jobs=1).findings.faults
    assert {(fault.file, fault.kind) for fault in faults} == {
        ("consumequeue/GoldenRaft/0/00000000000000001200", "queue-wrong"),
        ("consumequeue/GoldenRaft/1/00000000000000001200", "queue-wrong"),
        ("index/20261121092005237", "index-missing"),
        ("index/20261121092005237", "index-wrong"),
    }


@pytest.mark.parametrize("base", ["clean", "kill9"])
def test_rebuilt_queues_and_index_are_java_s_byte_for_byte(base: str, place: Path) -> None:
    golden.restore_tree(GOLDEN / "store-classic" / base, place / "store")
    repair_store(open_layout(place / "store"), output=place / "copy")
    for path in sorted((place / "store" / "consumequeue").rglob("0*")):
        if path.is_file() and any(path.read_bytes()):
            assert (place / "copy" / path.relative_to(place / "store")).read_bytes() == path.read_bytes(), path
    files = [sorted(path.read_bytes() for path in (place / name / "index").iterdir()) for name in ("store", "copy")]
    assert files[0] == files[1]


def test_the_table_names_real_variants() -> None:
    names = {variant["name"] for _, variant in CASES}
    assert set(UNSEEN) <= names
    assert json.dumps(sorted(names - set(UNSEEN)))
    for _, variant in CASES:
        if variant["ops"] and variant["name"] not in UNSEEN:
            assert expected_kind(variant["name"]) in KINDS
