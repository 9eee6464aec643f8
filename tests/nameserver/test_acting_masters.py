"""RocketMQ's slaves that act as masters: what clients are shown, and what the brokers themselves are told."""

from collections.abc import AsyncIterator

import pytest

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.server import RemotingServer
from tests.ports import free_ports

from .conftest import Serve, Served


class Listener:
    """A broker's own listener: remembers what it is told."""

    def __init__(self) -> None:
        self.server = RemotingServer(self)
        self.heard: list[Command] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def on_connected(self, connection: Connection) -> None: ...

    def on_closed(self, connection: Connection) -> None: ...

    def on_request(self, connection: Connection, command: Command) -> None:
        self.heard.append(command)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    await listener.server.start("127.0.0.1", 0)
    yield listener
    await listener.server.close()


async def lose_master(served: Served, slave_address: str) -> Served:
    master, slave = await served.peer(), await served.peer()
    await slave.register(slave_address, 1, enableActingMaster="true")
    await master.register("127.0.0.1:1", enableActingMaster="true")
    await master.close()
    await served.until(lambda: served.server.table.group("broker-a").leader is None)  # type: ignore[union-attr]
    return served


async def test_an_acting_master_is_shown_when_the_nameserver_supports_it(serve: Serve) -> None:
    plain = await lose_master(await serve(), "127.0.0.1:2")
    assert await (await plain.peer()).addresses() == {"1": "127.0.0.1:2"}
    supporting = await lose_master(await serve(support_acting_master=True), "127.0.0.1:2")
    assert await (await supporting.peer()).addresses() == {"0": "127.0.0.1:2"}


async def test_a_slave_hears_that_its_master_is_gone_and_that_it_is_back(serve: Serve, listener: Listener) -> None:
    served = await serve(notify_min_broker_id=True)
    await lose_master(served, listener.address)
    await served.until(lambda: len(listener.heard) == 2)
    came, went = listener.heard
    assert {command.code for command in listener.heard} == {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}
    assert all(command.is_oneway for command in listener.heard)
    name = {"brokerName": "broker-a"}
    assert dict(came.ext) == name | {
        "minBrokerId": "0",
        "minBrokerAddr": "127.0.0.1:1",
        "haBrokerAddr": "127.0.0.1:10",
    }
    assert dict(went.ext) == name | {
        "minBrokerId": "1",
        "minBrokerAddr": listener.address,
        "offlineBrokerAddr": "127.0.0.1:1",
    }


async def test_nobody_is_told_unless_the_nameserver_is_asked_to(serve: Serve, listener: Listener) -> None:
    served = await serve()
    await lose_master(served, listener.address)
    broker = await served.peer()
    await broker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"notifyMinBrokerIdChanged=true")
    await broker.register("127.0.0.1:5", enableActingMaster="true")
    await served.until(lambda: len(listener.heard) == 1)
    assert listener.heard[0].ext["minBrokerAddr"] == "127.0.0.1:5"


async def test_a_broker_that_cannot_be_told_harms_nothing(serve: Serve) -> None:
    [port] = free_ports(1)
    served = await serve(notify_min_broker_id=True)
    await lose_master(served, f"127.0.0.1:{port}")
    assert await (await served.peer()).addresses() == {"1": f"127.0.0.1:{port}"}
