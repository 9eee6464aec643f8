"""RocketMQ's own brokers in our nameserver's cluster: alone, beside ours, replicating, one acting for another."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ledgermq.client import MessageQueue, Producer
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from tests.limits import STRANGER_WAIT_S, WAIT_S
from tests.mixed.nodes import CLUSTER, Node, Street
from tests.mixed.test_masters_and_slaves import log_of
from tests.mixed.traffic import brokers, consume, create_topic, round_trip, send

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


async def test_a_java_broker_is_routed_used_dropped_at_its_death_and_back_when_it_is(
    street: Street, eventually: Eventually
) -> None:
    namesrv = street.our_nameserver()
    await live_and_die(street, eventually, namesrv, street.java_broker("broker-j", namesrv))
    assert "broker-j" in street.mqadmin(namesrv, "clusterList")
    route = street.mqadmin(namesrv, "topicRoute", "-t", "Mixed")
    assert '"brokerName":"broker-j"' in route.replace(" ", ""), route
    assert "SEND_OK" in street.mqadmin(namesrv, "sendMessage", "-t", "Mixed", "-p", "by Java's client")
    assert "by Java's client" in street.mqadmin(namesrv, "consumeMessage", "-t", "Mixed", "-c", "100")


@pytest.mark.long
async def test_a_java_broker_of_the_old_version_lives_here_as_well(
    street: Street, eventually: Eventually, old_jars: Path
) -> None:
    namesrv = street.our_nameserver()
    await live_and_die(street, eventually, namesrv, street.java_broker("broker-j", namesrv, jars=old_jars))


async def live_and_die(street: Street, eventually: Eventually, namesrv: Node, broker: Node) -> None:
    async def is_there() -> bool:
        return await brokers(namesrv) == {"broker-j": {0: broker.address}}

    async def is_gone() -> bool:
        return await brokers(namesrv) == {}

    await eventually(is_there, "the broker is registered")
    await round_trip(namesrv, "Mixed")
    broker.kill()
    await eventually(is_gone, "its closed connection takes it out of the routes")
    broker.start()
    await eventually(is_there, "the broker is registered again")
    assert (await send(namesrv, "Mixed", [b"after the restart"])).total() == 1


@pytest.mark.long
async def test_java_brokers_and_ours_share_a_topic_of_one_cluster(street: Street, eventually: Eventually) -> None:
    namesrv = street.our_nameserver()
    street.java_broker("broker-j", namesrv, {"compressedRegister": "true"})  # which its own nameserver cannot read
    street.our_broker("broker-o", namesrv)

    async def both() -> bool:
        return set(await brokers(namesrv)) == {"broker-j", "broker-o"}

    await eventually(both, "both are registered")
    taken = await round_trip(namesrv, "Shared", 100)
    assert taken["broker-j"] and taken["broker-o"], "both take messages of the topic"
    listed = street.mqadmin(namesrv, "clusterList")
    assert listed.count(CLUSTER) == 2, listed
    assert "Shared" in street.mqadmin(namesrv, "topicList")
    assert "broker-j" in (progress := street.mqadmin(namesrv, "consumerProgress", "-g", "Shared-group"))
    assert "broker-o" in progress, progress


@pytest.mark.long
async def test_a_java_dledger_group_elects_and_its_new_leader_is_routed(street: Street, eventually: Eventually) -> None:
    namesrv = street.our_nameserver()
    members = street.java_raft_group("broker-d", namesrv)
    leaders: list[str] = []

    async def has_other_leader() -> bool:
        address = (await brokers(namesrv)).get("broker-d", {}).get(0)
        if address is not None and address not in leaders:
            leaders.append(address)
            return True
        return False

    await eventually(has_other_leader, "a leader is registered")
    await round_trip(namesrv, "Elected")
    next(member for member in members if member.address == leaders[0]).kill()
    await eventually(has_other_leader, "another leader is registered")
    assert (await send(namesrv, "Elected", [b"to the new leader"])).total() == 1


@pytest.mark.long
async def test_a_java_slave_acts_for_its_master_and_steps_back(street: Street, eventually: Eventually) -> None:
    namesrv = street.our_nameserver({"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
    acting: dict[str, object] = {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": 500}
    master = street.java_broker("broker-m", namesrv, {**acting, "brokerRole": "ASYNC_MASTER"})
    await eventually(lambda: has(namesrv, {0: master.address}), "the master is registered")
    slave = street.java_broker("broker-m", namesrv, {**acting, "brokerRole": "SLAVE", "brokerId": 1})
    await eventually(lambda: has(namesrv, {0: master.address, 1: slave.address}), "both are registered")
    await create_topic(namesrv, "Acted")
    master.kill()

    async def is_acting() -> bool:
        route = street.mqadmin(namesrv, "topicRoute", "-t", "Acted").replace(" ", "").replace('"', "")
        return f"0:{slave.address}" in route and "perm:4" in route

    await eventually(is_acting, "the slave is shown as master, for reading")
    master.start()
    await eventually(lambda: has(namesrv, {0: master.address, 1: slave.address}), "the master is back")
    assert (await send(namesrv, "Acted", [b"writable again"])).total() == 1


@pytest.mark.long
async def test_our_slave_stands_in_for_rocketmqs_master(street: Street, eventually: Eventually) -> None:
    namesrv = street.our_nameserver({"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
    acting: dict[str, object] = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}
    acting |= {"brokerHeartbeatInterval": 500}
    asks_slaves = {"brokerRole": "ASYNC_MASTER", "totalReplicas": 2}  # when it is back, with two or more only
    master = street.java_broker("broker-m", namesrv, {**acting, **asks_slaves})
    await eventually(lambda: has(namesrv, {0: master.address}), "the master is registered")
    ours = {**acting, "brokerRole": "SLAVE", "brokerId": 1, "haMasterProtocol": "rocketmq", "slaveReadEnable": "true"}
    slave = street.our_broker("broker-m", namesrv, ours)
    other = street.java_broker("broker-o", namesrv)
    await lose_master_of_delayed_message(eventually, namesrv, master, slave, other)
    assert await consume(namesrv, "Waits", "late-readers", 1) == {b"later"}
    assert b"later" in log_of(other) and slave.has_said("stands in for its master")
    master.start()
    both = {0: master.address, 1: slave.address}
    await eventually(lambda: registered(namesrv, "broker-m", master), "the master is back")
    assert (await brokers(namesrv))["broker-m"] == both
    assert slave.has_said("does not stand in for its master any more")
    await eventually(lambda: delivered_of_level_3(master, 1), "the master knows that it is delivered")
    assert log_of(master).count(b"later") == 1


@pytest.mark.long
async def test_our_master_takes_over_what_rocketmqs_slave_has_delivered(street: Street, eventually: Eventually) -> None:
    namesrv = street.our_nameserver({"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"})
    acting: dict[str, object] = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}
    acting |= {"brokerHeartbeatInterval": 500}
    master = street.our_broker("broker-m", namesrv, {**acting, "haPlainSlaves": "127.0.0.1"})
    await eventually(lambda: has(namesrv, {0: master.address}), "the master is registered")
    slave = street.java_broker("broker-m", namesrv, {**acting, "brokerRole": "SLAVE", "brokerId": 1})
    other = street.our_broker("broker-o", namesrv)
    await lose_master_of_delayed_message(eventually, namesrv, master, slave, other)

    async def is_delivered() -> bool:
        return b"later" in log_of(other)

    await eventually(is_delivered, "RocketMQ's slave delivers it to the other master")
    master.start()
    await eventually(lambda: delivered_of_level_3(master, 1), "the master knows that it is delivered")
    assert log_of(master).count(b"later") == 1


async def lose_master_of_delayed_message(
    eventually: Eventually, namesrv: Node, master: Node, slave: Node, other: Node
) -> None:
    """Send a delayed message to broker-m; kill its master when the slave has it, and `other` could take it."""
    members = {"broker-m": {0: master.address, 1: slave.address}, "broker-o": {0: other.address}}

    async def all_are_there() -> bool:
        return await brokers(namesrv) == members

    await eventually(all_are_there, "both replicas and the other master are registered")
    await create_topic(namesrv, "Waits")
    await eventually(lambda: has_topic(slave, b'"Waits"'), "the slave has the topic")
    async with Producer(namesrv.address, deadline_s=STRANGER_WAIT_S) as producer:
        await producer.send("Waits", b"later", delay_level=3, queue=MessageQueue("Waits", "broker-m", 0))
    await eventually(lambda: copied(master, slave), "the slave has the message")
    master.kill()


async def delivered_of_level_3(broker: Node, count: int) -> bool:
    client = RemotingClient()
    try:
        answer = await client.request(broker.address, Command(RequestCode.GET_ALL_DELAY_OFFSET), WAIT_S)
    except RemotingError:
        return False
    finally:
        await client.close()
    return b"3:%d" % count in bytes(answer.body)


async def copied(master: Node, slave: Node) -> bool:
    mine = log_of(master)
    return bool(mine) and mine == log_of(slave)


async def has_topic(broker: Node, name: bytes) -> bool:
    client = RemotingClient()
    answer = await client.request(broker.address, Command(RequestCode.GET_ALL_TOPIC_CONFIG), WAIT_S)
    await client.close()
    return name in bytes(answer.body)


async def registered(namesrv: Node, name: str, master: Node) -> bool:
    return (await brokers(namesrv)).get(name, {}).get(0) == master.address


async def has(namesrv: Node, members: dict[int, str]) -> bool:
    return await brokers(namesrv) == {"broker-m": members}
