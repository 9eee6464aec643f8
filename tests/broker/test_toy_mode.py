"""The whole broker on a mode of replication that it has never heard of: `toy_mode`, joined to it by the seam alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest

from broker.admin.transfer import TRANSFER_LEADERSHIP
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from node import broker_assembly
from node.broker_assembly import Broker
from node.log_choice import ChosenLog, StoreFollower
from node.node_config import NodeConfig
from node.store_settings import store_config
from store.directory.store_directory import StoreDirectory
from store.opening import open_store
from store.replicated_log import ReplicatedLog
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_offsets import key
from tests.broker.test_broker import ask, broker_config
from tests.broker.toy_mode import ToyLog

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


class Pair:
    """Two brokers, and their logs."""

    def __init__(self) -> None:
        self.brokers: list[Broker] = []
        self.logs: list[ToyLog] = []
        self.client = RemotingClient()

    async def open_log(
        self, config: NodeConfig, store_host: bytes, address: str, follower: StoreFollower, _client: RemotingClient
    ) -> ChosenLog:
        """In the place of `node.log_choice.open_store_of`."""
        root = config.broker.store.root
        log = ToyLog(root, address, store_host)
        self.logs.append(log)
        seam: ReplicatedLog = log
        settings = store_config(config, follower.topic_attributes)
        return ChosenLog(await open_store(settings, StoreDirectory(root, "classic"), seam, prepare=follower.prepare))

    async def send(self, number: int, body: bytes) -> int:
        return (await ask(self.client, self.brokers[number], SEND, send_fields(), body)).code

    async def bodies(self, number: int) -> list[bytes]:
        answer = await ask(self.client, self.brokers[number], PULL, pull_fields())
        return [record.body for record in decode_records(answer.body)]

    async def page(self, number: int) -> str:
        url = f"http://127.0.0.1:{self.brokers[number].health_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    pair = Pair()
    monkeypatch.setattr(broker_assembly, "open_store_of", pair.open_log)
    for number in range(2):
        pair.brokers.append(Broker(broker_config(tmp_path / str(number), slave_read=True)))
        await pair.brokers[-1].start()
    pair.logs[0].lead(pair.logs[1])
    yield pair
    for broker in pair.brokers:
        await broker.close()
    await pair.client.close()


async def made(pair: Pair) -> None:
    """A topic with two messages, and a group."""
    group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await ask(pair.client, pair.brokers[0], group, {}, b'{"groupName":"g"}')).code == 0
    assert (await ask(pair.client, pair.brokers[0], RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))).code == 0
    for number in range(2):
        assert await pair.send(0, b"%d" % number) == 0


async def test_messages_and_tables_are_on_both_and_views_show_the_mode(pair: Pair) -> None:
    await made(pair)
    assert await pair.bodies(0) == await pair.bodies(1) == [b"0", b"1"]
    assert await pair.send(1, b"passed on") == 0
    assert await pair.bodies(0) == await pair.bodies(1) == [b"0", b"1", b"passed on"]
    assert [line.split()[-1] for line in (await pair.page(0)).splitlines() if line.startswith("toy_copies")] == ["2"]
    roles = [broker.parts.context.role for broker in pair.brokers]
    assert [(role.name, role.broker_id, role.generation) for role in roles] == [("leader", 0, 1), ("follower", 1, 1)]
    epochs = await ask(pair.client, pair.brokers[0], RequestCode.GET_BROKER_EPOCH_CACHE, {})
    assert [epoch["epoch"] for epoch in orjson.loads(epochs.body)["epochList"]] == [1]
    status = orjson.loads((await ask(pair.client, pair.brokers[0], RequestCode.GET_BROKER_HA_STATUS, {})).body)
    (slave,) = status["haConnectionInfo"]
    assert (status["master"], slave["addr"], slave["diff"]) == (True, pair.brokers[1].address, 0)


async def test_what_one_node_has_is_neither_acknowledged_nor_read_and_may_be_lost(pair: Pair) -> None:
    await made(pair)
    pair.logs[0].is_linked = False
    sending = asyncio.create_task(pair.send(0, b"waits"))
    await eventually(lambda: pair.logs[0].backlog().unflushed_bytes > 0, "placed")
    assert await pair.bodies(0) == [b"0", b"1"]
    assert not sending.done()
    pair.logs[0].is_linked = True
    pair.logs[0].send()
    assert await sending == 0
    assert await pair.bodies(1) == [b"0", b"1", b"waits"]
    pair.logs[0].is_linked = False
    lost = asyncio.create_task(pair.send(0, b"lost"))
    await eventually(lambda: pair.logs[0].backlog().unflushed_bytes > 0, "placed")
    pair.logs[1].lead(pair.logs[0])
    assert await lost != 0
    assert await pair.send(1, b"next") == 0
    assert await pair.bodies(0) == await pair.bodies(1) == [b"0", b"1", b"waits", b"next"]


async def test_a_hand_over_takes_everything_with_it(pair: Pair) -> None:
    await made(pair)
    committed = await ask(pair.client, pair.brokers[0], RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    assert committed.code == 0
    answer = await ask(pair.client, pair.brokers[0], TRANSFER_LEADERSHIP, {})
    assert answer.ext["target"] == pair.brokers[1].address
    await eventually(lambda: pair.brokers[1].parts.context.role.writable, "the other leads")
    offset = await ask(pair.client, pair.brokers[1], RequestCode.QUERY_CONSUMER_OFFSET, key())
    assert offset.ext == {"offset": "1"}
    assert (await pair.send(0, b"passed on"), await pair.send(1, b"2")) == (0, 0)
    assert await pair.bodies(0) == await pair.bodies(1) == [b"0", b"1", b"passed on", b"2"]
