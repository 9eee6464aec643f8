"""The two ends that remoting tests talk to: a handler that records, and a peer made of plain bytes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import Quotas
from ledgermq.remoting.server import RemotingServer
from tests.limits import WAIT_S


class Handler:
    """Records what it is told, and does with requests what `serve` says (by default: echo the body)."""

    def __init__(self) -> None:
        self.requests: list[tuple[Connection, Command]] = []
        self.connections: list[Connection] = []
        self.closed: list[Connection] = []
        self.serve: Callable[[Connection, Command], None] = lambda connection, command: connection.respond(
            command, 0, {"echo": "1"}, bytes(command.body)
        )

    def on_connected(self, connection: Connection) -> None:
        self.connections.append(connection)

    def on_request(self, connection: Connection, command: Command) -> None:
        self.requests.append((connection, command))
        self.serve(connection, command)

    def on_closed(self, connection: Connection) -> None:
        self.closed.append(connection)


class RawPeer:
    """The other end as plain bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._transport = cast(asyncio.Transport, writer.transport)
        self._parser = FrameParser()
        self._received: list[Command] = []

    def send(self, *frames: Command | bytes) -> None:
        self.writer.write(b"".join(encode(frame) if isinstance(frame, Command) else frame for frame in frames))

    async def receive(self) -> Command:
        """The next whole frame; EOFError when the server closed."""
        async with asyncio.timeout(WAIT_S):
            while not self._received:
                data = await self.reader.read(65536)
                if not data:
                    raise EOFError
                self._received += self._parser.feed(data)
        return self._received.pop(0)

    async def closed(self) -> bool:
        """Waits for the server to close; whatever still comes is dropped."""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        return True

    def pause(self) -> None:
        """Take nothing off the socket any more."""
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()


class Serve(Protocol):
    async def __call__(self, limits: Limits = ..., quotas: Quotas | None = ...) -> tuple[RemotingServer, Handler]: ...


Dial = Callable[[RemotingServer], Awaitable[RawPeer]]


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a limit."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def turns(count: int) -> None:
    """Let the loop turn `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
