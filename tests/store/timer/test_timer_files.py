"""The timer's files: Java's are read and continued byte for byte; what a crash took is found, mended, or known lost."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.errors import DiskFailedError, DiskReadError, StoreFormatError
from store.files.mapped_file import MappedFile
from store.timer.checkpoint import TimerCheck, read_check, write_check
from store.timer.metrics import TopicCounts
from store.timer.placing import TimerIndexConfig
from store.timer.timer_index import TimerIndex
from store.timer.timer_log import NO_POSITION, UNIT_SIZE, TimerLog, TimerUnit
from store.timer.timer_message import TimerMessage
from store.timer.wheel import Slot, TimerWheel
from tests.store.support import GOLDEN, golden

TREES = GOLDEN / "store-classic"
SECOND = 1000
NOW = 1_795_252_344_000
SLOTS = 4000
TIMER_FILES = ("timerwheel", "timerlog/00000000000000000000", "config/timercheck", "config/timermetrics")


def config(root: Path, **changes: Any) -> TimerIndexConfig:
    values: dict[str, Any] = {"root": root, "log_file_size_bytes": 65_536, "slot_count": SLOTS, **changes}
    return TimerIndexConfig(**values)


def opened(root: Path, **changes: Any) -> TimerIndex:
    index = TimerIndex(config(root, **changes), lambda: NOW)
    index.load()
    return index


def message(number: int, out_ms: int, *, store_ms: int = NOW, deletes: str = "", topic: str = "T") -> TimerMessage:
    return TimerMessage(1000 + number, 100, number, store_ms, out_ms, out_ms, topic, f"{topic}+k{number}", deletes)


def origins(index: TimerIndex, slot_ms: int) -> list[int]:
    return [unit.physical_offset for unit in index.units_at(slot_ms)]


# ---- Java's own


@pytest.fixture(params=["clean", "kill9"])
def java_root(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    golden.restore_tree(TREES / request.param, tmp_path)
    yield tmp_path


def test_javas_files_are_read_and_stay_as_they_are(java_root: Path) -> None:
    before = {name: (java_root / name).read_bytes() for name in TIMER_FILES}
    index = opened(java_root, slot_count=2 * 7 * 86_400)
    assert (index.queue_offset, index.metrics.counts) == (8, {"GoldenTimer": 4})
    (unit,) = index.units_at(1_795_255_944_000)
    assert (unit.physical_offset, unit.record_size, unit.delay_ms) == (286_984, 439, 3_600_000)
    index.close()
    assert {name: (java_root / name).read_bytes() for name in TIMER_FILES} == before


def test_the_units_and_slots_that_java_wrote_are_written_the_same_here(java_root: Path, tmp_path: Path) -> None:
    theirs = (java_root / "timerlog" / "0".zfill(20)).read_bytes()
    units = [struct.unpack_from(">iqiqiqiiq", theirs, at) for at in range(0, 8 * UNIT_SIZE, UNIT_SIZE)]
    ours = tmp_path / "ours"
    ours.mkdir()
    index = opened(ours, slot_count=2 * 7 * 86_400)
    for number, (_, _, _, write_ms, delay_ms, physical_offset, size, _, _) in enumerate(units):
        out_ms = write_ms + delay_ms
        index.enqueue(
            TimerMessage(physical_offset, size, number, write_ms + 469, out_ms, out_ms, "GoldenTimer", "", "")
        )
    index.close()
    for name in TIMER_FILES[:2]:
        assert (ours / name).read_bytes() == (java_root / name).read_bytes()


# ---- taking and giving


def test_a_slot_gives_its_timers_back_newest_first(tmp_path: Path) -> None:
    index = opened(tmp_path)
    for number in range(3):
        index.enqueue(message(number, NOW + 5 * SECOND))
    index.enqueue(message(3, NOW + 6 * SECOND))
    assert origins(index, NOW + 5 * SECOND) == [1002, 1001, 1000]
    assert index.count_at(NOW + 5 * SECOND) == 3
    assert origins(index, NOW + 7 * SECOND) == []
    index.close()


def test_a_timer_of_a_slot_that_was_delivered_is_not_stored(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.advance(NOW + 5 * SECOND, 1.0)
    assert index.enqueue(message(1, NOW + 4 * SECOND)) is None
    assert index.enqueue(message(2, NOW + 5 * SECOND)) is not None
    index.close()


@pytest.mark.parametrize(
    ("delay_s", "slot_s", "is_roll"),
    [(1939, 1939, False), (1940, 970, True), (2500, 970, True), (2585, 970, True), (2586, 1940, True)],
)
def test_a_delay_beyond_the_window_is_rolled_on_from_within_it(
    tmp_path: Path, delay_s: int, slot_s: int, is_roll: bool
) -> None:
    index = opened(tmp_path, roll_window_slots=0)  # the longest: 2000 slots less 60
    slot_ms, magic, write_ms = index.slot_of(message(1, NOW + delay_s * SECOND, store_ms=NOW + 999))
    assert (slot_ms, magic, write_ms) == (NOW + slot_s * SECOND, 3 if is_roll else 1, NOW)


def test_counts_follow_timers_deletions_and_deliveries(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.advance(NOW, 1.0)
    due = NOW + 5 * SECOND
    for number in range(3):
        index.enqueue(message(number, due))
    index.enqueue(message(3, due, deletes="T+k1"))
    assert (index.metrics.counts, index.count_at(due)) == ({"T": 2}, 2)
    assert index.advance(due + SECOND, 1.0)
    assert index.metrics.counts == {"T": 0}
    index.close()


def test_a_slot_whose_units_cannot_be_read_does_not_hold_up_the_read_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path)
    index.advance(NOW, 1.0)
    index.enqueue(message(0, NOW + 5 * SECOND))

    def fails(_log: TimerLog, position: int) -> None:
        raise DiskReadError(tmp_path, position, "[Errno 5] Input/output error")

    monkeypatch.setattr(TimerLog, "unit", fails)
    assert index.advance(NOW + 10 * SECOND, 1.0)
    assert index.read_ms == NOW + 10 * SECOND
    monkeypatch.undo()
    index.close()


def test_a_restart_that_ends_half_way_leaves_no_checkpoint_that_is_ahead_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path)
    index.advance(NOW, 1.0)
    index.enqueue(message(0, NOW + 5 * SECOND))
    index.queue_offset = 1
    index.prepare_flush()()

    def dies(_path: Path, *, missing_ok: bool = False) -> None:
        raise OSError("the process ends here")

    monkeypatch.setattr(Path, "unlink", dies)
    with pytest.raises(DiskFailedError):
        index.restart(0, NOW)
    monkeypatch.undo()
    check = read_check(tmp_path / "config/timercheck")
    assert (check.queue_offset, check.log_position, check.read_ms) == (0, 0, NOW)


def test_a_slot_that_was_begun_is_chained_anew_from_what_is_left(tmp_path: Path) -> None:
    index = opened(tmp_path)
    due = NOW + 5 * SECOND
    timers = [message(number, due) for number in range(4)]
    for timer in timers:
        index.enqueue(timer)
    index.rechain(due, [(timer, 1, NOW) for timer in timers[2:]])
    assert (origins(index, due), index.count_at(due), index.metrics.counts) == ([1003, 1002], 2, {"T": 2})
    index.close()


# ---- the timer log


def test_units_go_on_in_the_next_file_behind_a_blank(tmp_path: Path) -> None:
    size = 4 * UNIT_SIZE + 20  # a blank needs 16 bytes
    log = TimerLog(tmp_path / "timerlog", size)
    unit = TimerUnit(NO_POSITION, 1, NOW, 5000, 1, 2, 3)
    positions = [log.append(unit) for _ in range(6)]
    assert positions == [0, 52, 104, 156, size, size + 52]
    assert [position for position, _ in log.units_from(0)] == positions
    log.queue.files[0].sync()
    log.close()
    assert (tmp_path / "timerlog" / "0".zfill(20)).read_bytes()[208:] == struct.pack(">iqI", 20, 0, 0xCBD43194) + bytes(
        4
    )


def test_files_whose_records_the_log_has_dropped_go(tmp_path: Path) -> None:
    log = TimerLog(tmp_path / "timerlog", 2 * UNIT_SIZE + 16)
    for number in range(6):
        log.append(TimerUnit(NO_POSITION, 1, NOW, 5000, number * 100, 2, 3))
    assert log.delete_before(100) == 0
    assert log.delete_before(101) == 1
    assert log.delete_before(10_000) == 1, "the last file stays"
    assert log.min_position == 2 * (2 * UNIT_SIZE + 16)
    log.close()


# ---- after a crash


def fill(index: TimerIndex, count: int) -> None:
    for number in range(count):
        index.enqueue(message(number, NOW + (5 + number % 3) * SECOND))
        index.queue_offset = number + 1


def slots(index: TimerIndex) -> list[list[int]]:
    return [origins(index, NOW + (5 + number) * SECOND) for number in range(3)]


def test_units_behind_the_last_flush_are_found_and_linked(tmp_path: Path) -> None:
    index = opened(tmp_path)
    fill(index, 5)
    index.prepare_flush()()
    wheel = (tmp_path / "timerwheel").read_bytes()
    fill(index, 9)
    wanted = slots(index)
    index.prepare_flush()  # noted, and the process is gone before any of it is written
    (tmp_path / "timerwheel").write_bytes(wheel)
    again = opened(tmp_path)
    again.resume_at(lambda physical_offset: physical_offset - 1000)
    assert (slots(again), again.queue_offset) == (wanted, 9)
    again.close()


@pytest.mark.parametrize("left", [0, 1, 5, 6, 7, 9, 12])
def test_units_of_records_that_the_queue_lacks_are_taken_out(tmp_path: Path, left: int) -> None:
    five_a_file = {"log_file_size_bytes": 5 * UNIT_SIZE + 16}
    index = opened(tmp_path, **five_a_file)
    fill(index, 12)
    wanted = slots(index)
    index.close()
    index = opened(tmp_path, **five_a_file)
    index.cut(1000 + left)
    index.resume_at(lambda physical_offset: physical_offset - 1000 if physical_offset < 1000 + left else None)
    kept = [[origin for origin in slot if origin < 1000 + left] for slot in wanted]
    assert (slots(index), index.metrics.total) == (kept, left)
    assert [index.count_at(NOW + (5 + number) * SECOND) for number in range(3)] == [len(slot) for slot in kept]
    for number in range(left, 12):  # the same records come again
        index.enqueue(message(number, NOW + (5 + number % 3) * SECOND))
    index.close()
    index = opened(tmp_path, **five_a_file)
    assert (slots(index), index.metrics.total) == (wanted, 12)
    index.close()


def test_after_a_failed_sync_no_checkpoint_counts_its_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(tmp_path)
    fill(index, 5)
    index.prepare_flush()()
    fill(index, 9)

    def fails(_: MappedFile) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "sync", fails)
        with pytest.raises(DiskFailedError, match="Input/output error"):
            index.prepare_flush()()
    index.read_ms = NOW + SECOND  # time goes on
    index.close()
    assert read_check(tmp_path / "config/timercheck").log_position == 5 * UNIT_SIZE


def test_a_file_that_cannot_be_opened_leaves_the_flush_to_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path)
    fill(index, 5)

    def refused(file: MappedFile) -> None:
        raise DiskFailedError(file.path, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "pin", refused)
        with pytest.raises(DiskFailedError, match="too many open files"):
            index.prepare_flush()
    synced: list[str] = []
    sync = MappedFile.sync

    def noting(file: MappedFile) -> None:
        synced.append(file.path.name)
        sync(file)

    monkeypatch.setattr(MappedFile, "sync", noting)
    index.prepare_flush()()
    assert len(synced) == 1
    assert read_check(tmp_path / "config/timercheck").log_position == 5 * UNIT_SIZE
    index.close()


def test_slots_whose_last_units_are_lost_keep_the_others(tmp_path: Path) -> None:
    index = opened(tmp_path)
    fill(index, 9)
    index.close()
    log = tmp_path / "timerlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[7 * UNIT_SIZE :] = bytes(len(data) - 7 * UNIT_SIZE)
    log.write_bytes(data)
    again = opened(tmp_path)
    again.resume_at(lambda physical_offset: physical_offset - 1000)
    assert slots(again) == [[1006, 1003, 1000], [1004, 1001], [1005, 1002]]
    assert again.queue_offset == 7, "the lost ones are taken again from the timer topic"
    again.close()


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog"])
def test_a_lost_file_is_made_again_from_the_other_or_from_the_topic(tmp_path: Path, lost: str) -> None:
    index = opened(tmp_path)
    fill(index, 9)
    wanted = slots(index)
    index.close()
    golden.apply_ops(tmp_path, [{"op": "delete", "path": lost}])
    again = opened(tmp_path)
    again.resume_at(lambda physical_offset: physical_offset - 1000)
    if lost == "timerlog":
        assert (slots(again), again.queue_offset) == ([[], [], []], 0)
        fill(again, 9)
    assert (slots(again), again.queue_offset) == (wanted, 9)
    again.close()


# ---- the small files


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    assert read_check(path) == TimerCheck()
    check = TimerCheck(1, 2, 3, 4, 5, 6, 7)
    write_check(path, check)
    assert (read_check(path), path.stat().st_size) == (check, 4096)


def test_the_short_checkpoint_of_older_releases_is_read(tmp_path: Path) -> None:
    (tmp_path / "timercheck").write_bytes(struct.pack(">4q", 1, 2, 3, 4))
    assert read_check(tmp_path / "timercheck") == TimerCheck(1, 2, 3, 4)


def test_a_checkpoint_whose_first_write_was_cut_off_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "timercheck").touch()
    assert read_check(tmp_path / "timercheck") == TimerCheck()


@pytest.mark.parametrize("data", [bytes(1), bytes(31), struct.pack(">4q", -1, 2, 3, 4)])
def test_a_checkpoint_that_is_none_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "timercheck").write_bytes(data)
    with pytest.raises(StoreFormatError, match="timercheck"):
        read_check(tmp_path / "timercheck")


def test_a_wheel_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(bytes(100))
    with pytest.raises(StoreFormatError, match="is 100 bytes long, must be 128000"):
        TimerWheel(tmp_path / "timerwheel", SECOND, SLOTS)


def test_a_slot_is_empty_for_every_time_but_its_own(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", SECOND, SLOTS)
    wheel.put(NOW, Slot(0, 52, 2))
    assert wheel.get(NOW + 999) == Slot(0, 52, 2)
    assert wheel.get(NOW + SLOTS * SECOND) is None
    assert wheel.slots_beyond(52) == {NOW: Slot(0, 52, 2)}
    assert wheel.slots_beyond(53) == {}
    wheel.close()


def test_counts_keep_javas_shape_and_broken_ones_are_counted_anew(tmp_path: Path) -> None:
    counts = TopicCounts("timingCount", lambda: 7)
    counts.add("T", 2)
    counts.add_by_hash(84, -1)  # Java's hash of "T"
    counts.add_by_hash(85, -1)
    assert counts.encode() == (
        b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":7},"timingCount":{"T":{"count":1,"timeStamp":7}}}'
    )
    path = tmp_path / "timermetrics"
    path.write_bytes(counts.encode())
    again = TopicCounts("timingCount", lambda: 8)
    again.load(path)
    assert (again.encode(), again.total) == (counts.encode(), 1)
    path.write_bytes(b'{"timingCount": 3}')
    broken = TopicCounts("timingCount", lambda: 8)
    broken.load(path)
    assert broken.counts == {}
