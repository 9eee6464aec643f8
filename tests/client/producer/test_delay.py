"""Delayed messages: what is written, when they come, and taking them back."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from ledgermq.client import Admin, Consumer, Message, Producer
from ledgermq.client.errors import InvalidArgumentError, InvalidRequestError
from ledgermq.client.producer.timing import parse_recall_handle, timing_text
from tests.client.reading import read
from tests.limits import WAIT_S

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("delay", "level", "at", "text"),
    [
        (None, None, None, ""),
        (0, None, None, ""),
        (1.5, None, None, "TIMER_DELAY_MS\x011500\x02"),
        (timedelta(minutes=2), None, None, "TIMER_DELAY_MS\x01120000\x02"),
        (None, 3, None, "DELAY\x013\x02"),
        (None, None, NOON, f"TIMER_DELIVER_MS\x01{int(NOON.timestamp()) * 1000}\x02"),
    ],
)
def test_a_delay_is_written_as_rocketmq_writes_it(
    delay: float | timedelta | None, level: int | None, at: datetime | None, text: str
) -> None:
    assert timing_text(delay, level, at) == text


@pytest.mark.parametrize(
    ("delay", "level", "at"),
    [
        (-1, None, None),
        (float("nan"), None, None),
        (float("inf"), None, None),
        (timedelta(seconds=-1), None, None),
        (None, 0, None),
        (None, None, NOON.replace(tzinfo=None)),
        (1, 1, None),
        (None, 1, NOON),
    ],
)
def test_a_delay_that_is_none_is_refused(
    delay: float | timedelta | None, level: int | None, at: datetime | None
) -> None:
    with pytest.raises(InvalidArgumentError):
        timing_text(delay, level, at)


@pytest.mark.parametrize("handle", ["", "?", "bm90IG9uZQ==", "\u00e4"])
def test_a_recall_handle_that_is_none_is_refused(handle: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_recall_handle(handle)


async def test_delayed_messages_come_when_they_are_due_and_not_before(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        began = time.time()
        await producer.send("T", b"at", deliver_at=datetime.now(UTC) + timedelta(seconds=1.2))
        await producer.send("T", b"level", delay_level=1)
        await producer.send("T", b"after", delay=timedelta(seconds=0.8))
        await producer.send("T", b"now", delay=0)
        came = {message.body: time.time() - began async for message, _ in numbered(consumer, 4)}
    assert next(iter(came)) == b"now"
    assert came[b"after"] > 0.7
    assert came[b"level"] > 0.9
    assert came[b"at"] > 1.1


async def numbered(consumer: Consumer, count: int) -> AsyncIterator[tuple[Message, int]]:
    """The next `count` messages with their numbers."""
    for number in range(count):
        yield await anext(consumer), number


async def test_a_timer_message_is_taken_back(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=1)
        taken_back = await producer.send("T", b"taken back", delay=2)
        by_handle = await producer.send("T", b"taken back, too", delay=2)
        await producer.send("T", b"comes", delay=2.5)
        assert by_handle.recall_handle is not None
        assert await producer.recall(taken_back) == taken_back.message_id
        assert await producer.recall(by_handle.recall_handle) == by_handle.message_id
        assert [message.body for message in await read(namesrv, "T", 1)] == [b"comes"]
        with pytest.raises(InvalidRequestError, match="timestamp"):
            await producer.recall(taken_back)
        plain = await producer.send("T", b"plain")
        with pytest.raises(InvalidArgumentError, match="delay"):
            await producer.recall(plain)
