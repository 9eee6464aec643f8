"""A whole standalone broker over sockets: start, serve, stop, start again; and what it refuses to start on."""

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from dledger.config import PeerAddress
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from node.broker_assembly import Broker
from store.errors import StoreFormatError, StoreLockedError
from tests.broker.conftest import eventually, pull_fields, send_fields, small_config, topic_fields
from tests.limits import WAIT_S
from tests.ports import free_ports


def broker_config(directory: Path, **changes: Any) -> Any:
    settings = {"bindAddress": "127.0.0.1", "healthHost": "127.0.0.1", "healthPort": 0}
    return small_config(directory, **{**settings, **changes})


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(broker_config(tmp_path))
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


async def ask(client: RemotingClient, broker: Broker, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    return await client.request(broker.address, Command(code, ext=fields, body=body), WAIT_S)


async def test_messages_survive_a_stop_and_a_start(tmp_path: Path, remoting: RemotingClient) -> None:
    config = broker_config(tmp_path)
    broker = Broker(config)
    await broker.start()
    assert (await ask(remoting, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))).code == 0
    for number in range(10):
        answer = await ask(remoting, broker, RequestCode.SEND_MESSAGE_V2, send_fields(), b"m%d" % number)
        assert answer.code == 0
    await broker.close()
    assert not (tmp_path / "abort").exists()
    again = Broker(config)
    await again.start()
    answer = await ask(remoting, again, RequestCode.PULL_MESSAGE, pull_fields())
    assert answer.ext["maxOffset"] == "10"
    assert b"m9" in bytes(answer.body)
    await again.close()


async def test_a_producer_finds_the_broker_through_a_nameserver(tmp_path: Path, remoting: RemotingClient) -> None:
    namesrv = NameServer(NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=tmp_path / "kv.json"))
    await namesrv.start()
    broker = Broker(broker_config(tmp_path / "b", namesrv_addrs=(namesrv.address,)))
    await broker.start()
    assert (await ask(remoting, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 3))).code == 0
    route = await remoting.request(namesrv.address, Command(105, ext={"topic": "T"}), 5)
    assert route.code == 0
    assert broker.address.encode() in bytes(route.body)
    assert b'"writeQueueNums":3' in bytes(route.body)
    await broker.close()
    await eventually(lambda: namesrv.table.group("b") is None)
    await namesrv.close()


async def test_health_says_when_it_serves_and_what_it_counts(broker: Broker, remoting: RemotingClient) -> None:
    await ask(remoting, broker, RequestCode.SEND_MESSAGE_V2, send_fields("fresh"), b"x")
    await ask(remoting, broker, RequestCode.SEND_MESSAGE_V2, send_fields("fresh", 99), b"x")
    async with aiohttp.ClientSession(f"http://127.0.0.1:{broker.health_port}") as http:
        async with http.get("/readyz") as answer:
            assert answer.status == 200
            assert "leader" in (await answer.json())["detail"]
        async with http.get("/metrics") as answer:
            text = await answer.text()
    labels = 'cluster="DefaultCluster",broker="b",node="0"'
    assert f"ledgermq_send_requests_total{{{labels}}} 1" in text
    assert f'ledgermq_refusals_total{{{labels},cause="invalid-parameter"}} 1' in text
    assert f"ledgermq_writable{{{labels}}} 1" in text
    assert "ledgermq_loop_lag_seconds_count" in text


async def test_stopping_answers_held_pulls_and_takes_no_time(broker: Broker, remoting: RemotingClient) -> None:
    assert (await ask(remoting, broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))).code == 0
    held = asyncio.ensure_future(
        ask(
            remoting,
            broker,
            RequestCode.PULL_MESSAGE,
            pull_fields(sysFlag=6, suspendTimeoutMillis=round(10_000 * WAIT_S)),
        )
    )
    await eventually(lambda: len(broker.parts.pull.held) == 1)
    async with asyncio.timeout(WAIT_S):
        await broker.close()
    assert (await held).code == 19


async def test_both_ports_together_leave_descriptors_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = SimpleNamespace(getrlimit=lambda _: (264, 264), RLIMIT_NOFILE=7, RLIM_INFINITY=-1)
    monkeypatch.setattr("ledgermq.remoting.server.resource", limited)  # only there: others would set this limit
    (port,) = free_ports(1)
    broker = Broker(broker_config(tmp_path, listenPort=port))
    await broker.start()
    try:
        dialled = [await asyncio.open_connection("127.0.0.1", where) for where in (port, port - 2) for _ in range(8)]
        expected = [*[False] * 4, *[True] * 4] * 2
        await eventually(lambda: [reader.at_eof() for reader, _ in dialled] == expected)
        for _, writer in dialled:
            writer.close()
    finally:
        await broker.close()


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\x32\x01\x00\x00\x2e\x03\x03\x09\x09\x09",
    struct.pack(">ii", -20, 10),
    struct.pack(">ii", 20, 5000) + bytes(16),
    struct.pack(">ii", (16 << 20) + 1, 100),
    struct.pack(">iI", 8, 7 << 24 | 4) + b"{}  ",
    struct.pack(">ii", 25, 21) + b'{"code":310,"extField',
    bytes(4),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
async def test_bytes_that_are_no_frame_end_their_connection_and_nothing_else(
    broker: Broker, remoting: RemotingClient, garbage: bytes
) -> None:
    host, port = broker.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(garbage)
    writer.write_eof()
    async with asyncio.timeout(WAIT_S):
        await reader.read()
    writer.close()
    await writer.wait_closed()
    answer = await ask(remoting, broker, RequestCode.GET_BROKER_RUNTIME_INFO, {})
    assert answer.code == 0


async def test_a_second_broker_on_the_same_directory_is_refused(broker: Broker, tmp_path: Path) -> None:
    second = Broker(broker_config(tmp_path))
    with pytest.raises(StoreLockedError):
        await second.start()
    await second.close()


async def test_a_port_in_use_is_refused_and_leaves_the_directory_clean(broker: Broker, tmp_path: Path) -> None:
    port = int(broker.address.split(":")[1])
    second = Broker(broker_config(tmp_path / "second", listenPort=port))
    with pytest.raises(OSError) as caught:
        await second.start()
    assert caught.value.errno == errno.EADDRINUSE
    await second.close()
    assert not (tmp_path / "second" / "abort").exists()


async def test_a_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledgermq.json").write_text('{"format": 1, "kind": "raft"}')
    broker = Broker(broker_config(tmp_path))
    with pytest.raises(StoreFormatError, match="raft"):
        await broker.start()
    await broker.close()


@pytest.mark.parametrize("is_raft", [False, True])
async def test_a_start_that_the_tables_refuse_changes_no_file(tmp_path: Path, is_raft: bool) -> None:
    raft: dict[str, Any] = {
        "enableDLegerCommitLog": True,
        "dLegerGroup": "g",
        "dLegerSelfId": "n0",
        "dLegerPeers": (PeerAddress("n0", "127.0.0.1", *free_ports(1)),),
    }
    config = broker_config(tmp_path, **(raft if is_raft else {}))
    broker = Broker(config)
    await broker.start()
    await broker.close()
    for name in ("subscriptionGroup.json", "subscriptionGroup.json.bak"):
        (tmp_path / "config" / name).write_text("{")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    broker = Broker(config)
    with pytest.raises(StoreFormatError, match="subscriptionGroup"):
        await broker.start()
    await broker.close()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_tables_of_a_newer_format_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "ledgermqState.json"
    path.write_text('{"format":2,"appliedOffset":0}')
    broker = Broker(broker_config(tmp_path))
    with pytest.raises(StoreFormatError, match="ledgermqState"):
        await broker.start()
    await broker.close()
    assert path.read_text() == '{"format":2,"appliedOffset":0}'


def test_a_configuration_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="mappedFileSizeConsumeQueue: 21 is not a multiple of 20"):
        Broker(broker_config(tmp_path, mappedFileSizeConsumeQueue=21))
