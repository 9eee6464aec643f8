"""Our brokers at RocketMQ's own nameserver, alone and beside RocketMQ's."""

import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.mixed.nodes import Node, Street
from tests.mixed.traffic import brokers, round_trip, send

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


async def test_our_broker_is_routed_by_a_java_nameserver_and_found_again_after_its_restart(
    street: Street, eventually: Eventually
) -> None:
    namesrv = street.java_nameserver()
    broker = street.our_broker("broker-o", namesrv)

    async def is_there() -> bool:
        return await brokers(namesrv) == {"broker-o": {0: broker.address}}

    async def is_gone() -> bool:
        return await brokers(namesrv) == {}

    await eventually(is_there, "our broker is registered")
    await round_trip(namesrv, "There")
    assert "broker-o" in street.mqadmin(namesrv, "clusterList")
    assert "There" in street.mqadmin(namesrv, "topicList")
    assert broker.address in street.mqadmin(namesrv, "topicRoute", "-t", "There")
    namesrv.kill()
    namesrv.start()
    await eventually(is_there, "a nameserver that has forgotten everything is told again")
    assert (await send(namesrv, "There", [b"after its restart"])).total() == 1
    broker.kill()
    await eventually(is_gone, "a broker that died is dropped")


@pytest.mark.long
async def test_a_java_nameserver_follows_the_elections_of_our_raft_group(
    street: Street, eventually: Eventually
) -> None:
    namesrv = street.java_nameserver()
    members = street.our_raft_group("broker-r", namesrv)

    async def whole() -> bool:
        return set((await brokers(namesrv)).get("broker-r", {})) >= {0} and await count(namesrv) == 3

    await eventually(whole, "all three are registered, one of them as leader")
    await round_trip(namesrv, "Elected")
    deposed = await leader(namesrv, members)
    deposed.stop(signal.SIGKILL)

    async def is_replaced() -> bool:
        address = (await brokers(namesrv)).get("broker-r", {}).get(0)
        return address not in (None, deposed.address)

    await eventually(is_replaced, "another leader is routed")
    assert (await send(namesrv, "Elected", [b"to the new leader"])).total() == 1
    deposed.start()
    await eventually(whole, "the old leader is back, as a follower")
    assert await is_replaced()
    listed = street.mqadmin(namesrv, "clusterList")
    assert listed.count("broker-r") == 3, listed


async def count(namesrv: Node) -> int:
    return len((await brokers(namesrv)).get("broker-r", {}))


async def leader(namesrv: Node, members: list[Node]) -> Node:
    address = (await brokers(namesrv))["broker-r"][0]
    return next(member for member in members if member.address == address)


@pytest.mark.long
async def test_our_brokers_and_java_ones_share_a_java_nameserver(street: Street, eventually: Eventually) -> None:
    namesrv = street.java_nameserver()
    street.java_broker("broker-j", namesrv)
    street.our_broker("broker-o", namesrv)

    async def both() -> bool:
        return set(await brokers(namesrv)) == {"broker-j", "broker-o"}

    await eventually(both, "both are registered")
    taken = await round_trip(namesrv, "Shared", 100)
    assert taken["broker-j"] and taken["broker-o"], "both take messages of the topic"
