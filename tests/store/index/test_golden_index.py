"""Index files that the Java broker wrote: decoded, found in, and made again from the log byte for byte."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import ENTRY, ENTRY_SIZE, FIRST_ENTRY, IndexLayout, index_keys, key_text, read_header
from ledgermq.message.record import BLANK, check_record, decode_record
from store.index.batch import Entries, records_batch
from store.index.file_set import IndexFiles
from store.index.index_file import IndexFile, QueryRange
from tests.store.index.support import enter
from tests.store.support import GOLDEN, golden

LAYOUT = IndexLayout(slots=100, entries=400)
CLASSIC = [GOLDEN / "store-classic" / name for name in ("clean", "kill9")]
RAFT = [GOLDEN / "store-dledger" / "one" / node for node in ("n0", "n1", "n2")]
RAFT += [GOLDEN / "store-dledger" / "dead" / "n1"]
RAFT += [GOLDEN / "store-dledger" / "healed" / node for node in ("n0", "n2")]
ENTRY_HEADER = 48


def records_of(tree: Path) -> Iterator[tuple[int, bytes]]:
    """`(physical_offset, record)` of each record of the tree's log, classic or DLedger's."""
    table: dict[str, Any] = json.loads((tree / "FILES.json").read_text())["files"]
    for name in sorted(table):
        folder, _, start = name.rpartition("/")
        if folder == "commitlog":
            yield from _classic(golden.read_file(tree, name, table), int(start))
        elif folder.startswith("dledger-") and folder.endswith("/data"):
            yield from _raft(golden.read_file(tree, name, table), int(start))


def _classic(content: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    position = 0
    while any(content[position : position + 8]):
        size = check_record(content, position, len(content), check_crc=False)
        if size == BLANK:
            return
        yield start + position, content[position : position + size]
        position += size


def _raft(content: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    position = 0
    while int.from_bytes(content[position : position + 4], "big") == 1:
        size = int.from_bytes(content[position + 4 : position + 8], "big")
        yield start + position + ENTRY_HEADER, content[position + ENTRY_HEADER : position + size]
        position += size


def index_files_of(tree: Path) -> dict[str, bytes]:
    table = json.loads((tree / "FILES.json").read_text())["files"]
    return {name[6:]: golden.read_file(tree, name, table) for name in sorted(table) if name.startswith("index/")}


@pytest.mark.parametrize("tree", CLASSIC + RAFT, ids=lambda tree: f"{tree.parent.name}-{tree.name}")
@pytest.mark.parametrize("batch_records", [1, 7, 100_000])
def test_files_made_again_from_the_log_equal_javas(tmp_path: Path, tree: Path, batch_records: int) -> None:
    wanted = index_files_of(tree)
    last_offset = max(read_header(content).end_offset for content in wanted.values())
    moments = iter([_moment(name) for name in wanted])
    files = IndexFiles(tmp_path, LAYOUT, clock=lambda: next(moments))
    records = [(offset, memoryview(record)) for offset, record in records_of(tree) if offset <= last_offset]
    for start in range(0, len(records), batch_records):  # behind the last offset Java had not dispatched when it died
        enter(files, records_batch(records[start : start + batch_records]).entries())
    files.close()
    made = {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    assert list(made) == list(wanted)
    for name, content in made.items():
        assert content == wanted[name], name


@pytest.mark.parametrize("tree", CLASSIC + RAFT, ids=lambda tree: f"{tree.parent.name}-{tree.name}")
def test_every_key_of_the_log_is_found_in_javas_files(tmp_path: Path, tree: Path) -> None:
    golden.restore_tree(tree, tmp_path)
    files = IndexFiles(tmp_path / "index", LAYOUT)
    _, last_offset = files.last_update()
    count = 0
    for physical_offset, content in records_of(tree):
        if physical_offset > last_offset:
            continue
        record = decode_record(content, check_crc=False)
        for key in index_keys(record.sys_flag, record.properties):
            text = key_text(record.topic, key.decode())
            window = QueryRange(index_hash(text), record.store_timestamp, record.store_timestamp)
            assert physical_offset in files.find(window, 1000)
            count += 1
    assert count > 200
    files.close()


def test_entries_of_javas_files_decode_and_encode_to_the_same_bytes(tmp_path: Path) -> None:
    for content in index_files_of(CLASSIC[0]).values():
        header = read_header(content)
        for number in range(FIRST_ENTRY, header.entry_count):
            at = LAYOUT.entry_at(number)
            fields = ENTRY.unpack_from(content, at)
            assert ENTRY.pack(*fields) == content[at : at + ENTRY_SIZE]
            assert 0 <= fields[3] < number
        assert not any(content[LAYOUT.entry_at(header.entry_count) :])


@pytest.mark.parametrize("kept", [1, 2, 57, 228])
def test_a_cut_file_equals_one_that_was_never_longer(tmp_path: Path, kept: int) -> None:
    (name, content) = list(index_files_of(CLASSIC[0]).items())[-1]
    (tmp_path / name).write_bytes(content)
    whole = IndexFile(tmp_path / name, LAYOUT)
    entries = whole.entries(FIRST_ENTRY, whole.header.entry_count)
    times = whole.header.begin_timestamp + entries["seconds"].astype("i8") * 1000
    whole.cut_to(kept, int(times[kept - 2]) if kept > FIRST_ENTRY else None)
    whole.close()
    short = IndexFile(tmp_path / "20260101000000000", LAYOUT, (whole.header.begin_timestamp, 0))
    count = kept - FIRST_ENTRY
    short.put(Entries(entries["hash"][:count].astype("i4"), entries["offset"][:count].astype("i8"), times[:count]))
    short.close()
    assert (tmp_path / name).read_bytes() == short.path.read_bytes()


def _moment(name: str) -> int:
    """The clock, ms, that gives a file this name."""
    return round(datetime.strptime(name + "000", "%Y%m%d%H%M%S%f").timestamp() * 1000)
