"""A log that is cut below what was applied: topics, groups, offsets, queues and timers are as they were at the cut."""

import time
from copy import deepcopy

import pytest

from broker.state.files import load_state
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.wall_clock import wall_clock_ms
from store.errors import StateUnknownError
from store.opening import OpenStore
from store.timer.checkpoint import read_check
from store.timer.timer_index import TimerIndex
from store.timer.wheel import TimerWheel
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send
from tests.broker.delay.test_timer_messages import arrive, delivered, send_timer
from tests.broker.groups.test_offsets import key, make_group
from tests.broker.state.test_state_survives import picture
from tests.store.queues.test_cut import begin_cut, cut

PULL, COMMIT = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET


def opened(desk: Desk) -> OpenStore:
    assert desk._opened is not None
    return desk._opened


async def settle(desk: Desk) -> int:
    """Everything that was asked for is in the log and applied; its end."""
    await desk.parts.context.offsets.drain()
    await desk.parts.delay.deliveries.drain()
    store = desk.store
    await eventually(lambda: store.dispatched_offset == store.log.confirm_offset == store.log.max_offset)
    return store.log.max_offset


async def fill(desk: Desk, client: MemoryClient) -> int:
    """Topics with messages, a group and its offset."""
    for topic in ("T", "again", "removed"):
        await make_topic(client, topic)
        for number in range(3):
            await send(client, b"%s %d" % (topic.encode(), number), b=topic)
    await make_group(client)
    await client.ask(COMMIT, key(commitOffset="2"))
    return await settle(desk)


async def go_on(desk: Desk, client: MemoryClient) -> None:
    """Change everything that `fill` made."""
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "removed"})
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "again"})
    await make_topic(client, "again", 2)
    await send(client, b"another life", b="again")
    await make_topic(client, "late")
    await send(client, b"late", b="late")
    await send(client, b"T 3")
    await client.ask(COMMIT, key(commitOffset="4"))
    await make_group(client, "late")
    await settle(desk)


def bodies(desk: Desk, topic: str) -> list[bytes]:
    """What a consumer finds in the topic's first queue."""
    records = desk.store.reader.get(desk.store.queues.find(topic, 0), 0, 32, 1 << 20).records
    return [record.body for view in records for record in decode_records(view)]


@pytest.mark.parametrize("is_saved", [False, True], ids=["from the log alone", "from the tables on disk"])
async def test_tables_and_queues_go_back_to_the_cut(desk: Desk, client: MemoryClient, is_saved: bool) -> None:
    end = await fill(desk, client)
    before = deepcopy(picture(desk))
    directory = desk.config.store.root / "config"
    if is_saved:
        desk.follower.saver.save_soon()
        await eventually(lambda: load_state(directory).applied_offset == end)
    await go_on(desk, client)
    assert picture(desk) != before
    begin_cut(opened(desk), end)
    assert picture(desk) == before
    saved = load_state(directory)
    assert (saved.topics, saved.groups, saved.offsets, saved.applied_offset) == (*before[:3], before[4])
    cut(opened(desk), end)
    await eventually(lambda: desk.parts.context.role.writable, "the broker takes messages")
    for topic in ("T", "again", "removed"):
        assert bodies(desk, topic) == [b"%s %d" % (topic.encode(), number) for number in range(3)]
    assert desk.store.queues.find("late", 0) is None
    assert (await client.ask(PULL, pull_fields("T", offset=2))).code == 0
    assert (await send(client, b"removed 3", b="removed")).ext["queueOffset"] == "3"
    await settle(desk)
    after = deepcopy(picture(desk))
    await desk.stop(save_tables=False)
    await desk.start()
    assert picture(desk) == after


async def test_tables_newer_than_the_cut_of_a_trimmed_log_are_told(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = await fill(desk, client)
    await go_on(desk, client)
    desk.follower.saver.save_soon()
    applied = desk.parts.context.state.applied_offset
    await eventually(lambda: load_state(desk.config.store.root / "config").applied_offset == applied)
    monkeypatch.setattr("store.log.commit_log.CommitLog.min_offset", property(lambda _: 100))
    with pytest.raises(StateUnknownError, match=f"the state at {end} is not known"):
        begin_cut(opened(desk), end)
    monkeypatch.undo()


async def test_a_timer_whose_delivery_lies_behind_the_cut_is_delivered_again(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_ms(ms: int) -> None:
        """Time for the deliveries: however slow this machine is, none is due before the test says so."""
        monkeypatch.setattr(desk.parts.delay.timer, "_clock_ms", lambda: wall_clock_ms() + ms)

    await make_topic(client)
    await send_timer(client, b"far", "K1", TIMER_DELAY_MS=900_000)
    await send_timer(client, b"near", "K2", TIMER_DELAY_MS=300_000)
    end = await settle(desk)
    await send_timer(client, b"gone", "K3", TIMER_DELAY_MS=300_000)
    pass_ms(300_000)
    assert [record.body for record in await arrive(desk, 2)] == [b"near", b"gone"]
    await settle(desk)
    begin_cut(opened(desk), end)
    index = desk.parts.delay.timer.index
    assert (index.queue_offset, index.metrics.total) == (2, 2)
    assert read_check(desk.config.store.root / "config" / "timercheck").queue_offset == 0
    cut(opened(desk), end)
    assert delivered(desk) == []
    pass_ms(900_000)
    assert [record.body for record in await arrive(desk, 2)] == [b"near", b"far"]
    await eventually(lambda: desk.parts.delay.timer.index.metrics.total == 0, "no timer counted")


async def test_timers_cut_and_opened_again_are_the_same(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_timer(client, b"far", "K1", TIMER_DELAY_MS=2500)
    end = await settle(desk)
    await send_timer(client, b"gone", "K2", TIMER_DELAY_MS=2500)
    await settle(desk)
    cut(opened(desk), end)
    await desk.stop()
    await desk.start()
    assert [record.body for record in await arrive(desk, 1)] == [b"far"]


async def test_timers_are_cut_when_no_thread_writes_their_files_any_more(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    await send_timer(client, b"far", "K1", TIMER_DELAY_MS=60_000)
    end = await settle(desk)
    await send_timer(client, b"gone", "K2", TIMER_DELAY_MS=60_000)
    await settle(desk)
    steps: list[str] = []
    sync, restart = TimerWheel.sync, TimerIndex.restart

    def slow(wheel: TimerWheel) -> None:
        time.sleep(0.3)  # the thread is in the middle of a flush
        sync(wheel)
        steps.append("flushed")

    def begin(index: TimerIndex, queue_offset: int, read_ms: int) -> None:
        steps.append("cut")
        restart(index, queue_offset, read_ms)

    monkeypatch.setattr(TimerWheel, "sync", slow)
    monkeypatch.setattr(TimerIndex, "restart", begin)
    desk.follower.delivery_files.flush_index()
    cut(opened(desk), end)
    assert steps[:2] == ["flushed", "cut"]
