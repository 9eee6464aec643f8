"""What waits comes though its topic changes meanwhile, or the clock does."""

import time
from pathlib import Path

import pytest

from broker.state.names import SCHEDULE_TOPIC
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    log_state,
    make_topic,
    send,
    small_config,
    topic_fields,
)
from tests.broker.groups.test_offsets import make_group
from tests.broker.pop.support import pop
from tests.broker.transactions.test_transactions import COMMIT, end

HOUR_MS = 3_600_000


def of(desk: Desk, topic: str) -> list[Record]:
    return [record for record in desk.records() if record.topic == topic]


class SetClock:
    """The wall clock, set by the test; store times go on by the real one."""

    ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    clock = SetClock()
    for module in ("context", "log_follower"):
        monkeypatch.setattr(f"broker.{module}.wall_clock_ms", clock)
    return clock


@pytest.mark.parametrize(
    ("read", "write", "queue"),
    [(4, 0, 3), (4, 2, 3), (2, 2, 1), (2, 0, 1), (0, 0, 3)],
    ids=["drained", "still read", "fewer", "fewer and drained", "none"],
)
async def test_what_waits_comes_when_its_topic_has_fewer_queues_by_then(
    clock: SetClock, desk: Desk, client: MemoryClient, read: int, write: int, queue: int
) -> None:
    await make_topic(client, "T", 4)
    born = str(time.time_ns() // 1_000_000)
    *_, half = [
        await send(client, queue=3, g=born, i=f"UNIQ_KEY\x01{name[:2]}\x02{name}")
        for name in ("DELAY\x0117\x02", "TIMER_DELAY_SEC\x013600\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02")
    ]
    fields = topic_fields("T", readQueueNums=str(read), writeQueueNums=str(write))
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    assert (await end(client, half, COMMIT)).code == 0
    clock.ahead_ms = HOUR_MS + 1000
    await eventually(lambda: len(of(desk, "T")) == 3, "three messages")
    assert {record.queue_id for record in of(desk, "T")} == {queue}


async def test_a_level_waits_no_longer_when_the_clock_is_behind_the_one_that_stored_the_message(
    clock: SetClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.delay.levels.DELAY_LEVELS_MS", (400,) * 18)
    clock.ahead_ms = -HOUR_MS
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    for number in range(30):
        await send(client, b"%d" % number, i="DELAY\x011\x02")
    await eventually(lambda: len(of(desk, "T")) == 30, "all of them")
    parked = of(desk, SCHEDULE_TOPIC)
    waits = [
        record.store_timestamp - before.store_timestamp for before, record in zip(parked, of(desk, "T"), strict=True)
    ]
    assert [record.body for record in of(desk, "T")] == [b"%d" % number for number in range(30)]
    assert waits[0] >= 390, "what waits since the clock was seen to be behind waits for its level, whole"
    await desk.stop()


async def test_what_waits_is_due_when_the_clock_is_set_forward(clock: SetClock, tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    await make_group(client)
    await send(client, b"popped")
    assert (await pop(client, invisibleTime=HOUR_MS)).code == 0
    await send(client, b"level", i="UNIQ_KEY\x01L\x02DELAY\x0117\x02")
    await send(client, b"timer", i="UNIQ_KEY\x01T\x02TIMER_DELAY_SEC\x013600\x02")
    clock.ahead_ms = HOUR_MS + 1000
    await eventually(lambda: len(of(desk, "T")) == 3, "level and timer")
    await eventually(lambda: len(of(desk, "%RETRY%g_T")) == 1, "what was popped")
    await desk.stop()


async def test_what_came_when_the_clock_was_ahead_cannot_be_recalled_when_it_is_set_back(
    clock: SetClock, tmp_path: Path
) -> None:
    desk = Desk(small_config(tmp_path, recall_enable=True))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    sent = await send(client, b"timer", i="UNIQ_KEY\x01T\x02TIMER_DELAY_SEC\x011800\x02")
    clock.ahead_ms = HOUR_MS
    await eventually(lambda: len(of(desk, "T")) == 1, "delivered")
    due_ms = time.time_ns() // 1_000_000 + HOUR_MS // 2
    await eventually(lambda: desk.parts.delay.timer.index.read_ms > due_ms, "its slot is done")
    clock.ahead_ms = 0
    fields = {"producerGroup": "p", "topic": "T", "recallHandle": sent.ext["recallHandle"]}
    refused = await client.ask(RequestCode.RECALL_MESSAGE, fields)
    assert (refused.code, refused.remark) == (604, "recall failed, timestamp invalid")

    waits = await send(client, b"waits", i="UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x01600\x02")
    answer = await client.ask(RequestCode.RECALL_MESSAGE, fields | {"recallHandle": waits.ext["recallHandle"]})
    assert (answer.code, answer.remark) == (0, None), "it was sent after that and waits for its time"
    last = await send(client, b"last", i="UNIQ_KEY\x01V\x02TIMER_DELAY_SEC\x01600\x02")
    assert last.code == 0
    clock.ahead_ms = HOUR_MS // 2
    await eventually(lambda: len(of(desk, "T")) == 2, "the one that was not recalled")
    assert [record.body for record in of(desk, "T")] == [b"timer", b"last"]
    await desk.stop()


async def test_what_was_popped_waits_no_longer_when_the_clock_is_behind_that_of_the_leader_before(
    clock: SetClock, tmp_path: Path
) -> None:
    clock.ahead_ms = HOUR_MS
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    await make_group(client)
    await send(client, b"popped")
    answer = await pop(client, invisibleTime=500)
    assert answer.code == 0
    await desk.parts.pop.progress.drain()
    desk.parts.on_role_change(log_state(writable=False, generation=1))
    clock.ahead_ms = 0
    seen_ms = clock()
    desk.parts.on_role_change(log_state(writable=True, generation=2))
    await eventually(lambda: len(of(desk, "%RETRY%g_T")) == 1, "what was popped")
    (again,) = of(desk, "%RETRY%g_T")
    assert again.store_timestamp - seen_ms >= 490
    await desk.stop()
