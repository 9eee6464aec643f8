"""Compaction of one queue against a dictionary; what is read, what a restart finds, what RocketMQ's layout asks for."""

import struct
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.compaction.config import CompactionConfig
from store.compaction.copier import LastRecords
from store.compaction.unit import UNIT_SIZE, unpack_unit
from store.errors import DiskReadError, StoreFormatError
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import ReplicatedLog
from tests.store.compaction.support import (
    SMALL,
    Message,
    Source,
    compact_all,
    contents,
    last_of_each_key,
    open_log,
    place_in,
)
from tests.store.support import fast_directory

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "d e", "kéy"]), st.sampled_from([b"", b"x", b"y" * 40, b"z" * 300])
    ),
    max_size=60,
)


def check(source: Source, messages: list[Message], found: list[tuple[int, str, bytes]], compacted: int) -> None:
    """Every found message was sent; the last of each key is there; up to `compacted` (exclusive) no older one is."""
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    for offset, key, body in found:
        assert (key, body) == messages[offset]
    offsets = {offset for offset, _, _ in found}
    assert set(last_of_each_key(messages, len(messages)).values()) <= offsets
    of_compacted = {offset for offset in offsets if offset < compacted}
    assert of_compacted <= set(last_of_each_key(messages, compacted).values())


@settings(max_examples=120, deadline=None)
@given(batches=st.lists(MESSAGES, min_size=1, max_size=4), key_bytes=st.sampled_from([1, 500, 1 << 20]))
def test_compaction_keeps_what_a_dictionary_keeps(batches: list[list[Message]], key_bytes: int) -> None:
    config = CompactionConfig(
        log_file_size_bytes=1, unit_file_size_bytes=46 * 8, thread_count=1, offset_map_bytes=key_bytes
    )
    with fast_directory() as root:
        source, opened, position = Source(), open_log(root, config), -1
        for batch in batches:
            for key, body in batch:
                source.send(key, body)
            source.copy_to(opened)
            position = compact_all(opened, position)
            found = contents(opened)
            check(source, source.messages, found, position + 1)
            assert source.read_all(opened) == found
            opened.close()
            opened = open_log(root, config)
            assert contents(opened) == found
            assert opened.end_offset == max((offset + 1 for offset, _, _ in found), default=0)
        opened.close()


def test_an_unbounded_map_leaves_one_message_of_each_key_in_the_full_segments(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    for number in range(70):
        source.send(f"k{number % 5}", b"%d" % number)
    source.copy_to(opened)
    position = compact_all(opened)
    compacted = [offset for offset, _, _ in contents(opened) if offset <= position]
    assert compacted == [position - 4, position - 3, position - 2, position - 1, position]


def test_a_message_without_a_body_removes_its_key(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    source.send("gone", b"old")
    source.send("gone", b"")
    for number in range(20):
        source.send("k", b"%d" % number)
    source.copy_to(opened)
    assert (0, "gone", b"old") in contents(opened)
    compact_all(opened)
    assert "gone" not in {key for _, key, _ in contents(opened)}


def test_messages_without_a_key_are_not_kept(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    source.send(None, b"x")
    source.send("  ", b"y")
    source.send("k", b"z")
    source.copy_to(opened)
    assert contents(opened) == [(2, "k", b"z")]
    assert opened.end_offset == 3


def test_a_pull_goes_over_gaps_and_asks_the_queue_behind_the_end(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    assert opened.read(source, 0, 32, 1000, None) is None  # type: ignore[arg-type]
    for number in range(40):
        source.send("k" if number % 10 else f"k{number}", b"%d" % number, tags=f"t{number % 2}")
    source.copy_to(opened)
    compact_all(opened)
    result = opened.read(source, 1, 2, 100_000, None)  # type: ignore[arg-type]
    assert result is not None
    assert [struct.unpack_from(">q", record, 20)[0] for record in result.records] == [10, 20]
    assert (result.next_offset, result.min_offset, result.max_offset) == (30, 0, 40)
    assert opened.read(source, 40, 2, 1000, None) is None  # type: ignore[arg-type]
    assert opened.read(source, -1, 2, 1000, None) is None  # type: ignore[arg-type]
    filtered = opened.read(source, 0, 32, 100_000, lambda _: False)  # type: ignore[arg-type]
    assert filtered is not None
    assert (filtered.status.name, filtered.next_offset) == ("NO_MATCHED_MESSAGE", 40)


def test_readers_keep_the_bytes_of_segments_that_are_replaced(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    for number in range(30):
        source.send("k", b"%d" % number)
    source.copy_to(opened)
    result = opened.read(source, 0, 32, 100_000, None)  # type: ignore[arg-type]
    assert result is not None
    before = [bytes(record) for record in result.records]
    compact_all(opened)
    opened.close()
    assert [bytes(record) for record in result.records] == before


def test_files_lie_as_rocketmq_has_them(tmp_path: Path) -> None:
    """Same names on both sides; a full log file ends in a blank, a full file of units in one with offset -1."""
    source, opened = Source(), open_log(tmp_path)
    for number in range(20):
        source.send(f"k{number}", b"x")
    source.copy_to(opened)
    opened.close()
    place = place_in(tmp_path)
    names = sorted(path.name for path in place.log.iterdir())
    assert names == [f"{number * 1840:020d}" for number in range(3)]
    assert sorted(path.name for path in place.units.iterdir()) == names
    units = memoryview((place.units / names[1]).read_bytes())
    assert len(units) == 8 * UNIT_SIZE
    found = [unpack_unit(units, number * UNIT_SIZE) for number in range(8)]
    assert [unit and unit[4] for unit in found] == [7, 8, 9, 10, 11, 12, 13, None]
    assert units[7 * UNIT_SIZE :][:12] == struct.pack(">qi", -1, 0)
    log = (place.log / names[1]).read_bytes()
    assert len(log) == 1840
    last = found[6]
    assert last is not None
    end = last[0] - 1840 + last[1]
    assert struct.unpack_from(">ii", log, end) == (1840 - end, -875286124)
    assert struct.unpack_from(">q", log, 28) == (1840,)  # the record's physical offset is the one in here


@pytest.mark.parametrize(
    ("log_file", "unit_file", "expected"),
    [(100 << 20, 10 << 20, 104_857_460), (1, 460, 2300), (46 * 60, 46 * 10, 46 * 70), (46 * 64, 46 * 10, 46 * 60)],
)
def test_files_have_the_lengths_that_rocketmq_gives_them(log_file: int, unit_file: int, expected: int) -> None:
    config = CompactionConfig(log_file_size_bytes=log_file, unit_file_size_bytes=unit_file)
    assert config.log_file_bytes == expected


# ---- after a crash


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["units of the last", "all units", "nothing"])
def test_units_are_made_again_from_the_records(tmp_path: Path, lost: str, clean: bool) -> None:
    source, opened = Source(), open_log(tmp_path)
    for number in range(20):
        source.send(f"k{number}", b"x", tags="t")
    source.copy_to(opened)
    before = contents(opened)
    opened.close()
    paths = sorted(place_in(tmp_path).units.iterdir())
    whole = [path.read_bytes() for path in paths]
    for path in paths[-1:] if lost == "units of the last" else paths if lost == "all units" else []:
        path.unlink()
    opened = open_log(tmp_path, clean=clean)
    assert contents(opened) == before
    assert [path.read_bytes() for path in paths] == whole
    opened.close()


@pytest.mark.parametrize("at", [0, 5, 100, 200, 400, 600])
def test_what_was_torn_is_cut_and_copied_again(tmp_path: Path, at: int) -> None:
    source, opened = Source(), open_log(tmp_path)
    for number in range(18):
        source.send(f"k{number}", b"x" * 20)
    source.copy_to(opened)
    before = contents(opened)
    opened.close()
    path = max(place_in(tmp_path).log.iterdir())
    content = bytearray(path.read_bytes())
    content[at:] = bytes(len(content) - at)
    path.write_bytes(content)
    opened = open_log(tmp_path, clean=False)
    assert contents(opened) == before[: len(contents(opened))]
    source.copy_to(opened)
    assert contents(opened) == before
    opened.close()


def test_files_of_another_length_are_refused_by_name(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    source.send("k", b"x")
    source.copy_to(opened)
    opened.close()
    with pytest.raises(StoreFormatError, match=r"0{20}: is 1840 bytes long, must be 2300"):
        open_log(tmp_path, CompactionConfig(log_file_size_bytes=1, unit_file_size_bytes=460))
    (place_in(tmp_path).log / "notes.txt").write_text("mine")
    with pytest.raises(StoreFormatError, match=r"notes\.txt"):
        open_log(tmp_path, SMALL)


def test_a_record_that_does_not_follow_the_one_before_is_no_part_of_the_log(tmp_path: Path) -> None:
    source, opened = Source(), open_log(tmp_path)
    for number in range(3):
        source.send(f"k{number}", b"x")
    source.copy_to(opened)
    before = contents(opened)
    opened.close()
    path = place_in(tmp_path).log / f"{0:020d}"
    content = bytearray(path.read_bytes())
    size = len(source.records[0])
    content[3 * size : 4 * size] = content[:size]  # an earlier one again, as of this place
    struct.pack_into(">q", content, 3 * size + 28, 3 * size)
    path.write_bytes(content)
    opened = open_log(tmp_path, clean=False)
    assert contents(opened) == before
    opened.close()
    assert path.read_bytes()[3 * size :].strip(b"\0") == b""


def test_a_close_keeps_what_can_be_read_beside_a_damaged_record(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    for number in range(3):
        source.send("k", b"%d" % number)
    read = source.read

    def damaged(physical_offset: int, size: int) -> memoryview:
        if physical_offset == 1:
            raise DiskReadError(Path("data"), 1, "damaged")
        return read(physical_offset, size)

    monkeypatch.setattr(source, "read", damaged)
    last = LastRecords(cast(ReplicatedLog, source))
    last.keep(cast(ConsumeQueue, source), 0)
    assert sorted(last._records) == [0, 2]
