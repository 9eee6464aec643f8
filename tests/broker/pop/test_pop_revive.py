"""Messages that come again across changes of the leader: each once, wherever the leader before stopped."""

import asyncio
from collections.abc import Sequence

import pytest

from broker.delay.deliveries import Delivered, Deliveries, DeliveryKind
from store.log.drafts import QueuedDraft
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, send
from tests.broker.pop.support import CODE, pop

RETRY = "%RETRY%g_T"


def revived(desk: Desk) -> list[bytes]:
    return [record.body for record in desk.records() if record.topic == RETRY]


def lead_anew(desk: Desk) -> None:
    """Another node led for a moment: all that the log does not have is forgotten."""
    desk.parts.on_role_change(log_state(writable=False, generation=8))
    desk.parts.on_role_change(log_state(writable=True, generation=9))


@pytest.mark.parametrize("placed", [1, 2])
async def test_what_a_leader_revived_without_closing_its_checkpoint_comes_once(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, placed: int
) -> None:
    await make_topic(client, "T", 1)
    for body in (b"m0", b"m1"):
        await send(client, body)
    deliver = Deliveries.deliver

    def deliver_front(
        self: Deliveries, kind: DeliveryKind, token: str, drafts: Sequence[QueuedDraft], done: Delivered
    ) -> None:
        deliver(self, kind, token, drafts[:placed], done)

    monkeypatch.setattr(Deliveries, "deliver", deliver_front)
    await pop(client, invisibleTime=700)
    await eventually(lambda: bool(desk.parts.context.state.pop.checkpoints), "the checkpoint in the log")
    monkeypatch.setattr(desk.parts.pop.progress, "send", lambda: None)
    monkeypatch.setattr(desk.parts.context.offsets, "send", lambda: None)
    await eventually(lambda: len(revived(desk)) == placed, "the first copies")
    monkeypatch.undo()
    lead_anew(desk)
    await eventually(lambda: not desk.parts.context.state.pop.checkpoints, "the checkpoint closed")
    assert revived(desk) == [b"m0", b"m1"]


async def test_what_is_taken_again_after_a_reset_is_revived_again_by_the_next_leader(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 1)
    await send(client, b"m")
    await pop(client, invisibleTime=100)
    await eventually(lambda: revived(desk) == [b"m"], "the first copy")
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "offset": "0", "queueId": "0"}
    assert (await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == 0
    assert (await pop(client, invisibleTime=500)).code == 0
    await eventually(lambda: bool(desk.parts.context.state.pop.checkpoints), "the second checkpoint in the log")
    lead_anew(desk)

    def copies_of_the_first() -> int:
        return sum(record.topic == RETRY and record.reconsume_times == 1 for record in desk.records())

    await eventually(lambda: copies_of_the_first() == 2, "the second copy")


async def test_nothing_is_revived_before_the_deliveries_of_earlier_leaders_are_known(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client, "T", 1)
    await send(client, b"m")
    desk.parts.pop.revive.stop()  # of the first leader, which on a slow machine would be soon enough
    await pop(client, invisibleTime=300)
    await eventually(lambda: bool(desk.parts.context.state.pop.checkpoints), "the checkpoint in the log")
    monkeypatch.setattr(desk.parts.delay.deliveries, "scan", lambda then: None)
    lead_anew(desk)
    await asyncio.sleep(0.5)
    assert revived(desk) == []
    desk.parts.pop.resume()
    await eventually(lambda: revived(desk) == [b"m"], "the copy")
