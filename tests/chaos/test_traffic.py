"""Traffic by the clock: bodies tell their number, and a cluster that answers nothing does not pile up sends."""

import asyncio
from typing import cast

import pytest

from chaos.drills import traffic
from chaos.drills.record import DrillRecord
from chaos.drills.traffic import WAITING_MAX, Traffic, body_of, number_of
from ledgermq.client import Producer
from ledgermq.history import Outcome
from tests.limits import WAIT_S


class SilentProducer:
    """Takes messages and never answers."""

    async def send(self, topic: str, body: bytes) -> None:
        await asyncio.Event().wait()


def test_a_body_tells_its_number_and_any_changed_byte_is_noticed() -> None:
    assert [number_of(body_of(number)) for number in (0, 7, 999_999)] == [0, 7, 999_999]
    body = body_of(7)
    assert [number_of(body[:at] + b"?" + body[at + 1 :]) for at in (0, 11, 12, 40, len(body) - 1)] == [None] * 5
    assert number_of(b"") is None and number_of(body[:-1]) is None


async def test_sends_without_an_answer_are_bounded_and_abandoned_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    record = DrillRecord(0.0)
    clients = Traffic(cast(Producer, SilentProducer()), "t", 1e6, record)
    sending = asyncio.ensure_future(clients.send_forever())
    while len(record.sends) < WAITING_MAX + 100:
        await asyncio.sleep(0.001)
    sending.cancel()
    failed = [send for send in record.sends if send.completed_s]
    assert len(record.sends) - len(failed) == record.waiting_count == WAITING_MAX
    assert {send.outcome for send in failed} == {Outcome.FAIL}
    monkeypatch.setattr(traffic, "_ANSWERS_LIMIT_S", 0.01)
    assert await clients.drained() == f"{WAITING_MAX:,} sends have no answer after 0.01 s"
    await asyncio.wait_for(clients.abandon(), WAIT_S)
