"""A slave of RocketMQ's copies our master, and our slave copies a master of RocketMQ's: logs byte for byte."""

import contextlib

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import pull_fields
from tests.mixed.nodes import Node, Street
from tests.mixed.traffic import brokers, consume, create_topic, send

NAME = "broker-a"


def log_of(node: Node) -> bytes:
    """The records of a broker's log: its files without the zeros behind the last record."""
    files = sorted((node.home / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files if path.name.isdecimal()).rstrip(b"\0")


async def test_rocketmqs_slave_follows_our_master(street: Street, eventually) -> None:  # type: ignore[no-untyped-def]
    namesrv = street.our_nameserver()
    master = street.our_broker(NAME, namesrv, {"brokerRole": "SYNC_MASTER", "haPlainSlaves": "127.0.0.1"})
    slave = street.java_broker(NAME, namesrv, {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"})
    await copies(street, eventually, namesrv, master, slave)


async def test_our_slave_follows_rocketmqs_master(street: Street, eventually) -> None:  # type: ignore[no-untyped-def]
    namesrv = street.our_nameserver()
    master = street.java_broker(NAME, namesrv, {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2})
    slave = street.our_broker(
        NAME,
        namesrv,
        {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true", "haMasterProtocol": "rocketmq"},
    )
    await copies(street, eventually, namesrv, master, slave)


async def copies(street: Street, eventually, namesrv: Node, master: Node, slave: Node) -> None:  # type: ignore[no-untyped-def]
    """Send through the master; the slave's log becomes the same, and its queues serve when the master is gone."""

    async def both() -> bool:
        return (await brokers(namesrv)).get(NAME, {}).keys() == {0, 1}

    await eventually(both, "master and slave are registered")
    await create_topic(namesrv, "Copied")
    bodies = [b"%d" % number * 50 for number in range(200)]
    assert (await send(namesrv, "Copied", bodies))[NAME] == 200
    assert await consume(namesrv, "Copied", "readers", 200) == set(bodies)

    async def same() -> bool:
        mine = log_of(master)
        return len(mine) > 20_000 and mine == log_of(slave)

    await eventually(same, "the slave has the master's log")
    status = street.mqadmin(namesrv, "haStatus", "-b", master.address)
    assert "#InSyncSlaveNum\t1" in status
    async with contextlib.aclosing(Asked(slave)) as asked:
        await eventually(asked.has_tables, "the slave has the topic, the group and its progress")
        master.kill()
        assert await asked.count() == 200, "the slave serves without its master"


class Asked:
    """A broker that is asked directly."""

    def __init__(self, node: Node) -> None:
        self._address = node.address
        self._client = RemotingClient()

    async def aclose(self) -> None:
        await self._client.close()

    async def has_tables(self) -> bool:
        wanted = {
            RequestCode.GET_ALL_TOPIC_CONFIG: b'"Copied"',
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'"readers"',
            RequestCode.GET_ALL_CONSUMER_OFFSET: b"Copied@readers",
        }
        return all([text in bytes((await self._ask(code)).body) for code, text in wanted.items()])

    async def count(self) -> int:
        """Messages that it gives of the topic."""
        ends = [await self._ask(RequestCode.GET_MAX_OFFSET, topic="Copied", queueId=str(queue)) for queue in range(4)]
        for queue, end in enumerate(ends):
            answer = await self._ask(
                RequestCode.PULL_MESSAGE, **pull_fields("Copied", queueId=queue, consumerGroup="readers")
            )
            assert answer.code == 0 and answer.body and answer.ext["maxOffset"] == end.ext["offset"]
        return sum(int(end.ext["offset"]) for end in ends)

    async def _ask(self, code: int, **fields: str) -> Command:
        return await self._client.request(self._address, Command(code, ext=fields), 10)
