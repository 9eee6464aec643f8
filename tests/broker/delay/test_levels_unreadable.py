"""A delayed message that the disk cannot read holds up nothing but itself."""

from pathlib import Path

import pytest

from store.errors import DiskReadError
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send
from tests.broker.delay.test_timer_messages import delivered


async def test_the_head_of_a_level_that_cannot_be_read_does_not_hold_up_its_level(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    bad = desk.store.log.max_offset
    for body in (b"unreadable", b"second", b"third"):
        await send(client, body, i="DELAY\x011\x02")
    reader, look_up = desk.store.reader, desk.store.reader.look_up

    def fails(physical_offset: int) -> memoryview | None:
        if physical_offset == bad:
            raise DiskReadError(Path("commitlog"), physical_offset, "bad sector")
        return look_up(physical_offset)

    monkeypatch.setattr(reader, "look_up", fails)
    await eventually(lambda: len(delivered(desk)) == 2, "what lies behind is delivered")
    await eventually(lambda: not desk.parts.delay.levels._unsent_progress, "progress is recorded")
    await desk.stop()
    monkeypatch.undo()
    await desk.start()  # as a leader whose disk can read it
    await eventually(lambda: len(delivered(desk)) >= 3, "it comes once it can be read")
    await send(desk.client(), b"last", i="DELAY\x011\x02")
    await eventually(lambda: len(delivered(desk)) >= 4, "the level goes on")
    assert sorted(record.body for record in delivered(desk)) == [b"last", b"second", b"third", b"unreadable"]


async def test_it_is_delivered_when_it_can_be_read_again(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    await send(client, b"unreadable", i="DELAY\x011\x02")

    def fails(physical_offset: int) -> memoryview | None:
        raise DiskReadError(Path("commitlog"), physical_offset, "bad sector")

    with monkeypatch.context() as broken:
        broken.setattr(desk.store.reader, "look_up", fails)
        await eventually(lambda: bool(desk.parts.delay.levels._unread.get(0)), "it was passed over")
        assert delivered(desk) == []
    await eventually(lambda: len(delivered(desk)) == 1)
    await eventually(lambda: not desk.parts.delay.levels._unread[0])
