"""Repair: what it refuses, what it keeps aside, what it puts in the place of what is lost."""

import asyncio
import base64
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from doctor.check.index_check import check_index_file, list_index, open_index
from doctor.check.run import check_store, scan_file
from doctor.read.directory import open_layout
from doctor.read.walk import walk
from doctor.repair.placeholders import SENTENCE
from doctor.repair.rebuild_index import IndexRebuilder
from ha.elected.files import BootFile
from ledgermq.message.index_unit import IndexLayout
from store.directory.lock_file import LockFile
from tests.doctor.doctor_support import damage, flip, run_json, write_store
from tests.store.support import GOLDEN, body_of, fast_directory, golden, open_classic, put_all, queued


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as directory:
        yield directory


@pytest.fixture
def store(place: Path) -> Path:
    write_store(place / "store")
    return place / "store"


def bodies(root: Path) -> list[list[bytes]]:
    """Of both queues, as a consumer reads them."""

    async def read() -> list[list[bytes]]:
        opened = await open_classic(root, file_size=2048, queue_file_size=200)
        found: list[list[bytes]] = [[], []]
        for number in (0, 1):
            queue = opened.store.queues.get(b"T", number)
            offset = queue.min_offset
            while offset < queue.max_offset:  # blanks answer nothing, and the next offset
                result = opened.store.reader.get(queue, offset, 32, 1 << 20)
                found[number] += [body_of(record) for record in result.records]
                assert result.next_offset > offset
                offset = result.next_offset
        await opened.close()
        return found

    return asyncio.run(read())


def test_a_copy_needs_an_empty_place_outside(store: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "full").mkdir()
    (place / "full" / "something").write_text("mine")
    for output in (place / "full", store / "inside"):
        assert main(["store", "repair", str(store), "--output", str(output)]) == 2
    assert (place / "full" / "something").read_text() == "mine"
    with pytest.raises(SystemExit):
        main(["store", "repair", str(store)])
    capsys.readouterr()


def test_in_place_takes_the_lock_and_leaves_a_clean_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "abort").write_text("4242")
    flip(store / "consumequeue/T/0/00000000000000000000", 8)
    lock = LockFile(store)
    assert main(["store", "repair", str(store), "--in-place"]) == 1
    lock.release()
    assert "held by process" in capsys.readouterr().err
    result = run_json(capsys, ["repair", store, "--in-place"], 0)
    assert (result["side_file"], result["check"]["faults"]) == (None, [])
    assert result["notes"] == []
    assert not (store / "abort").exists()
    assert bodies(store) == [[b"body of message %d" % n for n in range(start, 21, 2)] for start in (0, 1)]


def test_a_repaired_elected_replica_is_in_doubt(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BootFile(store, "boot-1").write(is_durable=False, in_doubt=False)
    result = run_json(capsys, ["repair", store, "--in-place"], 0)
    assert result["notes"] == [
        "an elected replica: it is no candidate for master until it has copied what a master confirms"
    ]
    assert BootFile(store, "boot-1").has_lost_power()


def test_what_is_cut_is_kept_aside(store: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = list(walk(open_layout(store)))[-1]
    flip(last.file, last.position + 88)
    result = run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    (line,) = [json.loads(text) for text in Path(result["side_file"]).read_text().splitlines()]
    assert (line["file"], line["offset"], line["kind"]) == ("commitlog/" + last.file.name, last.position, "cut")
    kept = base64.b64decode(line["data"])
    assert len(kept) == last.frame.size
    assert kept[89:] == last.frame.record[89:]
    assert run_json(capsys, ["repair", place / "copy", "--in-place"], 0)["cut_bytes"] == 0
    assert bodies(place / "copy")[0] == [b"body of message %d" % n for n in range(0, 19, 2)]


def test_a_named_side_file_is_never_overwritten(store: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine").write_text("precious")
    last = list(walk(open_layout(store)))[-1]
    flip(last.file, last.position + 88)
    assert main(["store", "repair", str(store), "--output", str(place / "copy"), "--cut", str(place / "mine")]) == 1
    assert (place / "mine").read_text() == "precious"
    assert "not repaired" in capsys.readouterr().err


def test_records_lost_inside_the_log_are_said_to_be_where_they_were(
    store: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = list(walk(open_layout(store)))
    damage(records[3].file, records[3].position, bytes(records[3].frame.size + 40))
    result = run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    assert result["replaced"] == 1
    even, odd = bodies(place / "copy")
    assert SENTENCE.startswith(odd[1].rstrip())
    assert SENTENCE.startswith(even[2].rstrip())
    assert odd[2:] == [b"body of message %d" % n for n in range(5, 21, 2)]
    assert even[3:] == [b"body of message %d" % n for n in range(6, 21, 2)]


def test_queue_files_cut_below_one_unit_tell_no_file_size(
    store: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (store / "consumequeue").rglob("0*0"):
        os.truncate(path, 1)
    assert run_json(capsys, ["repair", store, "--output", place / "copy"], 0)["check"]["faults"] == []
    sizes = {path.stat().st_size for path in (place / "copy" / "consumequeue").rglob("0*0")}
    assert sizes == {6_000_000}


def test_a_gap_that_no_queue_knows_is_filled_with_what_enters_none(
    store: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = list(walk(open_layout(store)))
    damage(records[3].file, records[3].position, bytes(40))
    for path in (store / "consumequeue").rglob("0*0"):
        if path.is_file():
            path.unlink()
    result = run_json(capsys, ["repair", store, "--output", place / "copy", "--queue-file-size", "200"], 0)
    assert result["replaced"] == 1
    even, odd = bodies(place / "copy")
    assert even == [b"body of message %d" % n for n in range(0, 21, 2)]
    assert odd == [b"body of message %d" % n for n in range(1, 21, 2) if n != 3]


def test_a_file_missing_inside_the_log_becomes_a_blank_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_store(place / "store", [14] * 4)
    missing = place / "store/commitlog/00000000000000002048"
    records = [item.decode() for item in walk(open_layout(place / "store")) if item.file.name == missing.name]
    lost = {record.body for record in records if record is not None}
    assert 0 < len(lost) < 56
    missing.unlink()
    faults = run_json(capsys, ["check", place / "store"], 1)["faults"]
    assert {"missing-file", "queue-dangling"} <= {fault["kind"] for fault in faults}
    run_json(capsys, ["repair", place / "store", "--output", place / "copy"], 0)
    found = {body for queue in bodies(place / "copy") for body in queue}
    assert found == {b"body of message %d" % n for n in range(56)} - lost


def test_a_wrong_queue_offset_is_set_right(store: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(walk(open_layout(store)))[5]
    flip(found.file, found.position + 22)
    (fault,) = run_json(capsys, ["check", store], 1)["faults"]
    assert (fault["offset"], fault["kind"]) == (found.position, "bad-number")
    run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    assert list(walk(open_layout(place / "copy")))[5].frame.record == found.frame.record


def test_our_own_raft_node_keeps_a_damaged_entry_for_its_peers_to_replace(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden.restore_tree(GOLDEN / "store-dledger/healed/n0", place / "node")
    (place / "node/dledger-n0/identity").write_text("{}")
    flip(place / "node/dledger-n0/data/00000000000000032768", 26644)
    result = run_json(capsys, ["repair", place / "node", "--output", place / "copy"], 1)
    assert "the node fetches a peer's copy" in result["not_repaired"][0]
    assert [fault["kind"] for fault in result["check"]["faults"]] == ["bad-body"]


def test_a_gap_in_a_raft_log_keeps_the_indexes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden.restore_tree(GOLDEN / "store-dledger/healed/n0", place / "node")
    data = place / "node/dledger-n0/data/00000000000000032768"
    entries = [item for item in walk(open_layout(place / "node")) if item.file.name == data.name]
    damage(data, entries[10].position, bytes(entries[10].frame.size + 20))
    for index_is_there in (True, False):
        copy = place / f"copy-{index_is_there}"
        result = run_json(capsys, ["repair", place / "node", "--output", copy], 0)
        assert result["replaced"] == 1
        assert [item.frame.entry_index for item in walk(open_layout(copy))] == list(range(204))
        (place / "node/dledger-n0/index/00000000000000000000").unlink(missing_ok=True)


def test_queues_whose_records_are_all_gone_keep_their_numbers(
    store: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their topic's next message must not begin at 0 again: consumers are behind it."""

    async def write_other() -> None:
        opened = await open_classic(store, file_size=2048, queue_file_size=200)
        await opened.close()

    asyncio.run(write_other())
    old = store / "consumequeue/Old/0"
    old.mkdir(parents=True)
    unit = (0).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    (old / "00000000000000000000").write_bytes(unit * 4 + bytes(120))
    (store / "commitlog/00000000000000000000").unlink()
    assert run_json(capsys, ["check", store], 0)["faults"] == []
    run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    assert (place / "copy/consumequeue/Old/0/00000000000000000000").read_bytes() == unit * 4 + bytes(120)


def test_unreadable_json_comes_back_from_its_backup(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden.restore_tree(GOLDEN / "store-classic/clean", place / "store")
    topics = place / "store/config/topics.json"
    whole = topics.read_bytes()
    topics.write_bytes(whole[: len(whole) // 2])
    (fault,) = run_json(capsys, ["check", place / "store"], 1)["faults"]
    assert (fault["file"], fault["kind"]) == ("config/topics.json", "config-wrong")
    run_json(capsys, ["repair", place / "store", "--output", place / "copy"], 0)
    assert (place / "copy/config/topics.json").read_bytes() == whole


def test_a_log_that_is_gone_is_not_repaired_in_place(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (store / "commitlog").iterdir():
        path.unlink()
    assert main(["store", "repair", str(store), "--in-place"]) == 1
    assert "restore the log first" in capsys.readouterr().err
    assert (store / "consumequeue/T/0").is_dir()


def test_index_links_and_headers_are_checked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden.restore_tree(GOLDEN / "store-classic/clean", place / "store")
    name = "index/20261121091222798"
    path = place / "store" / name
    for position, kind in ((35, "index-header"), (41, "index-chain"), (40 + 400 + 20 * 7 + 19, "index-chain")):
        flip(path, position)
        faults = check_store(open_layout(place / "store"), jobs=1).findings.faults
        assert (name, kind) in {(fault.file, fault.kind) for fault in faults}, position
        assert all(fault.offset <= position for fault in faults if fault.file == name and fault.kind == kind)
        flip(path, position)


@pytest.mark.parametrize(("slots", "entries"), [(3, 20), (100, 100), (7, 1000), (50, 200), (1, 2)])
def test_any_sizes_of_index_files_are_found_out(slots: int, entries: int, place: Path) -> None:
    write_store(place / "store")
    layout = open_layout(place / "store")
    builder = IndexRebuilder(place / "store", IndexLayout(slots, entries))
    for file in layout.log_files:
        columns = scan_file(layout, file).columns
        keys = [b"key%d" % row for row in range(len(columns))]
        keyed = dataclasses.replace(columns, keys=keys, key_owners=np.arange(len(columns)))
        builder.put(keyed, np.zeros(len(columns), np.bool_))
    builder.finish()
    for path in list_index(place / "store"):
        assert open_index(path).layout == IndexLayout(slots, entries)
        assert check_index_file(path.name, path)[0] == []


def test_a_deleted_topic_is_no_fault_and_does_not_come_back(
    store: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "consumequeue/T")
    assert {fault["kind"] for fault in run_json(capsys, ["check", store], 1)["faults"]} == {"queue-missing"}
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text('{"topicConfigTable":{"Other":{"topicName":"Other"}}}')
    found = run_json(capsys, ["check", store], 0)
    assert "21 records are of topics that topics.json does not have" in " ".join(found["notes"])
    run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    assert not (place / "copy/consumequeue/T").exists()


def test_an_earlier_life_of_a_topic_is_no_fault(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = place / "store"
    write_store(store)

    async def remove_and_make_again() -> int:
        opened = await open_classic(store, file_size=2048, queue_file_size=200)
        removed_at = opened.store.log.max_offset
        opened.store.queues.delete_topic("T")
        queue = opened.store.queues.get(b"T", 0)
        await put_all(opened, [queued(queue, b"again %d" % number, tags="A") for number in range(3)])
        await opened.close()
        return removed_at

    removed = {"T": asyncio.run(remove_and_make_again())}
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text('{"topicConfigTable":{"T":{"topicName":"T"}}}')
    assert {fault["kind"] for fault in run_json(capsys, ["check", store], 1)["faults"]} == {"queue-missing"}
    (store / "config/ledgermqState.json").write_text(json.dumps({"format": 1, "appliedOffset": 0, "removed": removed}))
    found = run_json(capsys, ["check", store], 0)
    assert "21 records are of topics" in " ".join(found["notes"])
    run_json(capsys, ["repair", store, "--output", place / "copy"], 0)
    assert run_json(capsys, ["check", place / "copy"], 0)["faults"] == []
    assert not (place / "copy/consumequeue/T/1").exists()
