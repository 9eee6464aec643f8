"""A consumer: what it reads, where it begins, what it commits, and how a group shares its queues."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledgermq.client import Consumer, Message, MessageQueue, Producer
from ledgermq.client.consumer import queue_reader
from ledgermq.client.errors import ClosedError, InvalidArgumentError, PermissionDeniedError
from ledgermq.client.group import membership
from ledgermq.client.group.membership import Membership
from ledgermq.client.group.subscription import Mode
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.conftest import StartCluster
from tests.client.fake import FakeBroker, FakeCluster, eventually, hang_up, ignore, refuse
from tests.limits import WAIT_S

PULL, COMMIT = RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "RETRY_S", 0.05)
    monkeypatch.setattr(membership, "SETTLING_S", 0.1)
    monkeypatch.setattr(queue_reader, "BACK_PAUSE_S", 0.02)
    monkeypatch.setattr(queue_reader, "GIVE_UP_PAUSE_S", 0.02)
    monkeypatch.setattr(queue_reader, "PATIENCE_S", 0.1)


def fill(broker: FakeBroker, count: int, topic: str = "T", queue_id: int = 0, tag: str = "") -> None:
    for number in range(count):
        properties = f"TAGS\x01{tag}\x02" if tag else ""
        broker.ledger.append(topic, queue_id, b"%d" % number, properties.encode())
    broker.wake()


async def read(consumer: Consumer, count: int) -> list[Message]:
    """The next messages."""
    messages: list[Message] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            messages.append(message)
            if len(messages) == count:
                break
    return messages


@contextlib.asynccontextmanager
async def reading(consumer: Consumer) -> AsyncIterator[list[Message]]:
    """Read on in the background."""
    messages: list[Message] = []

    async def run() -> None:
        async for message in consumer:
            messages.append(message)

    task = asyncio.ensure_future(run())
    try:
        yield messages
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


# -- reading


async def test_messages_come_in_the_order_of_their_queue(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 100)
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        assert bodies(await read(consumer, 100)) == [b"%d" % number for number in range(100)]
        fill(broker, 3)
        assert [message.queue_offset for message in await read(consumer, 3)] == [100, 101, 102]


async def test_all_queues_of_all_brokers_are_read(cluster: FakeCluster) -> None:
    brokers = [(await cluster.add(name, topics={"T": 2}))[0] for name in ("b1", "b2")]
    for broker in brokers:
        fill(broker, 100, queue_id=0)
        fill(broker, 100, queue_id=1)
    async with Consumer(cluster.namesrv, "g", ["T"]) as consumer:
        messages = await read(consumer, 400)
    for queue in (MessageQueue("T", name, queue_id) for name in ("b1", "b2") for queue_id in (0, 1)):
        assert [message.queue_offset for message in messages if message.queue == queue] == list(range(100))


async def test_only_the_tags_asked_for_are_delivered_and_the_rest_counts_as_handled(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    for tag in ("Aa", "BB", "", "c", "BB"):  # "Aa" and "BB" have the same hash
        fill(broker, 1, tag=tag)
    async with Consumer(cluster.namesrv, "g", {"T": "Aa || c"}) as consumer:
        assert [message.tags for message in await read(consumer, 2)] == ["Aa", "c"]
        await consumer.commit()
    assert broker.ledger.offsets["T", "g", 0] == 5


async def test_many_messages_can_be_taken_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 50)
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        messages: list[Message] = []
        while len(messages) < 50:
            got = await consumer.get_many(20, wait_s=WAIT_S)
            assert 0 < len(got) <= 20
            messages += got
        assert bodies(messages) == [b"%d" % number for number in range(50)]
        assert await consumer.get_many(20, wait_s=0.01) == []


async def test_what_is_read_ahead_is_bounded(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 2000)
    async with Consumer(cluster.namesrv, "g", "T", prefetch_messages=100) as consumer:
        await read(consumer, 1)
        await eventually(lambda: broker.count(PULL) >= 2)
        await asyncio.sleep(0.05)
        asked = [int(command.ext["queueOffset"]) for command in broker.seen if command.code == PULL]
        assert max(asked) <= 100
        assert len(await read(consumer, 1999)) == 1999


async def test_a_topic_that_comes_later_is_read_from_its_coming_on(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"other": 1})
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 0)
        broker.ledger.topics["T"] = 1
        fill(broker, 2)
        cluster.changed()
        assert bodies(await read(consumer, 2)) == [b"0", b"1"]


async def test_a_topic_that_nobody_knows_is_said_once(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.add(topics={"other": 1})
    async with Consumer(cluster.namesrv, "g", "Mispelt"):
        await eventually(lambda: "no route for topic 'Mispelt'" in caplog.text)
        await asyncio.sleep(0.05)
    assert caplog.text.count("Mispelt") == 1


# -- where it begins


@pytest.mark.parametrize(("start", "expected"), [("first", 10), ("last", 30), (datetime(2020, 1, 1, tzinfo=UTC), 10)])
async def test_a_new_group_begins_where_it_is_told_and_commits_that_at_once(
    cluster: FakeCluster, start: queue_reader.FindStart, expected: int
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 20)
    broker.ledger.first_offsets["T", 0] = 10
    async with Consumer(cluster.namesrv, "g", "T", start=start):  # type: ignore[arg-type]  # parametrized
        await eventually(lambda: broker.ledger.offsets.get(("T", "g", 0)) == expected)
        await eventually(lambda: broker.count(PULL) > 0)
    first_pull = next(command for command in broker.seen if command.code == PULL)
    assert int(first_pull.ext["queueOffset"]) == expected


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_what_is_sent_once_a_consumer_from_the_end_is_open_is_read(
    cluster: FakeCluster, tmp_path: Path, mode: Mode
) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    fill(broker, 7)
    async with Consumer(cluster.namesrv, "g", "T", mode=mode, start="last", offsets_dir=tmp_path) as consumer:
        assert {queue.queue_id: offset for queue, offset in consumer.positions.items()} == {0: 7, 1: 0}
        fill(broker, 10)
        assert [message.queue_offset for message in await read(consumer, 10)] == list(range(7, 17))


async def test_a_consumer_from_the_end_opens_without_its_brokers_and_says_so(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.silent = True
    async with asyncio.timeout(WAIT_S):
        async with Consumer(cluster.namesrv, "g", "T", start="last", deadline_s=0.2) as consumer:
            assert not consumer.positions
    assert "brokers have not returned the ends of its queues" in caplog.text


async def test_opening_that_is_cancelled_leaves_no_member_behind(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(RequestCode.GET_MAX_OFFSET, ignore)
    before = asyncio.all_tasks()
    opening = asyncio.ensure_future(Consumer(cluster.namesrv, "g", "T", start="last").start())
    await eventually(lambda: broker.count(RequestCode.GET_MAX_OFFSET) > 0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await eventually(lambda: not broker.members["g"])
    await eventually(lambda: asyncio.all_tasks() - before == set())


async def test_a_group_goes_on_where_it_has_committed(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    broker.ledger.offsets["T", "g", 0] = 7
    async with Consumer(cluster.namesrv, "g", "T", start="last") as consumer:
        assert bodies(await read(consumer, 3)) == [b"7", b"8", b"9"]


async def test_an_offset_that_was_deleted_meanwhile_moves_to_the_oldest_kept(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.ledger.first_offsets["T", 0] = 100
    fill(broker, 5)
    broker.ledger.offsets["T", "g", 0] = 7
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        assert (await read(consumer, 1))[0].queue_offset == 100


async def test_a_leader_whose_queue_ends_before_our_offset_is_not_believed_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 5)
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await read(consumer, 5)
        await eventually(lambda: broker.count(PULL) >= 2)  # the one that is held asks from 5 on
        lost = broker.ledger.queues["T", 0][2:]
        del broker.ledger.queues["T", 0][2:]
        broker.wake()
        await eventually(lambda: broker.count(PULL) >= 3)
        broker.ledger.queues["T", 0] += lost
        fill(broker, 1)
        assert [message.queue_offset for message in await read(consumer, 1)] == [5]


async def test_an_offset_reset_by_an_administrator_is_obeyed_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 5)
    broker.ledger.offsets["T", "g", 0] = 5
    broker.plan(PULL, refuse(21, "OFFSET_RESET", nextBeginOffset="3"))
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        assert bodies(await read(consumer, 2)) == [b"3", b"4"]
        await consumer.commit()
    assert broker.ledger.offsets["T", "g", 0] == 5


async def test_a_queue_that_stays_shorter_is_read_on_from_its_end(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 2)
    broker.ledger.offsets["T", "g", 0] = 7
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await eventually(lambda: broker.count(PULL) >= 5)
        fill(broker, 1)
        assert [message.queue_offset for message in await read(consumer, 1)] == [2]


# -- what it commits


async def test_commit_includes_the_message_in_hand(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    async with Consumer(cluster.namesrv, "g", "T", auto_commit_s=None) as consumer:
        async for message in consumer:
            if message.queue_offset == 4:
                await consumer.commit()
                break
        assert broker.ledger.offsets["T", "g", 0] == 5
        await read(consumer, 2)
    assert broker.ledger.offsets["T", "g", 0] == 5, "nothing is committed unasked"


async def test_what_is_handled_is_committed_now_and_then(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    async with Consumer(cluster.namesrv, "g", "T", auto_commit_s=0.02) as consumer:
        await read(consumer, 4)
        await eventually(lambda: broker.ledger.offsets["T", "g", 0] == 3)
        await asyncio.sleep(0.05)
        assert broker.ledger.offsets["T", "g", 0] == 3, "the fourth is still in hand"


async def test_a_block_that_ends_well_has_handled_its_last_message(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await read(consumer, 4)
    assert broker.ledger.offsets["T", "g", 0] == 4


async def test_a_block_that_ends_badly_has_not_handled_its_last_message(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    with pytest.raises(RuntimeError, match="the handler's own"):
        async with Consumer(cluster.namesrv, "g", "T") as consumer:
            await read(consumer, 4)
            raise RuntimeError("the handler's own")
    assert broker.ledger.offsets["T", "g", 0] == 3


async def test_a_commit_survives_a_connection_that_breaks(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    async with Consumer(cluster.namesrv, "g", "T", attempt_timeout_s=0.1) as consumer:
        await read(consumer, 10)
        broker.plan(COMMIT, hang_up, refuse(14), ignore)
        await asyncio.wait_for(consumer.commit(), WAIT_S)
        assert broker.ledger.offsets["T", "g", 0] == 10


async def test_iteration_ends_when_the_consumer_is_closed(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    consumer = Consumer(cluster.namesrv, "g", "T")
    await consumer.start()
    async with asyncio.timeout(WAIT_S):
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(consumer.close()))
        assert [message async for message in consumer] == []
        await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.get_many(1)


async def test_a_reader_that_is_not_allowed_to_read_is_told(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(PULL, *[refuse(16, "the topic[T] pulling message is forbidden")] * 1000)
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        with pytest.raises(PermissionDeniedError, match="forbidden"):
            await read(consumer, 1)


@pytest.mark.parametrize(
    ("group", "topics", "start"),
    [
        ("g g", "T", "first"),
        ("g", [], "first"),
        ("g", "T T", "first"),
        ("g", {"T": "||"}, "first"),
        ("g", "T", "middle"),
    ],
)
def test_bad_arguments_are_refused(group: str, topics: str | list[str] | dict[str, str], start: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Consumer("127.0.0.1:1", group, topics, start=start)  # type: ignore[arg-type]  # wrong on purpose


# -- failover


@pytest.mark.parametrize("holds", [True, False], ids=["held questions", "polling"])
async def test_reading_goes_on_at_the_next_leader_without_a_gap_or_a_repeat(
    start_cluster: StartCluster, holds: bool
) -> None:
    cluster = await start_cluster(holds=holds)
    old, new = await cluster.add(nodes=2, topics={"T": 2})
    async with (
        Consumer(cluster.namesrv, "g", "T") as consumer,
        reading(consumer) as messages,
        Producer(cluster.namesrv) as producer,
    ):
        for number in range(100):
            await producer.send("T", b"%d" % number, queue=number % 2)
        await eventually(lambda: len(messages) == 100)
        await cluster.kill(old)
        cluster.lead(new)
        for number in range(100, 200):
            await producer.send("T", b"%d" % number, queue=number % 2)
        await eventually(lambda: len(messages) >= 200)
    for queue_id in (0, 1):
        got = [int(message.body) for message in messages if message.queue_id == queue_id]
        assert got == list(range(queue_id, 200, 2))
    await eventually(lambda: new.ledger.offsets == {("T", "g", 0): 100, ("T", "g", 1): 100} | retry_offset(new))


def retry_offset(broker: FakeBroker) -> dict[tuple[str, str, int], int]:
    return {key: offset for key, offset in broker.ledger.offsets.items() if key[0].startswith("%RETRY%")}


async def test_a_pull_held_by_a_node_that_leads_no_more_is_not_waited_for(cluster: FakeCluster) -> None:
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await eventually(lambda: old.count(PULL) > 0)
        old.silent = True  # it is paused: the connection stays, the pull is never answered
        cluster.lead(new)
        fill(new, 1)
        assert bodies(await read(consumer, 1)) == [b"0"]


async def test_a_new_leader_is_told_of_the_member_at_once(cluster: FakeCluster) -> None:
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", "T"):
        await eventually(lambda: bool(old.members["g"]) and bool(new.members["g"]))


# -- the group


async def test_members_share_the_queues_and_take_over_those_of_one_that_leaves(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    async with Consumer(cluster.namesrv, "g", "T") as first:
        await eventually(lambda: len(owned(first)) == 4)
        async with Consumer(cluster.namesrv, "g", "T") as second:
            await eventually(lambda: len(owned(first)) == len(owned(second)) == 2)
            assert not owned(first) & owned(second)
        await eventually(lambda: len(owned(first)) == 4)
    assert not broker.members["g"]


def owned(consumer: Consumer) -> set[MessageQueue]:
    return {queue for queue in consumer.assignment if queue.topic == "T"}


async def test_messages_are_delivered_once_when_members_come_and_go_in_peace(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    seen: list[tuple[int, int]] = []

    async def member(count: int) -> None:
        async with Consumer(cluster.namesrv, "g", "T") as consumer:
            async with asyncio.timeout(WAIT_S):
                async for message in consumer:
                    seen.append((message.queue_id, message.queue_offset))
                    await consumer.commit()
                    count -= 1
                    if not count:
                        return

    async with Consumer(cluster.namesrv, "g", "T") as steady:
        await eventually(lambda: len(owned(steady)) == 4)
        task = asyncio.ensure_future(member(30))
        await eventually(lambda: len(owned(steady)) == 2)
        for _ in range(20):
            for queue_id in range(4):
                fill(broker, 1, queue_id=queue_id)
            await asyncio.sleep(0.001)
        await task
        while len(set(seen)) < 80:
            async with asyncio.timeout(WAIT_S):
                message = await anext(steady)
                seen.append((message.queue_id, message.queue_offset))
    assert sorted(seen) == [(queue_id, offset) for queue_id in range(4) for offset in range(20)]


async def test_a_queue_given_up_is_committed_first(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    fill(broker, 5, queue_id=0)
    fill(broker, 5, queue_id=1)
    async with Consumer(cluster.namesrv, "g", "T", auto_commit_s=600) as first:
        await read(first, 10)
        assert await first.get_many(1, wait_s=0.01) == []  # all ten are handled
        async with Consumer(cluster.namesrv, "g", "T") as second:
            await eventually(lambda: len(owned(second)) == 1)
            (queue,) = owned(second)
            fill(broker, 1, queue_id=queue.queue_id)
            assert [message.queue_offset for message in await read(second, 1)] == [5]


async def test_a_member_missing_from_the_list_tells_of_itself_before_it_gives_up_anything(
    cluster: FakeCluster,
) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await eventually(lambda: len(owned(consumer)) == 2)
        broker.members["g"].clear()  # as after a restart
        assert consumer._parts is not None
        consumer._parts.membership.rebalance_soon()
        await eventually(lambda: len(broker.members["g"]) == 1)
        assert len(owned(consumer)) == 2


async def test_a_member_whose_connection_broke_is_a_member_again_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        await eventually(lambda: len(owned(consumer)) == 2 and broker.count(PULL) >= 2)
        beats = len(broker.beats)
        broker.hang_up_on_all()
        await eventually(lambda: len(broker.beats) > beats and len(broker.members["g"]) == 1)
        fill(broker, 1)
        assert bodies(await read(consumer, 1)) == [b"0"]


async def test_heartbeats_carry_the_subscriptions_and_the_retry_topic(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", {"T": "a||b"}, start="last"):
        await eventually(lambda: bool(broker.beats))
    (data,) = broker.beats[0]["consumerDataSet"]
    assert (data["groupName"], data["messageModel"], data["consumeFromWhere"]) == (
        "g",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    by_topic = {entry["topic"]: entry for entry in data["subscriptionDataSet"]}
    assert set(by_topic) == {"T", "%RETRY%g"}
    assert (by_topic["T"]["tagsSet"], by_topic["T"]["codeSet"]) == (["a", "b"], [97, 98])


async def test_messages_of_the_retry_topic_are_read_too(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1, "%RETRY%g": 1})
    broker.ledger.append("%RETRY%g", 0, b"again", b"RETRY_TOPIC\x01T\x02")
    async with Consumer(cluster.namesrv, "g", "T") as consumer:
        (message,) = await read(consumer, 1)
    assert (message.topic, message.queue.topic, message.body) == ("T", "%RETRY%g", b"again")


async def test_pulls_that_fail_at_random_neither_lose_nor_disorder_messages(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    kinds = [hang_up, refuse(14), refuse(2), refuse(1), refuse(20, nextBeginOffset="0")]
    generator = random.Random(5)
    broker.plan(PULL, *(generator.choice(kinds) for _ in range(40)))
    fill(broker, 300, queue_id=0)
    fill(broker, 300, queue_id=1)
    async with Consumer(cluster.namesrv, "g", "T", prefetch_messages=50) as consumer:
        messages = await read(consumer, 600)
    for queue_id in (0, 1):
        assert [m.queue_offset for m in messages if m.queue_id == queue_id] == list(range(300))


async def test_a_notice_that_comes_with_the_close_does_not_hold_it_up(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    consumer = Consumer(cluster.namesrv, "g", "T")
    await consumer.start()
    await eventually(lambda: bool(consumer.assignment))
    assert consumer._parts is not None
    membership = consumer._parts.membership
    assert isinstance(membership, Membership)
    await eventually(lambda: bool(membership._due._waiters), "it waits for the next look")
    membership.rebalance_soon()
    async with asyncio.timeout(WAIT_S):
        await consumer.close()
