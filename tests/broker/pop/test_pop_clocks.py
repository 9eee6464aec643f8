"""A wall clock that is set back, or a leader whose clock was ahead, hides messages no longer than asked for."""

import pytest

from broker.state.pop_core import Checkpoint, Checkpoints
from broker.state.pop_order import Orders
from tests.broker.conftest import Desk, MemoryClient, make_topic, send
from tests.broker.pop.support import bodies, pop, pop_again

HOUR_MS = 3_600_000
TAKEN = Checkpoint("T", "g", 0, start=5, pop_ms=HOUR_MS, invisible_ms=2_000, offsets=(5, 6))


def loaded(*taken: Checkpoint) -> Checkpoints:
    checkpoints = Checkpoints()
    checkpoints.load({one.key: one for one in taken})
    return checkpoints


def test_what_a_clock_took_that_was_ahead_is_due_within_its_invisible_time() -> None:
    checkpoints = loaded(TAKEN)
    checkpoints.clock_is(1_000)
    assert checkpoints.next_due_ms == 3_000
    assert checkpoints.take_due(2_999, 9) == []
    assert checkpoints.take_due(3_000, 9) == [TAKEN]
    assert len(checkpoints) == 0


def test_what_the_clock_has_reached_keeps_its_time() -> None:
    checkpoints = loaded(TAKEN)
    checkpoints.clock_is(HOUR_MS)
    assert checkpoints.next_due_ms == HOUR_MS + 2_000


def test_the_log_keeps_the_time_that_was_asked_for_so_that_a_second_failover_brings_nothing_forward() -> None:
    """One message is acknowledged between the failovers, which writes the checkpoint down again."""
    checkpoints = loaded(TAKEN)
    checkpoints.clock_is(1_000)
    checkpoints.clock_is(1_500)
    assert checkpoints.next_due_ms == 3_000, "it was hidden from 1,000 on"
    assert checkpoints.ack(TAKEN.key, 5)
    assert checkpoints.next_due_ms == 3_000
    written = {key: one for key, one in checkpoints.take_changes().items() if one is not None}
    assert written == {TAKEN.key: TAKEN._replace(acked=1)}
    second = loaded(*written.values())
    second.clock_is(1_500)
    assert second.next_due_ms == 3_500
    assert second.ack(TAKEN.key, 6)
    assert second.next_due_ms is None


def test_what_could_not_be_delivered_when_it_was_due_sooner_is_tried_again() -> None:
    checkpoints = loaded(TAKEN)
    checkpoints.clock_is(1_000)
    (taken,) = checkpoints.take_due(3_000, 9)
    checkpoints.put_back(taken, 4_000)
    assert checkpoints.next_due_ms == 4_000
    assert [one.key for one in checkpoints.take_due(4_000, 9)] == [TAKEN.key]


def test_a_queue_in_order_is_free_within_the_invisible_time_of_a_clock_that_was_ahead() -> None:
    orders = Orders()
    given = orders.give("T@g@0", "a", HOUR_MS, 2_000, (5, 6))
    orders.set_visible("T@g@0", 6, HOUR_MS, HOUR_MS + 500)
    orders.clock_is(HOUR_MS)
    assert orders.take_changes() and given.free_ms(1_000) == HOUR_MS + 2_000
    orders.clock_is(1_000)
    assert orders.is_blocked("T@g@0", "b", 2_999) and not orders.is_blocked("T@g@0", "b", 3_000)
    assert orders.ack("T@g@0", 5, HOUR_MS) == 6, "the handle is the same"
    orders.take_changes()
    orders.clock_is(1_500)
    assert not orders.has_changes() and not orders.is_blocked("T@g@0", "b", 3_000)


async def test_a_message_is_given_again_soon_after_the_leaders_clock_was_set_back(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client, "T", 1)
    await send(client, b"m")
    progress = desk.parts.pop.progress
    right = progress._clock_ms
    monkeypatch.setattr(progress, "_clock_ms", lambda: right() + HOUR_MS)
    taken = await pop(client, invisibleTime=200, bornTime=right() + HOUR_MS)
    assert bodies(taken) == [b"m"]
    monkeypatch.setattr(progress, "_clock_ms", right)
    assert bodies(await pop_again(client)) == [b"m"]
