"""What a new leader finds behind the marks of the one before: each delivery that no progress tells of, and no more."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.append.answers import SendAnswers
from broker.append.appender import Appender
from broker.counting.counting import Counting
from broker.delay.deliveries import REFRESH_BYTES, Deliveries, DeliveryKind
from broker.state.tables import MARKS_KEY, ReplicatedState, StateChange
from ledgermq.message.flags import TRANSACTION_COMMIT
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.drafts import QueuedDraft
from store.message_store import MessageStore
from tests.store.support import HOST, MemoryLog, eventually, queue_table, queued


class Bench:
    """Deliveries on a log in memory; what they propose is kept, and applied at once when `settle` says so."""

    def __init__(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        self.log = MemoryLog()
        self.queue = queue_table(directory).get("T", 0)
        self.store = MessageStore(self.log, queue_table(directory), loop)
        self.store.start()
        self.state = ReplicatedState()
        self.proposed: list[tuple[StateChange, Callable[[Refusal | None], None]]] = []
        counting = Counting("c", 100, loop.time)
        answers = SendAnswers(HOST, counting.calls)
        appender = Appender(self.store.put, answers, counting.settled, loop, lambda _: self.draft(0))
        self.deliveries = Deliveries(
            self.log, self.state, appender, lambda *one: self.proposed.append(one), loop, counting.arrivals
        )
        self.done: list[bool] = []

    def draft(self, origin: int, sys_flag: int = 0) -> QueuedDraft:
        draft = queued(self.queue, b"x", sys_flag=sys_flag)
        draft.prepared_transaction_offset = origin
        return draft

    async def deliver(
        self, token: str, *origins: int, kind: DeliveryKind = DeliveryKind.DELAY, sys_flag: int = 0
    ) -> None:
        placed = len(self.log.dones)
        drafts = [self.draft(origin, sys_flag) for origin in origins]
        self.deliveries.deliver(kind, token, drafts, self.done.append)
        await eventually(lambda: len(self.log.dones) > placed)

    def settle(self) -> None:
        for change, done in self.proposed:
            self.state.apply(change, 0)
            done(None)
        self.proposed.clear()

    async def scan(self) -> tuple[set[int], set[int]]:
        self.log.confirm()
        found: list[bool] = []
        self.deliveries.scan(lambda: found.append(True))
        await eventually(lambda: bool(found))
        return self.deliveries.origins, self.deliveries.committed


async def test_a_delivery_without_progress_is_found_and_one_with_it_is_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 101, 102)
    bench.deliveries.record(DeliveryKind.DELAY, {"progress": {0: 2}}, ["a"])
    await bench.deliver("b", 103)
    bench.settle()
    assert await bench.scan() == ({103}, set())
    assert bench.state.offsets["progress"] == {0: 2}


async def test_commits_are_told_from_other_deliveries(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 7, kind=DeliveryKind.TRANSACTION, sys_flag=TRANSACTION_COMMIT)
    await bench.deliver("b", 8, kind=DeliveryKind.TIMER)
    bench.settle()
    assert await bench.scan() == ({8}, {7})


async def test_progress_that_was_refused_tells_of_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 101)
    bench.settle()
    told: list[str] = []
    bench.deliveries.record(DeliveryKind.DELAY, {"progress": {0: 1}}, ["a"], lambda: told.append("refused"))
    (_, done) = bench.proposed.pop()
    done(Refusal(Cause.DISK_FULL, "no room"))
    assert told == ["refused"]
    await bench.deliver("b", 102)
    bench.deliveries.record(DeliveryKind.DELAY, {"other": {0: 1}}, ["b"])
    bench.settle()
    assert await bench.scan() == ({101, 102}, set())


async def test_nothing_is_looked_at_where_nothing_was_ever_delivered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.put([bench.draft(55)], lambda _: None)
    assert await bench.scan() == (set(), set())
    assert bench.proposed == []


async def test_the_mark_of_a_delivery_lies_before_it_however_long_none_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 1)
    bench.deliveries.record(DeliveryKind.DELAY, {}, ["a"])
    bench.settle()
    before = bench.log.max_offset
    bench.log._data += bytes(REFRESH_BYTES + 1)
    await bench.deliver("b", 2)
    (change, _) = bench.proposed[0]
    assert change.offsets[MARKS_KEY] == {DeliveryKind.DELAY: before + REFRESH_BYTES + 1}


async def test_a_kind_that_delivers_seldom_hides_nothing_of_one_that_delivers_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.delay.deliveries._SCAN_BYTES_MAX", 4096)
    bench = Bench(tmp_path)
    await bench.deliver("a", 1, kind=DeliveryKind.DELAY)
    bench.settle()
    for _ in range(100):
        bench.store.put([bench.draft(0)], lambda _: None)
    assert bench.log.max_offset > 2 * 4096
    await bench.deliver("b", 2, kind=DeliveryKind.TIMER)
    bench.settle()
    assert (await bench.scan())[0] == {1, 2}


@pytest.mark.parametrize("cause", [Cause.FLUSH_TIMEOUT, Cause.REPLICA_TIMEOUT, Cause.NO_QUORUM])
async def test_a_time_out_is_waited_out_not_taken_for_a_failure(tmp_path: Path, cause: Cause) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 1)
    bench.log.dones[-1](Refusal(cause, "no quorum in time"))
    assert bench.done == []
    bench.log.confirm()
    await eventually(lambda: bench.done == [True])


async def test_a_refusal_is_told_and_after_a_stop_nothing_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.deliver("a", 1)
    bench.log.dones[-1](Refusal(Cause.BUSY, "too much at once"))
    assert bench.done == [False]
    await bench.deliver("b", 2)
    bench.deliveries.stop()
    bench.log.dones[-1](Refusal(Cause.LEADER_CHANGED, "deposed"))
    await bench.deliveries.drain()
    assert bench.done == [False]
