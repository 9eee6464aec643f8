"""What a consumer offers beside handlers: batches, pausing, seeking, callbacks, broadcasting, conditions."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledgermq.client import Admin, Consumer, MessageQueue, Producer, Sql
from ledgermq.client.consumer.backlog import Backlog
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.message import Message
from ledgermq.client.errors import InvalidArgumentError, UndecodableError
from ledgermq.message.hosts import Host
from ledgermq.message.record import Record
from tests.client.fake import FakeCluster, eventually, refuse
from tests.limits import WAIT_S


async def filled(namesrv: str, count: int, queue_count: int = 1) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count)
        for n in range(count):
            await producer.send("T", b"%d" % n, properties={"price": str(n)})


async def numbers(consumer: Consumer, count: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        return [int((await anext(consumer)).body) for _ in range(count)]


async def test_batches_are_full_or_what_came_in_time_and_count_as_handled_whole(namesrv: str) -> None:
    await filled(namesrv, 25)
    sizes = []
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        async for batch in consumer.batches(10, wait_s=0.2):
            sizes.append(len(batch))
            if sum(sizes) == 25:
                break
    assert sizes == [10, 10, 5]
    async with Admin(namesrv) as admin:
        assert [one.lag for one in await admin.progress("g", "T")] == [0]


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(namesrv: str) -> None:
    await filled(namesrv, 10)
    async with Consumer(namesrv, "g", "T") as consumer:
        assert await numbers(consumer, 2) == [0, 1]
        consumer.pause()
        assert await consumer.get_many(5, wait_s=0.1) == []
        consumer.resume()
        assert await numbers(consumer, 2) == [2, 3]


async def test_seeking_goes_back_and_forth_and_is_committed(namesrv: str) -> None:
    await filled(namesrv, 10)
    async with Consumer(namesrv, "g", "T") as consumer:
        assert await numbers(consumer, 5) == [0, 1, 2, 3, 4]
        (queue,) = (queue for queue in consumer.assignment if queue.topic == "T")
        consumer.seek(queue, 8)
        assert consumer.positions[queue] == 8
        assert await numbers(consumer, 2) == [8, 9]
        consumer.seek(queue, 1)
        assert await numbers(consumer, 1) == [1]
        await consumer.seek_to_time(datetime.fromtimestamp(0, UTC))
        assert await numbers(consumer, 3) == [0, 1, 2]
        with pytest.raises(InvalidArgumentError, match="not assigned"):
            consumer.seek(MessageQueue("T", "elsewhere", 0), 0)
        with pytest.raises(InvalidArgumentError, match="negative"):
            consumer.seek(queue, -1)
    async with Admin(namesrv) as admin:
        assert [one.committed for one in await admin.progress("g", "T")] == [3]


async def test_the_program_is_told_of_queues_that_come_and_go(namesrv: str) -> None:
    await filled(namesrv, 0, queue_count=2)
    told: list[tuple[str, int]] = []

    async def came(queues: tuple[MessageQueue, ...]) -> None:
        told.append(("came", len(queues)))

    def went(queues: tuple[MessageQueue, ...]) -> None:
        told.append(("went", sum(queue.topic == "T" for queue in queues)))

    def ours() -> int:
        return sum(queue.topic == "T" for queue in consumer.assignment)

    async with Consumer(namesrv, "g", "T", on_assigned=came, on_revoked=went) as consumer:
        await eventually(lambda: ours() == 2)
        async with Consumer(namesrv, "g", "T"):
            await eventually(lambda: ours() == 1)
    assert ("came", 2) in told
    assert ("went", 1) in told


async def test_a_callback_that_fails_is_told_where_messages_are_awaited(namesrv: str) -> None:
    await filled(namesrv, 0)

    def came(queues: tuple[MessageQueue, ...]) -> None:
        raise ValueError("mine")

    async with Consumer(namesrv, "g", "T", on_assigned=came) as consumer, asyncio.timeout(WAIT_S):
        with pytest.raises(ValueError, match="mine"):
            await anext(consumer)


async def test_in_broadcasting_each_member_reads_on_where_its_file_says(namesrv: str, tmp_path: Path) -> None:
    await filled(namesrv, 6)

    def member(name: str) -> Consumer:
        return Consumer(namesrv, "g", "T", mode="broadcasting", offsets_dir=tmp_path / name)

    for name in ("a", "b"):
        async with member(name) as consumer:
            assert await numbers(consumer, 4) == [0, 1, 2, 3]
        async with member(name) as consumer:
            assert await numbers(consumer, 2) == [4, 5]
            with pytest.raises(InvalidArgumentError, match="broadcasting"):
                await consumer.retry(_message(0))
    (file,) = (tmp_path / "a").rglob("offsets.json")
    assert file.parent.name == "g"
    assert file.read_bytes() == b'{"offsetTable":{{"brokerName":"broker","queueId":0,"topic":"T"}:6}}'
    older = file.with_name("offsets.json.bak")
    before = older.read_bytes()
    file.replace(older)  # died between the two renames
    async with member("a") as consumer:
        await eventually(lambda: list(consumer.positions.values()) == [6])
    older.write_bytes(before)
    file.write_bytes(b"{")
    async with member("a") as consumer:  # the one before is taken
        await numbers(consumer, 1)
    file.write_bytes(b"{")
    file.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(UndecodableError, match=r"offsets\.json"):
        await member("a").start()


async def test_a_condition_chooses_messages_and_a_bad_one_is_told(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", {"T": Sql("price > 5")}):
        await eventually(lambda: any(c.ext.get("expressionType") == "SQL92" for c in broker.seen))
    (pull,) = [c for c in broker.seen if c.ext.get("expressionType") == "SQL92"][:1]
    assert pull.ext["subscription"] == "price > 5"
    with pytest.raises(InvalidArgumentError):
        Consumer(cluster.namesrv, "g", {"T": Sql(" ")})
    monkeypatch.setattr("ledgermq.client.consumer.queue_reader.PATIENCE_S", 0.1)
    monkeypatch.setattr("ledgermq.client.consumer.queue_reader.GIVE_UP_PAUSE_S", 0.05)
    broker.plan(11, *[refuse(1, "does not support consumer to filter message by SQL92")] * 100)
    async with Consumer(cluster.namesrv, "g2", {"T": Sql("price > 5")}) as consumer, asyncio.timeout(WAIT_S):
        with pytest.raises(Exception, match="SQL92"):
            await anext(consumer)


async def test_a_replica_that_is_suggested_is_read_from_and_left_when_it_fails(cluster: FakeCluster) -> None:
    leader, replica = await cluster.add(nodes=2, topics={"T": 1})
    leader.ledger.append("T", 0, b"0", b"")
    suggestion = {"nextBeginOffset": "0", "suggestWhichBrokerId": "2"}
    leader.plan(11, refuse(20, **suggestion))
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        assert await numbers(consumer, 1) == [0]
        await eventually(lambda: replica.count(11) == 1, "it refuses, and the leader is asked again")


async def test_a_replica_is_read_from_when_nobody_leads_for_long(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgermq.client.consumer.queue_reader.LEADERLESS_PATIENCE_S", 0.1)
    leader, replica = await cluster.add(nodes=2, topics={"T": 1})
    replica.handlers[11] = replica._pull  # as a slave does, which may be read from
    leader.ledger.append("T", 0, b"0", b"")
    async with Consumer(cluster.namesrv, "g", "T", auto_commit_s=None) as consumer:
        assert await numbers(consumer, 1) == [0]
        await cluster.kill(leader)
        leader.ledger.append("T", 0, b"1", b"")
        assert await numbers(consumer, 1) == [1]


async def test_a_broker_that_has_lost_our_subscription_is_told_again(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", "T"):
        await eventually(lambda: broker.count(11) > 0)
        before = len(broker.beats)
        broker.plan(11, refuse(25, "not latest"))
        broker.release()
        await eventually(lambda: len(broker.beats) > before)


def _message(offset: int) -> Message:
    host = Host("127.0.0.1", 1)
    record = Record("T", 0, 0, 0, offset, 0, 1, host, 2, host, 0, 0, b"x", b"", 0, 100)
    return Message(record, MessageQueue("T", "b", 0))


def _state(backlog: Backlog) -> tuple[int | None, int]:
    return backlog.handled, backlog.span


def test_a_backlog_commits_what_has_no_gap_before_it() -> None:
    backlog = Backlog()
    assert _state(backlog) == (None, 0)
    backlog.next_offset = 10
    backlog.add([_message(offset) for offset in (10, 12, 15)])
    backlog.next_offset = 20
    assert _state(backlog) == (10, 6)
    taken = [backlog.take() for _ in range(3)]
    backlog.done(taken[1])
    assert _state(backlog) == (10, 6)
    backlog.done(taken[0])
    assert _state(backlog) == (15, 1)
    backlog.move(3)
    backlog.done(taken[2])
    assert _state(backlog) == (3, 0)


def test_a_backlog_that_is_dropped_does_not_commit_what_was_never_taken() -> None:
    backlog = Backlog()
    backlog.next_offset = 0
    backlog.add([_message(offset) for offset in range(4)])
    backlog.next_offset = 4
    first = backlog.take()
    backlog.drop()
    assert (backlog.handled, backlog.is_dropped) == (0, True)
    backlog.done(first)
    assert backlog.handled == 1


def test_rates_are_those_of_the_last_minute() -> None:
    now = 0.0
    figures = TopicFigures(lambda: now)
    for _ in range(30):
        figures.handled("T", 0.5, is_ok=True)
    figures.handled("T", 0.5, is_ok=False)
    figures.pulled("T", 0.01, 60)
    told = figures.to_wire("T")
    assert (told["consumeOKTPS"], told["consumeRT"], told["pullTPS"], told["pullRT"]) == (0.5, 500.0, 1.0, 10.0)
    now = 100.0
    assert figures.to_wire("T") == {
        "consumeFailedMsgs": 1,
        "consumeFailedTPS": 0.0,
        "consumeOKTPS": 0.0,
        "consumeRT": 0.0,
        "pullRT": 0.0,
        "pullTPS": 0.0,
    }
    assert json.dumps(figures.to_wire("unknown"))
