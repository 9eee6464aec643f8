"""What a producer was told is written down as it was."""

import asyncio
from pathlib import Path

import pytest

from ledgermq.client import InvalidArgumentError, Producer
from ledgermq.client.errors import LedgerMQError
from ledgermq.history import Outcome, Send, parse_line


def told(path: Path) -> list[Send]:
    return [parse_line(line) for line in path.read_bytes().splitlines()]


async def test_each_message_is_a_line_and_a_second_run_goes_on(namesrv: str, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    results = []
    for _ in range(2):
        async with Producer(namesrv, history=path) as producer:
            results += [await producer.send("T", b"x", queue=0) for _ in range(3)]
            results += await producer.send_batch("T", [b"a", b"b"], queue=1)
            results.append(await (await producer.send_soon("T", b"soon", queue=0)))
    lines = told(path)
    assert [(each.key, each.topic, each.outcome, each.queue_id, each.queue_offset, each.tries) for each in lines] == [
        (result.message_id, "T", Outcome.OK, result.queue.queue_id, result.queue_offset, 1) for result in results
    ]
    assert [each.sequence for each in lines] == [0, 1, 2, 3, 4, 5] * 2
    assert len({each.producer for each in lines}) == 2


async def test_messages_that_overlap_have_no_sequence_but_the_first(namesrv: str, tmp_path: Path) -> None:
    async with Producer(namesrv, history=str(tmp_path / "h.jsonl")) as producer:
        await producer.send("T", b"alone")
        first, *others = await asyncio.gather(*(producer.send("T", b"x") for _ in range(20)))
        last = await producer.send("T", b"alone again")
    sequences = {each.key: each.sequence for each in told(tmp_path / "h.jsonl")}
    assert [sequences[result.message_id] for result in others] == [None] * 19
    assert (sequences[first.message_id], sequences[last.message_id]) == (1, 21)


async def test_refusals_and_messages_that_wait_elsewhere(namesrv: str, tmp_path: Path) -> None:
    async with Producer(namesrv, history=tmp_path / "h.jsonl", create_topics=False) as producer:
        with pytest.raises(LedgerMQError):
            await producer.send("Absent", b"x")
    async with Producer(namesrv, history=tmp_path / "h.jsonl") as producer:
        await producer.send("T", b"later", delay_level=2)
        await producer.send("T", b"later", delay=1)
    lines = told(tmp_path / "h.jsonl")
    assert [(each.topic, each.outcome, each.queue_offset) for each in lines] == [
        ("Absent", Outcome.FAIL, None),
        ("T", Outcome.INFO, None),
        ("T", Outcome.INFO, None),
    ]


async def test_no_answer_is_no_refusal(namesrv: str, tmp_path: Path) -> None:
    async with Producer(namesrv, history=tmp_path / "h.jsonl") as producer:
        await producer.send("T", b"x")
        sending = asyncio.create_task(producer.send("T", b"broken off"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert [each.outcome for each in told(tmp_path / "h.jsonl")] == [Outcome.OK, Outcome.INFO]


async def test_a_file_that_cannot_be_written_is_refused_at_the_start(namesrv: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"history .*: Is a directory"):
        async with Producer(namesrv, history=tmp_path):
            pass
