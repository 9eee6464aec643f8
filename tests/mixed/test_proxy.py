"""RocketMQ's 5.x proxy in cluster mode before our brokers, and its 5.x gRPC client before the proxy."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mixed.nodes import Node, Street
from tests.mixed.proxy_topics import prepare
from tests.mixed.traffic import brokers, consume, send

Eventually = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]

CASES = ("normal", "invisible", "fifo", "delay", "transaction", "dead-letter")
SOON: dict[str, object] = {"transactionCheckInterval": 2000, "transactionTimeOut": 1500}

pytestmark = pytest.mark.long


class RemotingDoor(NamedTuple):
    """The proxy's port for clients of 4.x."""

    address: str


async def test_the_proxys_clients_send_and_receive_every_kind_of_message(
    street: Street, eventually: Eventually, proxy_jars: Path, grpc_client_jars: Path
) -> None:
    namesrv = street.our_nameserver()
    street.our_broker("broker-o", namesrv, SOON)
    proxy = await open_door(street, eventually, namesrv, "broker-o", proxy_jars)
    assert_all_ok(street.grpc_client(proxy, grpc_client_jars, *CASES), CASES)
    remoting, bodies = RemotingDoor(f"127.0.0.1:{proxy.port + 1}"), [b"%d" % number for number in range(20)]
    assert (await send(remoting, "ProxyRemoting", bodies)).total() == 20
    assert await consume(remoting, "ProxyRemoting", "ProxyRemotingGroup", 20) == set(bodies)


async def test_the_same_on_a_raft_group_and_after_its_leader_died(
    street: Street, eventually: Eventually, proxy_jars: Path, grpc_client_jars: Path
) -> None:
    namesrv = street.our_nameserver({"spreadSendsAfter": 0})  # the proxy sends to followers, too
    members = street.our_raft_group("broker-r", namesrv, SOON)
    proxy = await open_door(street, eventually, namesrv, "broker-r", proxy_jars)
    assert_all_ok(street.grpc_client(proxy, grpc_client_jars, *CASES), CASES)
    first = (await brokers(namesrv))["broker-r"][0]
    next(member for member in members if member.address == first).kill()

    async def is_replaced() -> bool:
        return (await brokers(namesrv)).get("broker-r", {}).get(0) not in (None, first)

    await eventually(is_replaced, "another leader is routed")
    assert_all_ok(street.grpc_client(proxy, grpc_client_jars, "normal", "fifo"), ("normal", "fifo"))


async def open_door(street: Street, eventually: Eventually, namesrv: Node, name: str, jars: Path) -> Node:
    """A proxy that serves a cluster whose topics are there."""

    async def is_led() -> bool:
        return 0 in (await brokers(namesrv)).get(name, {})

    await eventually(is_led, "a broker takes messages")
    await prepare(namesrv)
    proxy = street.proxy(namesrv, jars)

    async def is_up() -> bool:
        return proxy.has_said("startup successfully")

    await eventually(is_up, "the proxy is up")
    return proxy


def assert_all_ok(said: str, cases: tuple[str, ...]) -> None:
    for case in cases:
        assert f"ok {case}\n" in said, said
