"""Whole brokers, a master and its slave: what clients and tools meet on either."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from node.broker_assembly import Broker
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.test_broker import ask
from tests.node_config import node_config
from tests.ports import free_ports

COMMIT_OFFSET = 1


class Pair:
    """A SYNC_MASTER and its slave, each in its folder; they may be stopped and started."""

    def __init__(self, directory: Path, client: RemotingClient) -> None:
        self.client = client
        self.directory = directory
        [port] = free_ports(1)
        common = {"bindAddress": "127.0.0.1", "healthHost": "127.0.0.1", "healthPort": 0}
        common |= {"mappedFileSizeCommitLog": 1 << 20, "maxMessageSize": 1 << 18, "slave_read": True}
        self._configs = [
            {"storePathRootDir": directory / "m", "brokerRole": "SYNC_MASTER", "haListenPort": port},
            {"storePathRootDir": directory / "s", "brokerRole": "SLAVE", "haMasterAddress": f"127.0.0.1:{port}"},
        ]
        for number, config in enumerate(self._configs):
            config |= common | {"broker_id": number}
        self.brokers: list[Broker | None] = [None, None]

    async def start(self, number: int) -> Broker:
        broker = self.brokers[number] = Broker(node_config(**self._configs[number]))
        await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        broker, self.brokers[number] = self.brokers[number], None
        if broker is not None:
            await broker.close()

    @property
    def master(self) -> Broker:
        assert self.brokers[0] is not None
        return self.brokers[0]

    @property
    def slave(self) -> Broker:
        assert self.brokers[1] is not None
        return self.brokers[1]

    async def send(self, body: bytes) -> int:
        return (await ask(self.client, self.master, RequestCode.SEND_MESSAGE_V2, send_fields(), body)).code

    async def pull(self, broker: Broker, **fields: object) -> list[bytes]:
        answer = await ask(self.client, broker, RequestCode.PULL_MESSAGE, pull_fields(**fields))
        return [record.body for record in decode_records(answer.body)]

    async def offset(self, broker: Broker) -> str:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        return (await ask(self.client, broker, RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext["offset"]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    client = RemotingClient()
    pair = Pair(tmp_path, client)
    for number in range(2):
        await pair.start(number)
    master_log = pair.master.parts.context.store.log
    await eventually(lambda: [replica.in_sync for replica in master_log.replicas()] == [True])
    group, topic = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_TOPIC
    assert (await ask(client, pair.master, group, {}, b'{"groupName":"g"}')).code == 0
    assert (await ask(client, pair.master, topic, topic_fields("T"))).code == 0
    assert [await pair.send(body) for body in (b"0", b"1", b"2")] == [0, 0, 0]
    slave_store = pair.slave.parts.context.store
    await eventually(lambda: slave_store.dispatched_offset == master_log.max_offset)
    yield pair
    for number in range(2):
        await pair.stop(number)
    await client.close()


async def test_a_slave_has_messages_topics_and_groups_and_says_what_it_is(pair: Pair) -> None:
    assert await pair.pull(pair.slave) == await pair.pull(pair.master) == [b"0", b"1", b"2"]
    slave = pair.slave.parts.context
    assert "T" in slave.state.topics and "g" in slave.state.groups
    assert (slave.role.broker_id, slave.role.upstream_name) == (1, "SLAVE")
    refused = await ask(pair.client, pair.slave, RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
    assert (refused.code, refused.ext["leaderHint"]) == (14, pair.master.address)
    master = orjson.loads((await ask(pair.client, pair.master, RequestCode.GET_BROKER_HA_STATUS, {})).body)
    assert (master["master"], master["inSyncSlaveNums"], master["haConnectionInfo"][0]["diff"]) == (True, 1, 0)
    status = orjson.loads((await ask(pair.client, pair.slave, RequestCode.GET_BROKER_HA_STATUS, {})).body)
    assert not status["master"]
    assert status["haClientRuntimeInfo"]["maxOffset"] == pair.master.parts.context.store.log.max_offset


async def test_a_slave_keeps_what_it_is_told_of_its_masters_flush_offset(pair: Pair) -> None:
    async def shown(broker: Broker) -> int:
        status = orjson.loads((await ask(pair.client, broker, RequestCode.GET_BROKER_HA_STATUS, {})).body)
        return int(status["haClientRuntimeInfo"]["masterFlushOffset"])

    for broker in (pair.master, pair.slave):
        told = await ask(pair.client, broker, RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "77"})
        assert told.code == 0
    assert [await shown(broker) for broker in (pair.master, pair.slave)] == [0, 77]
    await pair.stop(1)
    await pair.start(1)
    assert await shown(pair.slave) == 77


async def test_without_its_slave_a_synchronous_master_says_so_with_each_answer(pair: Pair) -> None:
    await pair.stop(1)
    master_log = pair.master.parts.context.store.log
    await eventually(lambda: not master_log.replicas())
    answer = await ask(pair.client, pair.master, RequestCode.SEND_MESSAGE_V2, send_fields(), b"3")
    assert (answer.code, answer.ext["queueOffset"]) == (11, "3")
    created = await ask(pair.client, pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("U"))
    assert created.code == 0
    await pair.start(1)
    slave_store = pair.slave.parts.context.store
    await eventually(lambda: slave_store.dispatched_offset == master_log.max_offset)
    assert await pair.pull(pair.slave) == [b"0", b"1", b"2", b"3"]


async def test_consumers_go_on_at_the_slave_and_the_master_hears_how_far(pair: Pair) -> None:
    await pair.stop(0)
    assert await pair.pull(pair.slave, offset=2, sysFlag=4 | COMMIT_OFFSET, commitOffset=2) == [b"2"]
    assert await pair.offset(pair.slave) == "2"
    told = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert (await ask(pair.client, pair.slave, RequestCode.UPDATE_CONSUMER_OFFSET, told)).code == 0
    assert await pair.offset(pair.slave) == "3"
    await pair.start(0)
    master = pair.master.parts.context
    await eventually(lambda: master.offsets.get("T", "g", 0) == 3)
    slave = pair.slave.parts.context
    await eventually(lambda: not slave.offsets.kept())
    assert await pair.offset(pair.slave) == "3"


async def test_a_slave_serves_reads_only_where_that_is_wanted(pair: Pair) -> None:
    pair.slave.parts.context.config.slave_read = False
    answer = await ask(pair.client, pair.slave, RequestCode.PULL_MESSAGE, pull_fields())
    assert answer.code == 2


async def test_a_reset_at_the_master_ends_what_the_slave_kept(pair: Pair) -> None:
    master, slave = pair.master.parts.context, pair.slave.parts.context
    slave.forwarding.forward = None
    slave.offsets.keep("T", "g", 0, 3)
    assert await pair.offset(pair.slave) == "3"
    master.offsets.reset("T", "g", {0: 1}, lambda _outcome: None)
    await eventually(lambda: not slave.offsets.kept())
    assert await pair.offset(pair.slave) == "1"


async def test_a_slave_that_begins_anew_serves_what_the_master_kept_by_key(pair: Pair) -> None:
    topic = topic_fields("C", attributes="+cleanup.policy=COMPACTION")
    assert (await ask(pair.client, pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    for number in range(4):
        keyed = send_fields("C", i=f"KEYS\x01k{number}\x02")
        assert (await ask(pair.client, pair.master, RequestCode.SEND_MESSAGE_V2, keyed, b"%d" % number)).code == 0
    store = pair.master.parts.context.store
    for _ in range(6):
        assert await pair.send(bytes(200 << 10)) == 0
    await eventually(lambda: store.compaction is not None and store.compaction.hold() > store.log.confirm_offset)
    await pair.stop(1)
    await eventually(lambda: store.log.sealed_files() != [], "a full file that is durable")
    assert store.log.trim(store.log.sealed_files()[-1][1]) > 0
    shutil.rmtree(pair.directory / "s")
    slave = (await pair.start(1)).parts.context.store
    await eventually(lambda: slave.dispatched_offset == store.log.max_offset, "a slave that has the log")
    await eventually(lambda: slave.compaction is not None and not slave.compaction.missing, "nothing is lacking")
    assert slave.log.min_offset == store.log.min_offset
    assert await pair.pull(pair.slave, topic="C") == [b"0", b"1", b"2", b"3"]


def test_the_replicas_of_a_name_have_different_labels_in_metrics(tmp_path: Path) -> None:
    """An elected one has no id before the controllers answer."""
    common = {"storePathRootDir": tmp_path, "advertised_host": "10.0.0.7", "listenPort": 10911}
    elected = node_config(**common, enableControllerMode=True, controllerAddr=("c:1",))
    assert Broker(elected).registry.labels["node"] == "10.0.0.7:10911"
    slave = node_config(**common, brokerRole="SLAVE", broker_id=2, haMasterAddress="127.0.0.1:1")
    assert Broker(slave).registry.labels["node"] == "2"
