import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver.config import NameServerConfig
from nameserver.core.send_names import MARK
from nameserver.server import NameServer
from tests.limits import WAIT_S


class Peer:
    """One plain connection to a nameserver: a broker's or a client's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = FrameParser()
        self._answers: list[Command] = []
        self._opaque = 0

    @classmethod
    async def connect(cls, port: int) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        self._writer.write(encode(command))

    def send_bytes(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def answer(self) -> Command:
        """The next answer that arrives."""
        async with asyncio.timeout(WAIT_S):
            while not self._answers:
                data = await self._reader.read(1 << 16)
                assert data, "the nameserver closed the connection"
                self._answers += self._parser.feed(data)
        return self._answers.pop(0)

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479) -> Command:
        self.send(Command(code, ext=ext, body=body, version=version))
        return await self.answer()

    async def closed(self) -> None:
        """Return when the other end has closed."""
        async with asyncio.timeout(WAIT_S):
            while await self._reader.read(1 << 16):
                pass

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    # ---- requests of brokers and clients

    async def register(
        self,
        address: str,
        broker_id: int = 0,
        *,
        name: str = "broker-a",
        cluster: str = "DefaultCluster",
        topics: dict[str, int] | None = None,
        counter: int = 1,
        state_version: int = 0,
        **further: str,
    ) -> Command:
        """Register with topics (name to permission; by default TBW102 and one more)."""
        ext = {
            "brokerName": name,
            "brokerAddr": address,
            "brokerId": str(broker_id),
            "clusterName": cluster,
            "haServerAddr": f"{address}0",
            "enableActingMaster": "false",
        }
        body = register_body({"TBW102": 7, "Orders": 6} if topics is None else topics, counter, state_version)
        return await self.ask(RequestCode.REGISTER_BROKER, ext | further, body)

    async def route(self, topic: str, **further: str) -> dict[str, Any] | None:
        """The route's JSON; None when there is none."""
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic} | further)
        if answer.code == 17:
            return None
        assert answer.code == 0, answer.remark
        document: dict[str, Any] = json.loads(bytes(answer.body))
        return document

    async def addresses(self, topic: str = "Orders") -> dict[str, str] | None:
        """Addresses by broker id of the topic's only broker name, without the names for producers."""
        route = await self.route(topic)
        if route is None:
            return None
        (broker,) = (one for one in route["brokerDatas"] if MARK not in one["brokerName"])
        addresses: dict[str, str] = broker["brokerAddrs"]
        return addresses


def register_body(topics: dict[str, int], counter: int = 1, state_version: int = 0) -> bytes:
    """A registration's body: topics with their permission, eight queues each."""
    configs = {
        topic: {"perm": perm, "readQueueNums": 8, "topicName": topic, "topicSysFlag": 0, "writeQueueNums": 8}
        for topic, perm in topics.items()
    }
    version = {"counter": counter, "stateVersion": state_version, "timestamp": 1}
    wrapper = {"dataVersion": version, "topicConfigTable": configs}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


class Served:
    """A running nameserver and connections to it."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.port = int(server.address.rpartition(":")[2])
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        self._peers.append(await Peer.connect(self.port))
        return self._peers[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition on the server holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        await self.server.close()


@pytest.fixture
def config(tmp_path: Path) -> NameServerConfig:
    return NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=tmp_path / "kv" / "kvConfig.json")


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(config: NameServerConfig) -> AsyncIterator[Serve]:
    """Starts a nameserver of the common configuration with some fields changed."""
    started: list[Served] = []

    async def start(**changed: Any) -> Served:
        server = NameServer(replace(config, **changed))
        await server.start()
        started.append(Served(server))
        return started[-1]

    yield start
    for served in started:
        await served.close()


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()
