"""A desk: a broker's real parts on a real store in a temporary directory, with client connections in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from broker.log_follower import LogFollower
from broker.parts import Parts
from broker.state.files import StateWriter
from broker.timers import Timers
from dledger.refusals import not_leader
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.refusal import LeaderHint
from node.log_choice import open_store_of
from node.node_config import NodeConfig
from store.message_store import MessageStore
from store.opening import OpenStore
from store.replicated_log import LogRole, LogState
from telemetry.metrics import Registry
from tests.limits import WAIT_S
from tests.node_config import node_config

STORE_HOST = encode_host(Host("127.0.0.1", 10911))


def log_state(*, writable: bool, generation: int, leader: LeaderHint | None = None) -> LogState:
    """Return the log state of a group's leader, or of a follower."""
    if writable:
        return LogState(LogRole.LEADER, generation, leader, None)
    return LogState(LogRole.FOLLOWER, generation, leader, not_leader("n1", generation, leader))


async def eventually(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait until the condition holds.

    Raises:
        AssertionError: it does not within `WAIT_S`.
    """
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true") from None


class MemoryTransport(asyncio.Transport):
    """Takes what a connection writes; keeps each write apart."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 10911)})
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class MemoryClient:
    """The client's end of a connection to a desk."""

    def __init__(self, parts: Parts, peer: tuple[str, int]) -> None:
        self.transport = MemoryTransport(peer)
        self.connection = Connection(
            parts.handler,
            Limits(),
            admit=lambda _: None,
            on_lost=lambda _connection, _reason: None,
            quotas=parts.quotas,
        )
        self.connection.connection_made(self.transport)
        self._parser = FrameParser()
        self._read = 0
        self._opaque = 0
        self.answers: dict[int, Command] = {}
        self.requests: list[Command] = []

    def give(self, *commands: Command) -> None:
        """Pass frames to the broker as one piece of input."""
        self.connection.data_received(b"".join(map(encode, commands)))

    def take(self) -> None:
        """Read what has been written since."""
        for data in self.transport.writes[self._read :]:
            for command in self._parser.feed(data):
                if command.is_response:
                    self.answers[command.opaque] = command
                else:
                    self.requests.append(command)
        self._read = len(self.transport.writes)

    async def answer_to(self, opaque: int) -> Command:
        """The answer to one request."""

        def arrived() -> bool:
            self.take()
            return opaque in self.answers

        await eventually(arrived, f"an answer to {opaque}")
        return self.answers[opaque]

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> Command:
        """Send one request and wait for its answer."""
        opaque = self.start(code, ext, body, **more)
        return await self.answer_to(opaque)

    def start(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> int:
        """Send one request; returns its opaque."""
        self._opaque += 1
        self.give(Command(code, self._opaque, ext=ext, body=body, **{"language": "JAVA", **more}))
        return self._opaque

    def close(self) -> None:
        """Close the client's end."""
        self.connection.connection_lost(None)


class Desk:
    """Parts on an open store; a test may `stop` it and `start` it again to see what is kept."""

    def __init__(self, config: NodeConfig) -> None:
        self.node_config = config
        self.config = config.broker
        self.announced = 0
        self.nameservers_answer = asyncio.Event()
        self.nameservers_answer.set()
        self._ports = 50_000
        self._opened: OpenStore | None = None
        self._parts: Parts | None = None
        self._timers: Timers | None = None

    @property
    def parts(self) -> Parts:
        assert self._parts is not None, "the desk is not started"
        return self._parts

    @property
    def store(self) -> MessageStore:
        return self.parts.context.store

    async def start(self) -> None:
        self._timers = Timers(asyncio.get_running_loop())
        flushes = Registry().histogram("flush_seconds", "Unused here.")
        self.follower = follower = LogFollower(self.config, STORE_HOST, self, self._timers, flushes)
        chosen = await open_store_of(self.node_config, STORE_HOST, "127.0.0.1:10911", follower, RemotingClient())
        self._opened = chosen.store
        self._parts = follower.parts
        await eventually(lambda: self.parts.context.role.writable, "the broker takes messages")

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        self.announced += 1

    async def announce(self) -> None:
        await self.nameservers_answer.wait()
        self.announced += 1

    async def stop(self, *, save_tables: bool = True) -> None:
        if self._opened is None:
            return
        self.parts.stop()
        await self.parts.delay.deliveries.drain()
        if save_tables:
            await self.parts.context.offsets.drain()
            StateWriter(self.config.store.root / "config").write(self.parts.context.state)
        if self._timers is not None:
            await self._timers.close()
        await self.follower.close()
        await self._opened.close()
        self._opened = None

    def client(self) -> MemoryClient:
        """A new connection, from a port of its own."""
        self._ports += 1
        return MemoryClient(self.parts, ("127.0.0.1", self._ports))

    def records(self) -> list[Record]:
        """Return all confirmed records, in the log's order."""
        log = self.store.log
        return [record for _, view in log.walk(log.min_offset, log.confirm_offset) for record in decode_records(view)]


def send_fields(topic: str = "T", queue: int | str = 0, **changes: str) -> dict[str, str]:
    """The header of a SEND_MESSAGE_V2."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "UNIQ_KEY\x010A0B0C\x02TAGS\x01TagA\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        **changes,
    }


def pull_fields(topic: str = "T", /, *, offset: object = 0, **changes: object) -> dict[str, str]:
    """The header of a PULL_MESSAGE that contains its subscription."""
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def topic_fields(name: str, queues: int = 1, perm: int = 6, **changes: str) -> dict[str, str]:
    """The header of an UPDATE_AND_CREATE_TOPIC."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        **changes,
    }


async def make_topic(client: MemoryClient, name: str = "T", queues: int = 1, perm: int = 6) -> None:
    """Make a topic as mqadmin does."""
    answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues, perm))
    assert answer.code == 0, answer


async def send(client: MemoryClient, body: bytes = b"hello", **changes: Any) -> Command:
    """Send one message; it must be accepted."""
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(**changes), body)
    assert answer.code == 0, answer
    return answer


def small_config(directory: Path, **changes: Any) -> NodeConfig:
    """A standalone broker with small files."""
    return node_config(
        **{
            "broker_name": "b",
            "storePathRootDir": directory,
            "mappedFileSizeCommitLog": 1 << 20,
            "max_message_size_bytes": 100_000,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "consumer_offset_persist_interval_ms": 100,
            "diskMaxUsedSpaceRatio": 1.0,  # also on a machine whose disk is nearly full
            "diskSpaceCleanForciblyRatio": 1.0,
            "diskSpaceWarningLevelRatio": 1.0,
            **changes,
        }
    )


@pytest.fixture
async def desk(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """A started desk; `@pytest.mark.parametrize("desk", [{...}], indirect=True)` changes its configuration."""
    changes = cast(dict[str, Any], getattr(request, "param", {}))
    desk = Desk(small_config(tmp_path, **changes))
    await desk.start()
    yield desk
    with contextlib.suppress(TimeoutError):
        await desk.stop(save_tables=False)


@pytest.fixture
async def client(desk: Desk) -> MemoryClient:
    """A connection to the desk."""
    return desk.client()
