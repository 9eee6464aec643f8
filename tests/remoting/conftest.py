"""Servers, clients and raw peers on both event loops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import Quotas
from ledgermq.remoting.server import RemotingServer
from tests.remoting.peers import Dial, Handler, RawPeer, Serve


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test here runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers on free ports; closes them at the end."""
    servers = []

    async def start(
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        quotas: Quotas | None = None,
    ) -> tuple[RemotingServer, Handler]:
        handler = Handler()
        server = RemotingServer(handler, limits=limits, quotas=quotas)
        await server.start("127.0.0.1", 0)
        servers.append(server)
        return server, handler

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Connects raw peers to a server."""
    writers = []

    async def connect(server: RemotingServer) -> RawPeer:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writers.append(writer)
        return RawPeer(reader, writer)

    yield connect
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()
