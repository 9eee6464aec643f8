"""What an Admin must be able to do with any cluster: called with ours and with the real Java one."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from ledgermq.client import Admin, Consumer, GroupConfig, Message, Producer
from ledgermq.client.errors import GroupNotFoundError, NotFoundError
from tests.client.consumer.test_handling import handled
from tests.client.fake import eventually
from tests.limits import WAIT_S


async def topics(namesrv: str, topic: str) -> None:
    """Made, listed, changed, counted, deleted."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, 2, attributes={"message.type": "NORMAL"})
        assert topic in await admin.topics()
        (cluster,) = (await admin.cluster()).clusters
        assert topic in await admin.topics(cluster=cluster)
        await admin.update_topic(topic, read_queue_count=4, write_queue_count=4)
        (config,) = (await admin.topic_config(topic)).values()
        assert (config.read_queue_count, config.write_queue_count, config.permission) == (4, 4, 6)
        assert config.attributes.get("message.type") in ("NORMAL", None)
        await producer.send(topic, b"x", queue=(await admin.queues(topic))[1])
        stats = {one.queue.queue_id: one for one in await admin.topic_stats(topic)}
        assert (stats[0].end, stats[1].end) == (0, 1)
        assert stats[1].last_stored_ms > 0
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()


async def groups(namesrv: str, group: str) -> None:
    """Made, listed, changed, deleted."""
    async with Admin(namesrv) as admin:
        await admin.create_group(GroupConfig(group, retry_max=3, may_broadcast=False))
        assert group in await admin.groups()
        (config,) = (await admin.group_config(group)).values()
        assert (config.retry_max, config.may_broadcast, config.may_consume) == (3, False, True)
        await admin.update_group(group, retry_max=5)
        (config,) = (await admin.group_config(group)).values()
        assert (config.retry_max, config.may_broadcast) == (5, False)
        await admin.delete_group(group, clean_offsets=True)
        assert group not in await admin.groups()
        with pytest.raises(NotFoundError):
            await admin.connections(group)


async def consumers(namesrv: str, topic: str) -> None:
    """Who is there, how they are, what they make of a message; moved by a reset."""
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(int(message.body))
        if message.body == b"3" and len(seen) > 10:
            raise ValueError("three")

    group = f"{topic}-g"
    async with Admin(namesrv) as admin, Producer(namesrv) as producer, asyncio.timeout(2 * WAIT_S):
        await admin.create_topic(topic, 1)
        sent = [await producer.send(topic, b"%d" % n) for n in range(10)]
        consumer = Consumer(namesrv, group, topic, auto_commit_s=0.1)
        async with handled(consumer, handle):
            await eventually(lambda: len(seen) == 10)
            (client_id,) = await admin.members(group)
            connections = await admin.connections(group)
            assert [member.client_id for member in connections.members] == [client_id]
            assert connections.subscriptions[topic] == "*"
            state = await admin.consumer_state(group, client_id, stacks=True)
            assert {queue.topic for queue in state.commits} >= {topic}
            assert state.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert state.rates[topic]["consumeOKTPS"] > 0
            assert "handle" in (state.stacks or "handle")
            three = await admin.view_message(sent[3].offset_message_id)
            fine = await admin.view_message(sent[4].offset_message_id)
            assert (await admin.handle_directly(group, client_id, fine)).result == "CR_SUCCESS"
            failed = await admin.handle_directly(group, client_id, three)
            assert (failed.result, "three" in failed.remark) == ("CR_THROW_EXCEPTION", True)
            await asyncio.gather(*(consumer.commit() for _ in range(2)))
            assert {one.lag for one in await admin.group_progress(group) if one.queue.topic == topic} == {0}
            assert topic in await admin.topics_of(group)
            assert group in await admin.consumers_of(topic)
            seen.clear()
            table = await admin.reset_offsets(group, topic, "first")
            assert set(table.values()) == {0}
            await producer.send(topic, b"10")  # Java's broker tells of a reset when it answers a held pull
            await eventually(lambda: sorted(seen) == list(range(11)), f"read again after the reset: {seen}")


async def offsets(namesrv: str, topic: str) -> None:
    """Reset while nobody is there, cloned."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer, asyncio.timeout(2 * WAIT_S):
        await admin.create_topic(topic, 1)
        for n in range(5):
            await producer.send(topic, b"%d" % n)
        async with Consumer(namesrv, f"{topic}-a", topic) as consumer:
            messages = [await anext(consumer) for _ in range(5)]
        await admin.set_offset(f"{topic}-a", messages[0].queue, 3)
        with pytest.raises(GroupNotFoundError):
            await admin.clone_offsets(f"{topic}-a", f"{topic}-b", topic)
        await admin.create_group(f"{topic}-b")
        assert set((await admin.clone_offsets(f"{topic}-a", f"{topic}-b", topic)).values()) == {3}
        async with Consumer(namesrv, f"{topic}-b", topic) as consumer:
            assert (await anext(consumer)).body == b"3"
        await admin.reset_offsets(f"{topic}-a", topic, "first")
        assert [one.committed for one in await admin.progress(f"{topic}-a", topic)] == [0]
        await admin.reset_offsets(f"{topic}-a", topic, "last")
        assert [one.committed for one in await admin.progress(f"{topic}-a", topic)] == [5]


async def messages(namesrv: str, topic: str) -> None:
    """Found by key, id and time; dead letters listed and sent again."""
    begin = datetime.now(UTC) - timedelta(seconds=5)
    group = f"{topic}-g"
    async with Admin(namesrv) as admin, Producer(namesrv) as producer, asyncio.timeout(2 * WAIT_S):
        await admin.create_topic(topic, 2)
        sent = [await producer.send(topic, b"%d" % n, keys=["all", f"k{n}"], tags="t") for n in range(5)]
        while len(found := await admin.find_by_key(topic, "all")) < 5:
            await asyncio.sleep(0.05)
        assert sorted(message.body for message in found) == [b"%d" % n for n in range(5)]
        assert [message.body for message in await admin.find_by_key(topic, "k3")] == [b"3"]
        assert await admin.find_by_key(topic, "nothing") == []
        (copy,) = await admin.find_by_id(topic, sent[2].message_id)
        assert (copy.body, copy.queue) == (b"2", sent[2].queue)
        end = datetime.now(UTC) + timedelta(seconds=5)
        assert len(await admin.find_by_time(topic, begin, end)) == 5
        assert await admin.find_by_time(topic, begin - timedelta(days=1), begin) == []
        async with Consumer(namesrv, group, topic) as consumer:
            message = await anext(consumer)
            await consumer.dead_letter(message)
            while not (letters := await admin.dead_letters(group)):
                await asyncio.sleep(0.05)
            assert [letter.body for letter in letters] == [message.body]
            queue = await admin.resend(letters[0])
            assert queue.topic == topic
            bodies = [(await anext(consumer)).body for _ in range(5)]
            assert bodies.count(message.body) == 1, "the others, and it again"


async def settings(namesrv: str, name: str) -> None:
    """Settings and figures of brokers and nameservers, values, permissions."""
    async with Admin(namesrv) as admin:
        (broker,) = (await admin.cluster()).brokers
        assert "brokerName" in await admin.broker_config(broker)
        await admin.update_broker_config(broker, {"longPollingEnable": "true"})
        assert (await admin.broker_config(broker))["longPollingEnable"] == "true"
        assert "msgPutTotalTodayNow" in await admin.broker_info(broker)
        assert "listenPort" in await admin.nameserver_config()
        await admin.update_nameserver_config({"unRegisterBrokerQueueCapacity": "3001"})
        assert (await admin.nameserver_config())["unRegisterBrokerQueueCapacity"] == "3001"
        await admin.put_value("N", name, "text")
        assert await admin.value("N", name) == "text"
        assert (await admin.values("N"))[name] == "text"
        await admin.delete_value("N", name)
        assert await admin.value("N", name) is None
        assert await admin.wipe_write_permission(broker) > 0
        assert await admin.add_write_permission(broker) > 0
