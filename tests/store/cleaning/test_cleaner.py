"""A store that is cleaned: log, queues and followers, with the clock, the hour and the disk given by the test."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledgermq.remoting.refusal import Cause, Refusal
from store.cleaning.cleaner import Cleaner
from store.cleaning.config import CleaningConfig
from store.cleaning.disk_space import DiskSpace, StoreSpace
from store.errors import DiskFailedError
from store.log.flusher import FlushMode
from store.opening import OpenStore
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_reader import GetStatus
from tests.limits import WAIT_S
from tests.store.support import Outcomes, bodies_of, eventually, open_classic, put_all, queued

DAY_MS = 86_400_000
CONFIG = CleaningConfig(reserved_ms=3 * DAY_MS, log_pause_ms=0, queue_pause_ms=0, interval_ms=1, first_delay_ms=1)
"""Files of the log have 4096 bytes, queue files 10 units."""


class World:
    """A store, and what its cleaner believes."""

    def __init__(self, opened: OpenStore) -> None:
        self.opened = opened
        self.now_ms = 100 * DAY_MS
        self.hour = 12
        self.percent = 10
        self.cleaner = self.cleaner_of(CONFIG)
        for path, _ in self.log_files():
            os.utime(path, (0, 0))

    def cleaner_of(self, config: CleaningConfig) -> Cleaner:
        return Cleaner(
            config, self.opened.store, measure=self.measure, now_ms=lambda: self.now_ms, hour=lambda: self.hour
        )

    def measure(self) -> StoreSpace:
        disk = DiskSpace(self.percent, 100 - self.percent, 100)
        return StoreSpace(disk, disk)

    def log_files(self) -> list[tuple[Path, int]]:
        return list(self.opened.store.log.sealed_files())

    def set_ages(self, *days: float) -> None:
        """When the log's files were changed, oldest first; those that are not named are of now."""
        for index, (path, _) in enumerate(self.log_files()):
            age = days[index] if index < len(days) else 0.0
            os.utime(path, (0, (self.now_ms - age * DAY_MS) / 1000))


async def fill(opened: OpenStore, count: int = 40, topic: str = "T", size: int = 900) -> ConsumeQueue:
    """Messages of about a quarter of a file of the log."""
    queue = opened.store.queues.get(topic, 0)
    await put_all(opened, [queued(queue, b"%05d" % number + bytes(size)) for number in range(count)])
    return queue


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    await fill(opened)
    yield World(opened)
    await opened.close()


def queue_of(world: World, topic: str = "T") -> ConsumeQueue:
    return world.opened.store.queues.get(topic, 0)


async def test_by_day_nothing_goes_however_old(world: World) -> None:
    world.set_ages(*[50.0] * 20)
    await world.cleaner.run_round()
    assert world.opened.store.log.min_offset == 0


async def test_at_the_hour_what_is_past_its_time_goes_and_no_more(world: World) -> None:
    world.set_ages(5, 4, 3, 2.9)
    paths = [path for path, _ in world.log_files()]
    world.hour = 4
    await world.cleaner.run_round()
    assert world.opened.store.log.min_offset == 3 * 4096
    assert world.cleaner.deleted_files == 3
    await eventually(lambda: not any(path.exists() for path in paths[:3]))
    assert all(path.exists() for path in paths[3:])


async def test_the_file_that_is_written_never_goes(world: World) -> None:
    world.set_ages(*[50.0] * 20)
    world.hour = 4
    count = len(world.log_files())
    await world.cleaner_of(CONFIG).run_round()
    await world.cleaner_of(CONFIG).run_round()
    assert world.opened.store.log.min_offset == count * 4096
    await put_all(world.opened, [queued(queue_of(world), b"more")])
    assert bodies_of(world.opened, queue_of(world))[-1] == b"more"


async def test_queues_forget_what_the_log_has_dropped(world: World) -> None:
    queue = queue_of(world)
    world.set_ages(*[50.0] * 4)
    world.hour = 4
    folder = world.opened.store.queues.directory / "T" / "0"
    assert len(list(folder.iterdir())) >= 4
    await world.cleaner.run_round()
    first = queue.unit(queue.min_offset)
    assert first is not None and first[0] == world.opened.store.log.min_offset
    assert queue.min_offset > 10
    assert min(int(path.name) for path in folder.iterdir()) == queue.min_offset // 10 * 200
    assert bodies_of(world.opened, queue)[0][:5] == b"%05d" % queue.min_offset
    result = world.opened.store.reader.get(queue, 3, 32, 1 << 20)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, queue.min_offset)


async def test_a_queue_without_a_message_in_the_log_keeps_its_number(world: World) -> None:
    opened = world.opened
    idle = await fill(opened, 25, "Idle", size=10)
    await fill(opened, 30)
    world.set_ages(*[50.0] * 100)
    world.hour = 4
    await world.cleaner_of(CleaningConfig(reserved_ms=1, log_pause_ms=0, batch_max=100)).run_round()
    assert (idle.min_offset, idle.max_offset) == (25, 25)
    assert [path.name for path in (opened.store.queues.directory / "Idle" / "0").iterdir()] == [f"{400:020d}"]
    assert opened.store.reader.get(idle, 0, 1, 100).next_offset == 25
    assert opened.store.reader.get(idle, 25, 1, 100).status is GetStatus.OFFSET_OVERFLOW_ONE
    await put_all(opened, [queued(idle, b"again")])
    assert (idle.max_offset, bodies_of(opened, idle)) == (26, [b"again"])


async def test_a_cleaned_store_opens_again_as_it_was(tmp_path: Path) -> None:
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    queue = await fill(opened)
    world = World(opened)
    world.hour = 4
    world.set_ages(*[50.0] * 4)
    await world.cleaner.run_round()
    before = (opened.store.log.min_offset, queue.min_offset, queue.max_offset, bodies_of(opened, queue))
    await opened.close()
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    queue = opened.store.queues.get("T", 0)
    after = (opened.store.log.min_offset, queue.min_offset, queue.max_offset, bodies_of(opened, queue))
    assert after == before
    await opened.close()


async def test_a_disk_above_the_first_limit_is_cleaned_at_any_hour(world: World) -> None:
    world.set_ages(5, 2)
    world.percent = 76
    await world.cleaner.run_round()
    assert world.opened.store.log.min_offset == 4096


async def test_a_disk_above_the_second_limit_loses_young_files(world: World) -> None:
    world.set_ages()
    world.percent = 86
    await world.cleaner_of(CleaningConfig(batch_max=2, log_pause_ms=0)).run_round()
    assert world.opened.store.log.min_offset == 2 * 4096
    assert world.opened.store.disk_full is None


async def test_a_full_disk_refuses_messages_and_takes_them_again_by_itself(world: World) -> None:
    store, queue = world.opened.store, queue_of(world)
    store.watch_topic("State")
    world.percent = 91
    await world.cleaner.run_round()
    with pytest.raises(Refusal, match="91 % full, more than 90 %") as refused:
        store.put([queued(queue)], Outcomes())
    assert (refused.value.cause, refused.value.code) == (Cause.DISK_FULL, 14)
    assert refused.value.retry_after_ms
    await put_all(world.opened, [queued(store.queues.get("State", 0), b"offsets go on")])
    world.percent = 86
    await world.cleaner.run_round()  # between the limits it stays as it was
    assert store.disk_full is not None
    world.percent = 85
    await world.cleaner.run_round()
    await put_all(world.opened, [queued(queue, b"taken again")])


async def test_an_administrator_has_old_files_deleted_at_once(world: World) -> None:
    world.set_ages(5, 5)
    cleaner = world.cleaner_of(CleaningConfig(reserved_ms=DAY_MS, first_delay_ms=3_600_000, log_pause_ms=0))
    cleaner.start()
    cleaner.clean_by_hand()
    await eventually(lambda: world.opened.store.log.min_offset == 2 * 4096)
    await cleaner.close()


async def test_a_disk_that_cannot_be_asked_is_asked_again(world: World) -> None:
    world.set_ages(5)
    world.hour = 4
    answers: list[Exception | None] = [OSError(5, "Input/output error"), None]

    def measure() -> StoreSpace:
        if answers and (error := answers.pop(0)) is not None:
            raise error
        return world.measure()

    cleaner = Cleaner(CONFIG, world.opened.store, measure=measure, now_ms=lambda: world.now_ms, hour=lambda: 4)
    cleaner.start()
    await eventually(lambda: world.opened.store.log.min_offset == 4096)
    await cleaner.close()


async def test_nothing_goes_that_somebody_still_has_to_read(world: World) -> None:
    world.set_ages(*[50.0] * 20)
    world.hour = 4
    world.cleaner.holds.append(lambda: 2 * 4096 + 100)
    await world.cleaner.run_round()
    assert world.opened.store.log.min_offset == 2 * 4096


async def test_nothing_goes_before_a_checkpoint_says_that_its_units_are_durable(world: World) -> None:
    """Only the log knows the queue offsets of units that a power cut takes back."""
    world.set_ages(*[50.0] * 20)
    cleaner = world.opened.cleaner
    cleaner.clean_by_hand()
    await cleaner.run_round()
    assert world.opened.store.log.min_offset == 0
    world.opened.checkpointer.save_cut()
    cleaner.clean_by_hand()
    await cleaner.run_round()
    assert world.opened.store.log.min_offset > 0
    assert world.log_files() == []


async def test_a_start_on_a_full_disk_can_make_room_by_the_checkpoint_that_it_finds(tmp_path: Path) -> None:
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    await fill(opened)
    await opened.close()
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    World(opened).set_ages(*[50.0] * 20)
    opened.cleaner.clean_by_hand()
    await opened.cleaner.run_round()
    assert opened.store.log.min_offset > 0
    await opened.close()


async def test_nothing_goes_that_is_not_dispatched(world: World) -> None:
    world.set_ages(*[50.0] * 20)
    world.hour = 4
    world.opened.store.dispatched_offset, dispatched = 3 * 4096 - 1, world.opened.store.dispatched_offset
    await world.cleaner.run_round()
    assert world.opened.store.log.min_offset == 2 * 4096
    world.opened.store.dispatched_offset = dispatched


async def test_followers_hear_of_the_logs_new_start_once(world: World) -> None:
    heard: list[int] = []
    world.cleaner.followers.append(heard.append)
    world.set_ages(5)
    world.hour = 4
    for _ in range(3):
        await world.cleaner.run_round()
    assert heard[-1] == 4096
    assert heard.count(4096) == 1


async def test_a_reader_keeps_the_bytes_of_a_deleted_file(world: World) -> None:
    held = world.opened.store.reader.get(queue_of(world), 0, 4, 1 << 20).records
    before = [bytes(record) for record in held]
    world.set_ages(5, 5)
    world.hour = 4
    paths = [path for path, _ in world.log_files()]
    await world.cleaner.run_round()
    await eventually(lambda: not paths[0].exists())
    assert [bytes(record) for record in held] == before
    assert world.opened.store.reader.get(queue_of(world), 0, 4, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL


async def test_queues_of_topics_that_are_gone_are_removed_and_others_keep_their_numbers(world: World) -> None:
    opened = world.opened
    gone, idle = await fill(opened, 3, "Gone", size=10), await fill(opened, 3, "Idle", size=10)
    await fill(opened, 30)
    world.set_ages(*[50.0] * 100)
    world.hour = 4
    cleaner = world.cleaner_of(CleaningConfig(reserved_ms=1, log_pause_ms=0, batch_max=100))
    await cleaner.run_round()
    assert gone.min_offset == gone.max_offset == 3
    await cleaner.clean_expired_queues(lambda topic: topic != "Gone")
    assert opened.store.queues.find("Gone", 0) is None
    assert not (opened.store.queues.directory / "Gone").exists()
    assert opened.store.queues.find("Idle", 0) is idle
    assert idle.max_offset == 3


async def test_queues_with_messages_in_the_log_survive_the_removal_of_expired_ones(world: World) -> None:
    await world.cleaner.clean_expired_queues(lambda topic: False)
    assert len(bodies_of(world.opened, queue_of(world))) == 40


async def test_unused_topics_lose_their_queues_whatever_they_hold(world: World) -> None:
    await fill(world.opened, 3, "Unused", size=10)
    removed = await world.cleaner.clean_unused_topics(lambda topic: topic == "T")
    assert removed == ["Unused"]
    assert world.opened.store.queues.find("Unused", 0) is None
    assert len(bodies_of(world.opened, queue_of(world))) == 40


async def test_closing_ends_a_round_that_pauses(world: World) -> None:
    world.set_ages(*[50.0] * 20)
    world.hour = 4
    cleaner = world.cleaner_of(CleaningConfig(reserved_ms=1, first_delay_ms=0, log_pause_ms=3_600_000))
    cleaner.start()
    await eventually(lambda: world.opened.store.log.min_offset == 4096)
    await asyncio.wait_for(cleaner.close(), WAIT_S)
    assert world.opened.store.log.min_offset == 4096


async def test_the_index_hears_of_the_logs_new_start(world: World) -> None:
    heard: list[int] = []

    class Index:
        def delete_before(self, physical_offset: int) -> None:
            heard.append(physical_offset)

        async def finish(self) -> None: ...

        async def drain(self) -> None: ...

        async def close(self) -> None: ...

    world.opened.store.index = Index()  # type: ignore[assignment]
    world.opened.store.log.trim(4096)
    await world.opened.cleaner.clean_queues()
    assert heard == [4096]
    world.opened.store.index = None


async def test_a_queue_that_the_disk_cannot_read_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await fill(world.opened, 1, "Bad", size=10), queue_of(world)
    correct = ConsumeQueue.correct_min_offset

    def fails(queue: ConsumeQueue, log_min_offset: int) -> None:
        if queue is bad:
            raise DiskFailedError(Path("bad"), "Input/output error")
        correct(queue, log_min_offset)

    world.opened.store.log.trim(2 * 4096)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "correct_min_offset", fails)
        await world.cleaner.clean_queues()
    assert good.min_offset > 0
    heard: list[int] = []
    world.cleaner.followers.append(heard.append)
    await world.cleaner.clean_queues()  # the bad one is tried again
    await world.cleaner.clean_queues()
    assert heard == [2 * 4096]


async def test_only_archived_files_go_and_a_disk_that_fills_meanwhile_refuses_messages(
    world: World, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    from ledgermq.spark.archive import archive_segment
    from ledgermq.spark.log_files import open_store

    archive = tmp_path / "archive"
    archive.mkdir()
    world.set_ages(*[5.0] * 20)
    world.percent = 91
    store = world.opened.store
    cleaner = world.cleaner_of(
        CleaningConfig(
            reserved_ms=3 * DAY_MS, log_pause_ms=0, queue_pause_ms=0, archive_required=True, archive_path=archive
        )
    )
    assert not cleaner.waits_for_archive
    for _ in range(2):
        await cleaner.run_round()
        assert (store.log.min_offset, cleaner.deleted_files, cleaner.waits_for_archive) == (0, 0, True)
    with pytest.raises(Refusal, match="91 % full, more than 90 %; files of the log wait for their archive"):
        store.put([queued(queue_of(world))], Outcomes())
    files = open_store(str(store.log.directory.parent)).files
    for file in files[:2]:
        archive_segment(archive, "classic", file)
    with open(files[0].path, "r+b") as changed:  # noqa: PTH123 - a plain path
        first = changed.read(1)
        changed.seek(0)
        changed.write(b"\xff")
        changed.flush()
        await cleaner.run_round()
        assert store.log.min_offset == 0, "its bytes are not those of the manifest"
        changed.seek(0)
        changed.write(first)
    world.set_ages(*[5.0] * 20)
    await cleaner.run_round()
    assert (store.log.min_offset, cleaner.deleted_files, cleaner.waits_for_archive) == (2 * 4096, 2, True)
    for file in files[2:-1]:
        archive_segment(archive, "classic", file)
    world.percent = 80
    await cleaner.run_round()
    assert not cleaner.waits_for_archive
    assert store.log.min_offset == (len(files) - 1) * 4096
    await put_all(world.opened, [queued(queue_of(world), b"taken again")])


def test_an_archive_that_is_required_needs_a_folder() -> None:
    assert [name for name, _ in CleaningConfig(archive_required=True).problems()] == ["archiveRequiredBeforeDelete"]
    assert not list(CleaningConfig(archive_required=True, archive_path=Path("a")).problems())
