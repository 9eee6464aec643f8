"""A slave of RocketMQ's copies our master, and our slave copies a master of RocketMQ's: logs byte for byte."""

import contextlib

from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import pull_fields
from tests.limits import WAIT_S
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
    """Send through the master; the slave's log becomes the same, and its queues serve when the master is gone.

    A send that the slave acknowledges late is sent again, and stored twice.
    """

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

    async def in_sync() -> bool:
        return "#InSyncSlaveNum\t1" in street.mqadmin(namesrv, "haStatus", "-b", master.address)

    await eventually(in_sync, "the master counts the slave as in sync")
    async with contextlib.aclosing(Asked(slave)) as asked:
        await eventually(asked.has_tables, "the slave has the topic, the group and its progress")
        async with contextlib.aclosing(Asked(master)) as asked_master:
            ends = await asked_master.ends()
        master.kill()
        assert await asked.ends() == ends
        assert await asked.bodies() == set(bodies), "the slave serves without its master"


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

    async def ends(self) -> list[int]:
        """The largest offset of each queue of the topic, exclusive."""
        ends = [await self._ask(RequestCode.GET_MAX_OFFSET, topic="Copied", queueId=str(queue)) for queue in range(4)]
        return [int(end.ext["offset"]) for end in ends]

    async def bodies(self) -> set[bytes]:
        """The bodies of all messages of the topic."""
        found: set[bytes] = set()
        for queue, end in enumerate(await self.ends()):
            offset = 0
            while offset < end:
                fields = pull_fields("Copied", offset=offset, queueId=queue, consumerGroup="readers")
                answer = await self._ask(RequestCode.PULL_MESSAGE, **fields)
                assert answer.code == 0 and int(answer.ext["maxOffset"]) == end
                records = decode_records(answer.body)
                assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
                found |= {bytes(record.body) for record in records}
                offset += len(records)
        return found

    async def _ask(self, code: int, **fields: str) -> Command:
        return await self._client.request(self._address, Command(code, ext=fields), WAIT_S)
