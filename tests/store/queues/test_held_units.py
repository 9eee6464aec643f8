"""Units that queues hold in memory are read, cut and dropped as others are, and no crash or full disk loses one."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from ledgermq.message.queue_unit import UNIT
from store.directory import boot
from store.directory.checkpoint import StoreCheckpointFile
from store.errors import DiskFailedError, DiskFullError, NoDescriptorError, StoreFormatError
from store.files.disk import write_at
from store.log.flusher import FlushMode
from store.opening import OpenStore
from store.queues import held_units, queue_file
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_ends import read_ends, remove_ends
from store.queues.queue_file import QueueFile
from store.queues.queue_table import QueueTable
from store.recovery import checkpointer
from store.store_config import UNTRUSTED_WALK_BYTES
from tests.descriptors import limited_descriptors
from tests.store.support import bodies_of, eventually, killed_image, open_classic, put_all, queued

UNITS = 10
"""Of each queue file here."""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[QueueTable]:
    table = QueueTable(tmp_path / "consumequeue", UNITS * 20, hold_from=0)
    yield table
    table.close()


async def open_holding(root: Path) -> OpenStore:
    return await open_classic(root, flush_mode=FlushMode.SYNC, queue_file_size=UNITS * 20, hold_from=0)


def fill(queue: ConsumeQueue, count: int) -> None:
    for number in range(queue.max_offset, queue.max_offset + count):
        queue.reserve(number + 1)
        queue.put(number * 100, 100, number, number)


def numbers(queue: ConsumeQueue) -> list[int]:
    return [unit[2] for _, unit in queue.iterate(queue.min_offset, queue.max_offset)]


def folders(root: Path) -> set[str]:
    return {path.parent.name for path in (root / "consumequeue").glob("*/*")}


async def put(opened: OpenStore, *topics: str) -> None:
    """One message for each of the topics, whose body is its number in the queue."""
    for topic in topics:
        queue = opened.store.queues.get(topic, 0)
        await put_all(opened, [queued(queue, b"%d" % queue.next_offset)])


def is_whole(opened: OpenStore, topic: str, count: int) -> bool:
    queue = opened.store.queues.get(topic, 0)
    bodies = bodies_of(opened, queue)
    return bodies == [b"%d" % number for number in range(count)] and queue.next_offset == queue.max_offset == count


async def saved(opened: OpenStore) -> None:
    opened.checkpointer.save()
    await asyncio.to_thread(opened.checkpointer._executor.submit(lambda: None).result)


# -- one queue


def test_held_units_are_found_like_others_and_no_file_is_made(table: QueueTable, tmp_path: Path) -> None:
    queue = table.get("T", 0)
    fill(queue, 4)
    assert numbers(queue) == [0, 1, 2, 3]
    assert [queue.unit(at) for at in (-1, 4)] == [None, None]
    assert queue.bisect(lambda unit: unit[0] < 150) == 2
    assert bytes(queue.units(1, 2)) == UNIT.pack(100, 100, 1) + UNIT.pack(200, 100, 2)
    assert folders(tmp_path) == set()
    assert table.held.count == 4


@pytest.mark.parametrize("is_mapped", [False, True])
def test_room_without_units_makes_no_file_and_stays_given(table: QueueTable, tmp_path: Path, is_mapped: bool) -> None:
    """A checkpoint may come between a message's placing and its dispatch, and the log may refuse it."""
    queue = table.get("T", 0)
    queue.reserve(2)
    assert (list(table.held.queues), table.held.count, queue.held_below(2)) == ([queue], 0, b"")
    if is_mapped:
        queue.reserve(held_units.HELD_MAX + 1)
    else:
        queue.write_held()
        assert (folders(tmp_path), queue.take_unflushed()) == (set(), [])
    assert (table.held.queues, table.held.count) == ({}, 0)
    for number in range(2):
        queue.put(number * 100, 100, number, number)
    assert (numbers(queue), table.held.count) == ([0, 1], 0 if is_mapped else 2)
    queue.keep_before(1)
    assert (numbers(queue), table.held.count) == ([0], 0 if is_mapped else 1)


def test_what_a_reader_has_of_held_units_stays_while_more_are_put(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, 2)
    units = queue.units(0, 2)
    fill(queue, 2)
    assert bytes(units) == UNIT.pack(0, 100, 0) + UNIT.pack(100, 100, 1)


def test_written_units_lie_in_the_file_and_the_next_ones_are_held_again(table: QueueTable, tmp_path: Path) -> None:
    queue = table.get("T", 0)
    fill(queue, 3)
    queue.write_held()
    assert (table.held.count, table.held.queues) == (0, {})
    (path,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    assert path.stat().st_size == UNITS * 20
    assert path.read_bytes().rstrip(b"\0") == b"".join(UNIT.pack(n * 100, 100, n) for n in range(3)).rstrip(b"\0")
    fill(queue, 2)
    assert table.held.count == 2
    assert numbers(queue) == [0, 1, 2, 3, 4]
    assert [file.path for file in queue.take_unflushed()] == [path], "of the units in it"
    assert queue.take_unflushed() == []
    queue.write_held()
    assert [file.path for file in queue.take_unflushed()] == [path]


def test_a_queue_with_many_units_maps_its_file(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.queues.consume_queue.HELD_MAX", 5)
    queue = table.get("T", 0)
    fill(queue, 5)
    assert table.held.count == 5
    fill(queue, 1)
    assert numbers(queue) == [0, 1, 2, 3, 4, 5]
    fill(queue, 6)
    assert table.held.count == 0
    assert numbers(queue) == list(range(12))


def test_held_units_lie_in_one_file(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, UNITS + 1)
    assert table.held.count <= 1
    assert numbers(queue) == list(range(UNITS + 1))


def test_without_room_in_memory_further_queues_map_their_files(
    table: QueueTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_units, "UNITS_MAX", 3)
    for name in ("A", "B", "C"):
        fill(table.get(name, 0), 2)
    assert table.held.count <= 3
    assert "C" in folders(tmp_path)
    assert [numbers(table.get(name, 0)) for name in ("A", "B", "C")] == [[0, 1]] * 3


def test_few_queues_map_their_files(tmp_path: Path) -> None:
    table = QueueTable(tmp_path / "consumequeue", UNITS * 20, hold_from=2)
    for name in ("A", "B", "C"):
        fill(table.get(name, 0), 1)
    assert folders(tmp_path) == {"A", "B"}
    assert list(table.held.queues) == [table.get("C", 0)]
    table.close()


@pytest.mark.parametrize("written", [0, 3, 6])
@pytest.mark.parametrize("end", [0, 2, 3, 5])
def test_a_cut_drops_held_and_written_units(table: QueueTable, written: int, end: int) -> None:
    queue = table.get("T", 0)
    fill(queue, written)
    queue.write_held()
    fill(queue, 6 - written)
    queue.cut_at(end * 100)
    assert (numbers(queue), queue.max_offset, queue.next_offset) == (list(range(end)), end, end)
    queue.put(9000, 100, 99, end)
    assert numbers(queue) == [*range(end), 99]
    queue.write_held()
    queue.close()
    assert numbers(queue) == [*range(end), 99]
    assert table.held.count == 0


def test_a_unit_that_is_put_again_with_another_place_replaces_the_held_one(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, 3)
    queue.put(150, 50, 7, 1)
    assert numbers(queue) == [0, 7, 2]


def test_a_gap_behind_held_units_is_filled_with_blanks(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, 2)
    queue.put(900, 100, 4, 4)
    assert (queue.is_gapped, queue.max_offset, numbers(queue)) == (True, 5, [0, 1, 0, 0, 4])


def test_a_new_life_and_a_restart_drop_held_units(table: QueueTable) -> None:
    queue, other = table.get("T", 0), table.get("T", 1)
    fill(queue, 3)
    queue.put(5000, 100, 42, 0)
    assert numbers(queue) == [42]
    fill(other, 3)
    other.restart(7)
    assert (other.min_offset, other.max_offset, table.held.count) == (7, 7, 0)


def test_held_units_of_a_removed_topic_make_no_file(table: QueueTable, tmp_path: Path) -> None:
    queue = table.get("T", 0)
    fill(queue, 3)
    table.delete_topic("T")
    queue.write_held()
    assert (table.held.count, folders(tmp_path)) == (0, set())


def test_units_are_held_until_they_can_be_written(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, 3)
    with limited_descriptors(), pytest.raises(NoDescriptorError):
        queue.write_held()
    assert (numbers(queue), table.held.count) == ([0, 1, 2], 3)
    queue.write_held()
    assert numbers(queue) == [0, 1, 2]


def test_units_of_a_queue_whose_files_were_not_looked_at_are_held_until_they_can_be_written(table: QueueTable) -> None:
    queue = table.get("T", 0)
    fill(queue, 3)
    queue.write_held()
    queue.load_known(0, 3, queue.folder_changed)
    fill(queue, 2)
    with limited_descriptors(), pytest.raises(NoDescriptorError):
        queue.write_held()
    queue.write_held()
    assert numbers(queue) == [0, 1, 2, 3, 4]


def test_room_that_was_given_in_memory_stays(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = table.get("T", 0)
    queue.reserve(3)
    monkeypatch.setattr(held_units, "UNITS_MAX", 0)
    with limited_descriptors():
        queue.put(0, 100, 0, 0)
        queue.extend(UNIT.pack(100, 100, 1) + UNIT.pack(200, 100, 2))
        with pytest.raises(NoDescriptorError):
            queue.reserve(queue.room_end + 1)
    assert numbers(queue) == [0, 1, 2]


def test_room_ahead_in_memory_ends_with_the_file_and_is_given_only_while_there_is_plenty(
    table: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, late = table.get("T", 0), table.get("U", 0)
    queue.reserve(1)
    assert queue.room_end == 1 + held_units.ROOM_AHEAD
    fill(queue, 4)
    queue.reserve(queue.room_end + 1)
    assert queue.room_end == UNITS
    monkeypatch.setattr(held_units, "UNITS_MAX", 8)
    late.reserve(1)
    assert late.room_end == 1
    fill(late, 2)
    fill(queue, 8)
    assert (numbers(queue), numbers(late)) == (list(range(12)), [0, 1])


def test_room_in_memory_grows_with_what_is_held_so_that_few_messages_ask_for_it(tmp_path: Path) -> None:
    table = QueueTable(tmp_path / "consumequeue", hold_from=0)
    queue = table.get("T", 0)
    asked = 0
    for number in range(held_units.HELD_MAX):
        asked += number + 1 > queue.room_end
        fill(queue, 1)
    assert (asked, table.held.count, queue.room_end) == (6, held_units.HELD_MAX, held_units.HELD_MAX)
    table.close()


def test_room_that_was_given_in_memory_behind_room_on_disk_stays(
    table: QueueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = table.get("T", 0)
    monkeypatch.setattr(queue_file, "CHUNK_BYTES", 5 * 20)
    monkeypatch.setattr(held_units, "UNITS_MAX", 0)
    fill(queue, 1)
    queue.close()  # another queue takes the place of its mapped files
    monkeypatch.undo()
    queue.reserve(6)
    monkeypatch.setattr(held_units, "UNITS_MAX", 0)
    monkeypatch.setattr(queue_file, "allocate", mock.Mock(side_effect=DiskFullError(table.directory, 100)))
    for number in range(queue.max_offset, queue.room_end):
        queue.put(number * 100, 100, number, number)
    assert len(numbers(queue)) == queue.room_end >= 6


def test_room_on_disk_is_no_room_in_memory(table: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = table.get("T", 0)
    monkeypatch.setattr(held_units, "UNITS_MAX", 0)
    fill(queue, 1)
    queue.close()  # another queue takes the place of its mapped files
    monkeypatch.setattr(held_units, "UNITS_MAX", 2)
    fill(queue, 2)
    assert table.held.count == 2
    fill(queue, 5)
    assert (table.held.count, numbers(queue)) == (0, list(range(8)))


def test_a_cut_clears_what_a_full_disk_took_of_held_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = QueueTable(tmp_path / "consumequeue", 20_000, hold_from=0)
    queue = table.get("T", 0)
    fill(queue, 204)
    queue.write_held()
    assert numbers(queue)[-1] == 203, "the file is mapped"
    fill(queue, 3)  # they cross the end of a page

    def write_and_fail(descriptor: int, path: Path, data: memoryview, position: int) -> None:
        write_at(descriptor, path, data, position)
        raise DiskFullError(path, len(data))

    monkeypatch.setattr("store.queues.queue_file.write_at", write_and_fail)
    with pytest.raises(DiskFullError):
        queue.write_held()
    queue.cut_at(204 * 100)
    (path,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    assert not any(path.read_bytes()[204 * 20 :])
    table.close()


# -- a store


@pytest.mark.parametrize("has_ends", [True, False])
async def test_a_kill_loses_no_held_unit_and_the_start_makes_no_file(tmp_path: Path, has_ends: bool) -> None:
    opened = await open_holding(tmp_path / "a")
    await put(opened, "A", "A", "B")
    await saved(opened)
    await put(opened, "A", "C")
    assert folders(tmp_path / "a") == {"A", "B"}
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    if not has_ends:
        remove_ends(copy)
    again = await open_holding(copy)
    assert again.recovery.record_count == 2
    assert all(is_whole(again, topic, count) for topic, count in (("A", 3), ("B", 1), ("C", 1)))
    assert folders(copy) == {"A", "B"}
    await again.close()
    once_more = await open_holding(copy)
    assert once_more.recovery.record_count == 0
    assert all(is_whole(once_more, topic, count) for topic, count in (("A", 3), ("B", 1), ("C", 1)))
    await once_more.close()
    await opened.close()


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is always due, and one queue a turn is written for it."""
    monkeypatch.setattr(checkpointer, "_LOOK_S", 0.001)
    monkeypatch.setattr(checkpointer, "BYTES_BEHIND_MAX", 1)
    monkeypatch.setattr(checkpointer, "_WRITE_S", 0.0)
    monkeypatch.setattr(checkpointer, "_WRITE_PAUSE_S", 0.05)


def is_being_written(opened: OpenStore) -> Callable[[], bool]:
    return lambda: (pending := opened.checkpointer._pending) is not None and 0 < len(pending.holding) < 5


@pytest.mark.usefixtures("slowly")
async def test_what_is_put_while_a_checkpoint_is_written_belongs_to_the_next(tmp_path: Path) -> None:
    opened = await open_holding(tmp_path / "a")
    topics = [f"T{number}" for number in range(6)]
    await put_all(opened, [queued(opened.store.queues.get(topic, 0), b"0") for topic in topics])
    end = opened.store.dispatched_offset
    await eventually(is_being_written(opened))
    await put(opened, *topics)
    progress: list[tuple[int, int]] = []

    def has_first() -> bool:
        found = StoreCheckpointFile(tmp_path / "a").found.progress
        progress[:] = [] if found is None else [(found.dispatched_offset, found.unit_count)]
        return bool(progress)

    await eventually(has_first)
    assert progress == [(end, 6)]
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    remove_ends(copy)
    again = await open_holding(copy)
    assert again.recovery.record_count == 6, "it trusts the checkpoint"
    assert all(is_whole(again, topic, 2) for topic in topics)
    await again.close()
    await opened.close()


@pytest.mark.usefixtures("slowly")
async def test_a_topic_removed_while_a_checkpoint_is_written_stays_removed(tmp_path: Path) -> None:
    opened = await open_holding(tmp_path)
    topics = [f"T{number}" for number in range(6)]
    await put_all(opened, [queued(opened.store.queues.get(topic, 0), b"0") for topic in topics])
    await eventually(is_being_written(opened))
    opened.store.queues.delete_topic("T0")
    await eventually(lambda: folders(tmp_path) == set(topics[1:]))
    await opened.close()
    assert folders(tmp_path) == set(topics[1:])


@pytest.mark.usefixtures("slowly")
async def test_a_stop_while_a_checkpoint_is_written_is_clean(tmp_path: Path) -> None:
    opened = await open_holding(tmp_path)
    topics = [f"T{number}" for number in range(6)]
    await put_all(opened, [queued(opened.store.queues.get(topic, 0), b"0") for topic in topics])
    await eventually(is_being_written(opened))
    await opened.close()
    again = await open_holding(tmp_path)
    assert (again.directory.was_clean, again.recovery.record_count) == (True, 0)
    assert all(is_whole(again, topic, 1) for topic in topics)
    await again.close()


async def test_a_checkpoint_waits_for_room_for_held_units(tmp_path: Path) -> None:
    opened = await open_holding(tmp_path / "a")
    await put(opened, "A", "B")
    full = mock.patch.object(QueueFile, "write", side_effect=DiskFullError(tmp_path, 20))
    with full:
        await saved(opened)
        assert StoreCheckpointFile(tmp_path / "a").found.progress is None
        with pytest.raises(DiskFullError):
            opened.checkpointer.save_cut()
        await put(opened, "A")
        assert is_whole(opened, "A", 2)
    again = await open_holding(killed_image(tmp_path / "a", tmp_path / "b"))
    assert is_whole(again, "A", 2) and is_whole(again, "B", 1)
    await again.close()
    await saved(opened)
    progress = StoreCheckpointFile(tmp_path / "a").found.progress
    assert progress is not None and progress.unit_count == 3
    await opened.close()
    assert not (tmp_path / "a" / "abort").exists()


async def test_units_that_come_into_a_mapped_file_before_the_next_checkpoint_are_synced_for_it(tmp_path: Path) -> None:
    opened = await open_holding(tmp_path)
    await put(opened, "A")
    with mock.patch.object(QueueFile, "write", side_effect=DiskFullError(tmp_path, 20)):
        await saved(opened)
    opened.store.queues.get("A", 0).reserve(UNITS + 1)
    assert opened.store.queues.held.count == 0
    opened.checkpointer._pending = opened.checkpointer._capture()
    assert opened.checkpointer._write_held(1.0)
    assert [file.path.parent.parent.name for file in opened.checkpointer._pending.files] == ["A"]
    assert opened.store.queues.held.take_moved() == [], "the next one has no more of it to sync"
    await opened.close()


async def test_files_of_a_checkpoint_that_found_no_room_are_synced_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_holding(tmp_path)
    opened.store.queues.get("M", 0).reserve(UNITS + 1)  # maps its files
    await put(opened, "M", "A")
    sync = mock.Mock(wraps=opened.checkpointer._queue_sync.sync)
    monkeypatch.setattr(opened.checkpointer._queue_sync, "sync", sync)
    with mock.patch.object(QueueFile, "write", side_effect=DiskFullError(tmp_path, 20)):
        await saved(opened)
    assert not sync.called
    await saved(opened)
    progress = StoreCheckpointFile(tmp_path).found.progress
    assert progress is not None and progress.unit_count == 2
    assert {file.path.parent.parent.name for file in sync.call_args.args[0]} == {"M", "A"}
    await opened.close()


async def test_a_stop_is_not_clean_if_only_an_earlier_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_holding(tmp_path)
    writer = opened.checkpointer
    note_delay = writer._note_delay

    def note_and_end_an_earlier_save(error: Exception | None) -> None:
        note_delay(error)
        note_delay(None)

    await put(opened, "A")
    monkeypatch.setattr(writer, "_note_delay", note_and_end_an_earlier_save)
    with mock.patch.object(QueueFile, "write", side_effect=DiskFullError(tmp_path, 20)):
        with pytest.raises(DiskFullError):
            writer.save_cut()
        await opened.close()
    again = await open_holding(tmp_path)
    assert not again.directory.was_clean
    await again.close()


@pytest.mark.parametrize(
    "error",
    [
        DiskFullError(Path("f"), 20),
        DiskFailedError(Path("f"), "no"),
        StoreFormatError(Path("f"), "is 7 bytes long"),
        PermissionError(),
    ],
)
async def test_a_stop_that_cannot_write_held_units_is_not_clean(tmp_path: Path, error: Exception) -> None:
    opened = await open_holding(tmp_path)
    await put(opened, "A", "A")
    with mock.patch.object(QueueFile, "write", side_effect=error):
        await opened.close()
    again = await open_holding(tmp_path)
    assert not again.directory.was_clean
    assert is_whole(again, "A", 2)
    await again.close()


async def test_where_many_queues_hold_units_a_checkpoint_waits_for_more_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "BYTES_BEHIND_MAX", 1)
    monkeypatch.setattr(checkpointer, "MANY_HOLDING", 2)
    opened = await open_holding(tmp_path)
    await put(opened, "A", "B")
    assert opened.checkpointer._is_due()
    await put(opened, "C")
    assert not opened.checkpointer._is_due()
    monkeypatch.setattr(checkpointer, "HELD_BYTES_BEHIND_MAX", opened.store.dispatched_offset)
    assert opened.checkpointer._is_due()
    monkeypatch.undo()
    monkeypatch.setattr(held_units, "UNITS_MAX", 6)
    assert opened.checkpointer._is_due(), "memory is half full"
    await opened.close()


async def test_a_start_after_a_kill_looks_at_no_file_of_queues_that_are_newer_than_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where thousands of queues are new, their files may be written while the checkpoint is not."""
    topics = [f"T{number}" for number in range(20)]
    opened = await open_holding(tmp_path / "a")
    await put(opened, "A")
    await saved(opened)
    await put(opened, *topics, *topics)
    for topic in topics:
        opened.store.queues.get(topic, 0).write_held()
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    looked_at: list[str] = []
    made = QueueFile.__init__

    def note(file: QueueFile, folder: str, *arguments: int) -> None:
        looked_at.append(folder)
        made(file, folder, *arguments)

    monkeypatch.setattr(QueueFile, "__init__", note)
    again = await open_holding(copy)
    assert looked_at == []
    await put(again, *topics)
    assert all(is_whole(again, topic, 3) for topic in topics)
    await again.close()
    once_more = await open_holding(copy)
    assert all(is_whole(once_more, topic, 3) for topic in topics)
    await once_more.close()
    await opened.close()


async def noted(opened: OpenStore) -> None:
    """A checkpoint as it is written by itself."""
    checkpointer_ = opened.checkpointer
    checkpointer_._count_then_save(0)
    await eventually(lambda: not checkpointer_._is_saving)


async def open_with_many(root: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """A store in which three queues that hold units are many, after a checkpoint."""
    monkeypatch.setattr(checkpointer, "MANY_HOLDING", 2)
    opened = await open_holding(root)
    await put(opened, "A", "A")
    await saved(opened)
    return opened


TOPICS = ("A", "B", "C", "D")


def noted_units(root: Path) -> dict[str, bytes]:
    return {row[0]: row[-1] for ends in read_ends(root) for row in ends.queues if row[-1]}


@pytest.mark.parametrize("is_same_boot", [True, False])
async def test_units_that_many_queues_hold_are_only_noted_and_a_start_after_a_kill_takes_them_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_boot: bool
) -> None:
    opened = await open_with_many(tmp_path / "a", monkeypatch)
    durable = opened.checkpointer.saved_offset
    await put(opened, *TOPICS, *TOPICS)
    await noted(opened)
    await put(opened, "B", "E")
    await noted(opened)
    assert (folders(tmp_path / "a"), opened.checkpointer.saved_offset) == ({"A"}, durable)
    await put(opened, "A")
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    await opened.close()
    if not is_same_boot:
        monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "boot")
        (tmp_path / "boot").write_text("another\n")
    again = await open_holding(copy)
    assert again.recovery.record_count == (1 if is_same_boot else 11)
    assert again.checkpointer.saved_offset == durable
    assert folders(copy) == {"A"}
    counts = {"A": 5, "B": 3, "C": 2, "D": 2, "E": 1}
    assert all(is_whole(again, topic, count) for topic, count in counts.items())
    await put(again, *TOPICS)
    await noted(again)
    once_more = await open_holding(killed_image(copy, tmp_path / "c"))
    assert all(is_whole(once_more, topic, counts[topic] + 1) for topic in TOPICS)
    await once_more.close()
    monkeypatch.setattr(checkpointer, "MANY_HOLDING", len(counts))
    await again.close()
    clean = await open_holding(copy)
    assert (clean.directory.was_clean, clean.recovery.record_count) == (True, 0)
    assert folders(copy) == set(counts)
    assert all(is_whole(clean, topic, counts[topic] + 1) for topic in TOPICS)
    await clean.close()


@pytest.mark.parametrize("is_writing", [False, True])
async def test_a_stop_only_notes_units_that_many_queues_hold_and_the_next_start_takes_them_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writing: bool
) -> None:
    opened = await open_with_many(tmp_path / "a", monkeypatch)
    durable, last = opened.checkpointer.saved_offset, opened.checkpointer._last
    await asyncio.sleep(0.005)
    await put(opened, *TOPICS)
    if is_writing:  # for a checkpoint, but one queue has been written only
        opened.checkpointer._pending = opened.checkpointer._capture()
        opened.checkpointer._write_held(0.0)
        assert len(folders(tmp_path / "a")) == 2
    written = folders(tmp_path / "a")
    await opened.close()
    assert folders(tmp_path / "a") == written
    found = StoreCheckpointFile(tmp_path / "a").found
    assert (tmp_path / "a" / "abort").exists(), "Java's broker makes the missing units again, too"
    assert last is not None and found.queues_timestamp == last.queues_timestamp < found.log_timestamp, "from there on"
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    again = await open_holding(tmp_path / "a")
    assert (again.recovery.record_count, again.checkpointer.saved_offset) == (0, durable)
    assert all(is_whole(again, topic, 3 if topic == "A" else 1) for topic in TOPICS)
    await again.close()
    monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    rebooted = await open_holding(copy)
    assert rebooted.recovery.record_count == len(TOPICS)
    assert all(is_whole(rebooted, topic, 3 if topic == "A" else 1) for topic in TOPICS)
    await rebooted.close()


async def test_a_stop_writes_all_units_where_the_log_may_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "may_be_cut", lambda _: True)
    opened = await open_with_many(tmp_path, monkeypatch)
    await put(opened, *TOPICS)
    await opened.close()
    assert folders(tmp_path) == set(TOPICS)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_stop_where_the_log_may_be_cut_leaves_units_that_it_has_no_time_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """Unless the checkpoint before counts those of a topic that is removed: a start would read the whole log."""
    monkeypatch.setattr(checkpointer, "may_be_cut", lambda _: True)
    monkeypatch.setattr(checkpointer, "_LAST_WRITE_S", 0.0)
    monkeypatch.setattr(checkpointer, "_WRITE_S", 0.0)
    opened = await open_with_many(tmp_path, monkeypatch)
    durable = opened.checkpointer.saved_offset
    await put(opened, *TOPICS)
    if is_removed:
        opened.store.queues.delete_topic("A")
    await opened.close()
    assert len(folders(tmp_path)) == (3 if is_removed else 2)
    again = await open_holding(tmp_path)
    assert again.directory.was_clean is is_removed
    if not is_removed:
        assert (again.recovery.record_count, again.recovery.durable_offset) == (len(TOPICS), durable)
        assert all(is_whole(again, topic, 3 if topic == "A" else 1) for topic in TOPICS)
    await again.close()


async def test_a_stop_waits_for_the_checkpoint_that_is_being_saved_and_only_notes_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path, monkeypatch)
    checkpointer_, go_on = opened.checkpointer, threading.Event()
    checkpointer_._executor.submit(go_on.wait)
    checkpointer_.save()
    await put(opened, *TOPICS)
    close = checkpointer_.close

    async def close_while_it_saves(log_end: int) -> bool:
        asyncio.get_running_loop().call_soon(go_on.set)
        return await close(log_end)

    monkeypatch.setattr(checkpointer_, "close", close_while_it_saves)
    await opened.close()
    assert folders(tmp_path) == {"A"}
    again = await open_holding(tmp_path)
    assert all(is_whole(again, topic, 3 if topic == "A" else 1) for topic in TOPICS)
    await again.close()


async def test_a_stop_that_breaks_off_the_first_checkpoint_without_a_removed_topic_writes_all_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before counts the units of the topic."""
    opened = await open_with_many(tmp_path, monkeypatch)
    await put(opened, *TOPICS, "E")
    opened.store.queues.delete_topic("A")
    opened.checkpointer._pending = opened.checkpointer._capture()
    opened.checkpointer._write_held(0.0)
    await opened.close()
    assert folders(tmp_path) == {"B", "C", "D", "E"}
    again = await open_holding(tmp_path)
    assert again.directory.was_clean
    assert all(is_whole(again, topic, 1) for topic in folders(tmp_path))
    await again.close()


async def test_noted_units_are_written_before_the_log_is_too_long_and_when_memory_or_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path, monkeypatch)
    await put(opened, *TOPICS)
    assert opened.checkpointer._is_note_enough()
    for name, value in [("WRITTEN_BYTES_BEHIND_MAX", 1), ("WRITTEN_INTERVALS", -1), ("MANY_HOLDING", 4)]:
        with monkeypatch.context() as patch:
            patch.setattr(checkpointer, name, value)
            assert not opened.checkpointer._is_note_enough()
    with monkeypatch.context() as patch:
        patch.setattr(held_units, "UNITS_MAX", 8)
        assert not opened.checkpointer._is_note_enough()
    with monkeypatch.context() as patch:
        patch.setattr(opened.store, "disk_full", "there is no room")
        assert not opened.checkpointer._is_note_enough()
    await noted(opened)
    assert set(noted_units(tmp_path)) == set(TOPICS)
    await saved(opened)
    assert folders(tmp_path) == set(TOPICS)
    assert noted_units(tmp_path) == {}, "a start would hold them again"
    opened.store.queues.delete_topic("A")
    await put(opened, *TOPICS)
    assert not opened.checkpointer._is_note_enough(), "the checkpoint counts the units of the removed topic"
    await opened.close()


async def test_units_that_came_into_a_mapped_file_before_they_were_noted_are_synced_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path, monkeypatch)
    await put(opened, *TOPICS)
    synced: list[str] = []
    sync = QueueFile.sync

    def note(file: QueueFile) -> None:
        synced.append(file.path.parent.parent.name)
        sync(file)

    monkeypatch.setattr(QueueFile, "sync", note)
    captured = opened.checkpointer._capture(only_notes=True)
    opened.store.queues.get("B", 0).reserve(UNITS + 1)  # moves what it holds
    opened.checkpointer._pending = captured
    opened.checkpointer._write_then_save()
    await eventually(lambda: not opened.checkpointer._is_saving)
    assert synced == ["B"]
    await opened.close()


async def test_noted_units_that_came_into_a_mapped_file_for_a_message_that_was_refused_are_synced_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path, monkeypatch)
    await put(opened, *TOPICS)
    await noted(opened)
    opened.store.queues.get("B", 0).reserve(held_units.HELD_MAX + 1)
    sync = mock.Mock(wraps=opened.checkpointer._queue_sync.sync)
    monkeypatch.setattr(opened.checkpointer._queue_sync, "sync", sync)
    await saved(opened)
    assert "B" in {file.path.parent.parent.name for file in sync.call_args.args[0]}
    await opened.close()


async def test_noted_units_of_a_queue_that_lost_units_since_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path / "a", monkeypatch)
    await put(opened, *TOPICS)
    await noted(opened)
    opened.store.queues.delete_topic("B", removed_offset=opened.store.log.max_offset)
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    await opened.close()
    again = await open_holding(copy)
    assert all(is_whole(again, topic, 3 if topic == "A" else 1) for topic in TOPICS), "by the log, all of it"
    await again.close()


async def test_a_lost_checkpoint_hides_no_unit_that_was_only_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sizes are a millionth of what they are in a broker."""
    for name in ("WRITTEN_BYTES_BEHIND_MAX", "HELD_BYTES_BEHIND_MAX"):
        monkeypatch.setattr(checkpointer, name, getattr(checkpointer, name) >> 20)
    opened = await open_with_many(tmp_path / "a", monkeypatch)
    opened.store.queues.get("M", 0).reserve(UNITS + 1)  # maps its files
    await put(opened, "F", "M", *TOPICS)
    while opened.checkpointer._is_note_enough():
        await noted(opened)
        await put(opened, "M", *TOPICS)
    assert folders(tmp_path / "a") == {"A", "M"}
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    await opened.close()
    (copy / "checkpoint").unlink()
    again = await open_classic(
        copy, queue_file_size=UNITS * 20, hold_from=0, untrusted_walk_bytes=UNTRUSTED_WALK_BYTES >> 20
    )
    assert is_whole(again, "F", 1)
    assert is_whole(again, "A", again.store.queues.get("M", 0).max_offset + 2)
    await again.close()


async def test_noted_units_that_are_not_believed_are_held_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_with_many(tmp_path / "a", monkeypatch)
    await put(opened, *TOPICS)
    await noted(opened)
    copy = killed_image(tmp_path / "a", tmp_path / "b")
    await opened.close()
    os.utime(copy / "consumequeue" / "A" / "0", ns=(0, 0))  # as in a copy of the store
    again = await open_holding(copy)
    assert again.store.queues.held.count == len(TOPICS)
    again.store.queues.delete_topic("B")
    await saved(again)
    assert folders(copy) == set(TOPICS) - {"B"}, "no file of the removed topic is written"
    await again.close()
