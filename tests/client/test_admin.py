"""Administration over the wire."""

import asyncio
from functools import partial

import pytest

from ledgermq.client import Admin, Consumer, MessageQueue, Producer
from ledgermq.client.errors import (
    InvalidArgumentError,
    InvalidRequestError,
    NoBrokerError,
    NoRouteError,
    NotFoundError,
)
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.conftest import StartCluster
from tests.client.fake import FakeCluster, eventually, hang_up, refuse
from tests.limits import WAIT_S


async def test_a_topic_is_created_at_every_leader_and_routed_when_the_call_returns(cluster: FakeCluster) -> None:
    await cluster.add("b1", nodes=2)
    await cluster.add("b2")
    async with Admin(cluster.namesrv) as admin:
        route = await admin.create_topic("T", queue_count=3)
        assert len(route.write_queues) == 6
        assert await admin.queues("T") == route.write_queues
        info = await admin.cluster()
    assert info.clusters == {"C": ("b1", "b2")}
    assert len(info.brokers["b1"].addresses) == 2


async def test_creating_follows_a_leader_that_changes(cluster: FakeCluster) -> None:
    old, new = await cluster.add(nodes=2)
    old.plan(RequestCode.UPDATE_AND_CREATE_TOPIC, hang_up, refuse(14))
    async with Admin(cluster.namesrv) as admin:
        creation = asyncio.ensure_future(admin.create_topic("T"))
        await eventually(lambda: old.count(RequestCode.UPDATE_AND_CREATE_TOPIC) >= 2)
        cluster.lead(new)
        await creation
    assert new.count(RequestCode.UPDATE_AND_CREATE_TOPIC) == 1


async def test_a_refusal_for_good_is_raised_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add()
    broker.plan(RequestCode.UPDATE_AND_CREATE_TOPIC, refuse(29, "conflict with system topic"))
    async with Admin(cluster.namesrv) as admin:
        with pytest.raises(InvalidRequestError, match="system topic"):
            await admin.create_topic("T")
        with pytest.raises(InvalidArgumentError, match="'D' is not registered; these are: C"):
            await admin.create_topic("T", cluster="D")


async def test_a_topic_is_created_on_the_first_broker_that_registers(cluster: FakeCluster) -> None:
    async with Admin(cluster.namesrv, deadline_s=WAIT_S) as admin:
        creation = asyncio.ensure_future(admin.create_topic("T", queue_count=3))
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_BROKER_CLUSTER_INFO) > 1)
        await cluster.add()
        assert len((await creation).write_queues) == 3


async def test_a_nameserver_that_knows_no_broker_hides_no_other_one(start_cluster: StartCluster) -> None:
    cluster = await start_cluster(nameserver_count=2)
    await cluster.add()
    empty = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    cluster.nameserver.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda connection, command: connection.respond(
        command, 0, {}, empty
    )
    async with Admin(cluster.namesrv, deadline_s=5) as admin:
        assert (await admin.create_topic("T", queue_count=3)).write_queues


async def test_lists_that_are_asked_for_at_once_find_the_nameserver_that_knows_a_broker(
    start_cluster: StartCluster,
) -> None:
    cluster = await start_cluster(nameserver_count=2)
    (broker,) = await cluster.add()
    broker.handlers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = lambda connection, command: connection.respond(
        command, 0, {}, b'{"subscriptionGroupTable":{}}'
    )
    empty = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    cluster.nameserver.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda connection, command: connection.respond(
        command, 0, {}, empty
    )
    async with Admin(cluster.namesrv) as admin:
        assert await asyncio.gather(*(admin.groups() for _ in range(4))) == [()] * 4


async def test_without_a_broker_nothing_is_done_and_the_error_says_why(cluster: FakeCluster) -> None:
    async with Admin(cluster.namesrv, deadline_s=0.05) as admin:
        for act in (admin.create_topic, admin.delete_topic):
            with pytest.raises(NoBrokerError, match=f"no nameserver of {cluster.namesrv} names a broker:"):
                await act("T")
    assert not cluster.nameserver.count(RequestCode.DELETE_TOPIC_IN_NAMESRV)


async def test_lists_without_a_broker_end_at_once(start_cluster: StartCluster) -> None:
    """Each nameserver is asked once; who creates something waits for the first broker."""
    cluster = await start_cluster(nameserver_count=2)
    async with Admin(cluster.namesrv, deadline_s=WAIT_S) as admin:
        lists = (admin.groups, admin.users, partial(admin.members, "g"), partial(admin.group_progress, "g"))
        for listing in lists:
            with pytest.raises(NoBrokerError):
                await listing()
    asked = [nameserver.count(RequestCode.GET_BROKER_CLUSTER_INFO) for nameserver in cluster.nameservers]
    assert asked == [len(lists)] * 2


async def test_the_route_of_a_deleted_topic_is_awaited_and_not_asked_for_again_and_again(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
        await producer.send("T", b"x")
        await admin.delete_topic("T")
        await eventually(lambda: any(one.ext["knownVersion"] == "0" for _, one in cluster.nameserver._held))
        await admin.create_topic("T", queue_count=1)
        await producer.send("T", b"y")


async def test_a_deleted_topic_has_no_route(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Admin(cluster.namesrv) as admin:
        await admin.delete_topic("T")
        with pytest.raises(NoRouteError):
            await admin.route("T")
    assert cluster.nameserver.count(RequestCode.DELETE_TOPIC_IN_NAMESRV) == 1


async def test_offsets_and_progress_tell_how_far_a_group_is(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
        for _ in range(5):
            await producer.send("T", b"x")
        (queue,) = await admin.queues("T")
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 5)
        assert await admin.search_offset(queue, 0) == 0
        (before,) = await admin.progress("g", "T")
        assert (before.committed, before.lag) == (None, 5)
        async with Consumer(cluster.namesrv, "g", "T") as consumer:
            await anext(consumer)
            await anext(consumer)
            assert len(await admin.members("g")) == 1
        (after,) = await admin.progress("g", "T")
        assert (after.committed, after.end, after.lag) == (2, 5, 3)
        assert await admin.members("g") == ()


async def test_a_message_is_found_by_its_offset_id_though_its_storing_broker_is_gone(cluster: FakeCluster) -> None:
    await cluster.add("b1", topics={"other": 1})
    await cluster.add("b2", topics={"T": 1})
    async with Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
        result = await producer.send("T", b"x", keys="k")
        message = await admin.view_message(result.offset_message_id.lower())
        assert (message.body, message.message_id, message.keys) == (b"x", result.message_id, ["k"])
        with pytest.raises(NotFoundError):
            await admin.view_message(result.offset_message_id[:-1] + "F")
        with pytest.raises(InvalidArgumentError):
            await admin.view_message("nonsense")


async def test_what_is_asked_while_nobody_leads_is_answered_by_the_next_leader(cluster: FakeCluster) -> None:
    first, second = await cluster.add(nodes=2, topics={"T": 1})
    record = first.ledger.append("T", 0, b"x", b"")
    async with Admin(cluster.namesrv) as admin, asyncio.timeout(WAIT_S):
        await cluster.kill(first)
        read = asyncio.ensure_future(admin.read(MessageQueue("T", "b", 0), 0, 1))
        view = asyncio.ensure_future(admin.view_message(record.offset_message_id))
        await eventually(lambda: cluster.nameserver.count(RequestCode.GET_BROKER_CLUSTER_INFO) > 0)
        cluster.lead(second)
        assert [message.body for message in await read] == [b"x"]
        assert (await view).body == b"x"


async def test_a_nameserver_that_comes_back_in_time_is_waited_for(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Admin(cluster.namesrv) as admin, asyncio.timeout(WAIT_S):
        await cluster.nameserver.kill()
        info, route = asyncio.ensure_future(admin.cluster()), asyncio.ensure_future(admin.route("T"))
        await asyncio.sleep(0.1)
        assert not info.done()
        assert not route.done()
        await cluster.nameserver.start()
        assert list((await info).brokers) == list((await route).brokers) == ["b"]
