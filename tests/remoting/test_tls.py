"""One port takes TLS and plain connections, or TLS only; certificates are verified, and replaced while it runs."""

import asyncio
import contextlib
import gc
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.errors import ConnectError, ConnectionLostError, RemotingError, TlsFileError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.serving import line
from ledgermq.remoting.tls import LOOK_INTERVAL_S, ClientAuth, ClientTls, ReloadedContext, ServerTls
from ledgermq.remoting.tls_listener import TlsListener
from tests.limits import WAIT_S
from tests.remoting.certificates import Identity, make_identity
from tests.remoting.peers import Dial, Handler, RawPeer, eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Identity:
    return make_identity(folder, "authority")


@pytest.fixture(scope="module")
def node(folder: Path, authority: Identity) -> Identity:
    return make_identity(folder, "node", issuer=authority)


@pytest.fixture
async def open_end() -> AsyncIterator[contextlib.AsyncExitStack]:
    """Closes servers and clients at the end of the test."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def start_server(
    stack: contextlib.AsyncExitStack,
    settings: ServerTls,
    *,
    takes_plain: bool = True,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> tuple[RemotingServer, Handler]:
    handler = Handler()
    context = ReloadedContext(settings, clock or Clock())
    server = RemotingServer(handler, limits=limits, tls=context, takes_plain=takes_plain)
    await server.start("127.0.0.1", 0)
    stack.push_async_callback(server.close)
    return server, handler


def make_client(stack: contextlib.AsyncExitStack, settings: ClientTls | None) -> RemotingClient:
    client = RemotingClient(tls=None if settings is None else ReloadedContext(settings))
    stack.push_async_callback(client.close)
    return client


async def echo(client: RemotingClient, server: RemotingServer, body: bytes = b"hello") -> bytes:
    answer = await client.request(f"127.0.0.1:{server.port}", Command(10, body=body), 10)
    return bytes(answer.body)


def identity(made: Identity) -> ServerTls:
    return ServerTls(certificate=made.certificate, key=made.key)


async def test_tls_and_plain_clients_share_a_port(
    open_end: contextlib.AsyncExitStack, node: Identity, authority: Identity
) -> None:
    server, handler = await start_server(open_end, identity(node))
    big = bytes(3_000_000)
    assert await echo(make_client(open_end, None), server, big) == big
    assert await echo(make_client(open_end, ClientTls(trusted=authority.certificate)), server, big) == big
    assert len(server.connections) == 2
    assert all(connection.address.startswith("127.0.0.1:") for connection in handler.connections)


async def test_all_is_served_of_a_tls_client_that_sends_much_and_closes(
    open_end: contextlib.AsyncExitStack, node: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    monkeypatch.setattr(line, "_TURN_S", 0.0)
    server, handler = await start_server(open_end, identity(node))
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=_trusting())
    writer.write(b"".join(encode(Command(10, number, flag=ONEWAY_FLAG)) for number in range(5000)))
    writer.close()
    await eventually(lambda: len(handler.closed) == 1)
    assert [command.opaque for _, command in handler.requests] == list(range(5000))


async def test_where_tls_is_enforced_plain_connections_are_closed_unserved(
    open_end: contextlib.AsyncExitStack, node: Identity, authority: Identity
) -> None:
    server, handler = await start_server(open_end, identity(node), takes_plain=False)
    with pytest.raises(ConnectionLostError):
        await echo(make_client(open_end, None), server)
    assert not handler.connections
    assert await echo(make_client(open_end, ClientTls(trusted=authority.certificate)), server) == b"hello"


async def test_a_server_of_an_unknown_authority_is_not_spoken_to(
    open_end: contextlib.AsyncExitStack, node: Identity, folder: Path
) -> None:
    server, handler = await start_server(open_end, identity(node))
    stranger = make_identity(folder, "stranger")
    with pytest.raises(ConnectError, match="its certificate is not accepted"):
        await echo(make_client(open_end, ClientTls(trusted=stranger.certificate)), server)
    assert await echo(make_client(open_end, ClientTls(verify=False)), server) == b"hello"
    assert len(handler.requests) == 1


async def test_a_certificate_must_name_the_address_that_was_dialled(
    open_end: contextlib.AsyncExitStack, authority: Identity, folder: Path
) -> None:
    elsewhere = make_identity(folder, "elsewhere", issuer=authority, alternative="DNS:broker.example")
    server, _ = await start_server(open_end, identity(elsewhere))
    with pytest.raises(ConnectError, match="IP address mismatch"):
        await echo(make_client(open_end, ClientTls(trusted=authority.certificate)), server)
    lax = ClientTls(trusted=authority.certificate, check_host=False)
    assert await echo(make_client(open_end, lax), server) == b"hello"


async def test_a_client_without_the_certificate_that_is_required_is_not_served(
    open_end: contextlib.AsyncExitStack, node: Identity, authority: Identity, folder: Path
) -> None:
    settings = ServerTls(
        certificate=node.certificate, key=node.key, client_auth=ClientAuth.REQUIRE, trusted=authority.certificate
    )
    server, handler = await start_server(open_end, settings)
    with pytest.raises(RemotingError):
        await echo(make_client(open_end, ClientTls(trusted=authority.certificate)), server)
    assert not handler.requests
    mine = make_identity(folder, "mine", issuer=authority)
    known = ClientTls(trusted=authority.certificate, certificate=mine.certificate, key=mine.key)
    assert await echo(make_client(open_end, known), server) == b"hello"


async def test_a_replaced_certificate_is_shown_to_the_next_connection(
    open_end: contextlib.AsyncExitStack, authority: Identity, tmp_path: Path
) -> None:
    node, clock = make_identity(tmp_path, "node", issuer=authority), Clock()
    server, _ = await start_server(open_end, identity(node), clock=clock)
    client = make_client(open_end, ClientTls(trusted=authority.certificate))
    assert await echo(client, server) == b"hello"
    before = await shown_certificate(server)
    make_identity(tmp_path, "node", issuer=authority)
    assert await shown_certificate(server) == before  # not looked at yet
    clock.now += LOOK_INTERVAL_S
    assert await shown_certificate(server) != before
    assert await echo(client, server) == b"hello"  # over the connection it had


async def test_a_half_replaced_pair_of_files_leaves_the_previous_one_in_force(
    open_end: contextlib.AsyncExitStack, authority: Identity, tmp_path: Path
) -> None:
    node, clock = make_identity(tmp_path, "node", issuer=authority), Clock()
    server, _ = await start_server(open_end, identity(node), clock=clock)
    before, old_key = await shown_certificate(server), node.key.read_bytes()
    make_identity(tmp_path, "node", issuer=authority)
    new_key = node.key.read_bytes()
    node.key.write_bytes(old_key)
    clock.now += LOOK_INTERVAL_S
    assert await shown_certificate(server) == before
    node.key.write_bytes(new_key)
    clock.now += LOOK_INTERVAL_S
    assert await shown_certificate(server) != before


async def shown_certificate(server: RemotingServer) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=_trusting())
    try:
        shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert shown
        return shown
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_silent_visitors_count_as_connections_and_are_shown_out(
    open_end: contextlib.AsyncExitStack, node: Identity, dial: Dial
) -> None:
    server, handler = await start_server(open_end, identity(node), limits=Limits(idle_s=0.2, connections=2))
    silent = [await dial(server), await dial(server)]
    assert await (await dial(server)).closed()
    assert [await peer.closed() for peer in silent] == [True, True]
    assert not handler.connections
    assert await echo(make_client(open_end, None), server) == b"hello"


async def test_silent_visitors_from_one_address_count_together(
    open_end: contextlib.AsyncExitStack, node: Identity, dial: Dial
) -> None:
    server, handler = await start_server(open_end, identity(node), limits=Limits(connections_per_address=2))
    visitors = [
        RawPeer(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))) for _ in range(3)
    ]
    assert await visitors[2].closed()
    assert server.connections.refused_count == 1
    visitors[0].writer.close()
    visitors[1].send(Command(7, 3))
    assert (await visitors[1].receive()).opaque == 3
    own = await dial(server)
    own.send(Command(7, 4))
    assert (await own.receive()).opaque == 4
    for visitor in visitors:
        visitor.writer.close()
    assert len(handler.requests) == 2


async def test_unfinished_handshakes_from_one_address_count_together(
    open_end: contextlib.AsyncExitStack, node: Identity, authority: Identity
) -> None:
    server, _ = await start_server(open_end, identity(node), limits=Limits(connections_per_address=2, handshake_s=30))

    async def visit() -> RawPeer:
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0)))
        peer.send(b"\x16")
        return peer

    visitors = [await visit() for _ in range(3)]
    assert await visitors[2].closed()
    assert server.connections.refused_count == 1
    assert await echo(make_client(open_end, ClientTls(trusted=authority.certificate)), server) == b"hello"
    for visitor in visitors:
        visitor.writer.close()

    async def is_let_in() -> bool:
        again = RawPeer(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0)))
        try:
            again.send(Command(7, 3))
            return (await again.receive()).opaque == 3
        except (OSError, EOFError):
            return False
        finally:
            again.writer.close()

    async with asyncio.timeout(WAIT_S):
        while not await is_let_in():
            await asyncio.sleep(0.01)


async def test_bytes_that_are_no_handshake_end_that_connection_only(
    open_end: contextlib.AsyncExitStack, node: Identity, dial: Dial
) -> None:
    server, handler = await start_server(open_end, identity(node), limits=Limits(handshake_s=0.2))
    for greeting in (
        b"\x16\x03\x01\x00\x02\xff\xff",
        b"\x16",
        b"\x17\x03\x03\x00\x01\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        peer = await dial(server)
        peer.send(greeting)
        assert await peer.closed()
    assert not handler.requests
    assert await echo(make_client(open_end, None), server) == b"hello"


async def test_closing_the_server_sends_away_those_at_the_door(
    open_end: contextlib.AsyncExitStack, node: Identity, dial: Dial
) -> None:
    server, handler = await start_server(open_end, identity(node))
    waiting, shaking = await dial(server), await dial(server)
    shaking.send(b"\x16\x03\x01")
    client = make_client(open_end, None)
    await echo(client, server)
    await server.close()
    assert await waiting.closed()
    assert await shaking.closed()
    await eventually(lambda: len(handler.closed) == 1)


@pytest.mark.parametrize("first", [b"\x16", b"\0"], ids=["TLS", "plain"])
async def test_closing_the_server_closes_every_socket_that_was_accepted(
    node: Identity, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """Also one whose first byte has just arrived, so that its handshake is due and has not begun."""
    accepted: list[socket.socket] = []
    welcome = TlsListener._welcome

    def keep(door: TlsListener, visitor: socket.socket, address: str) -> None:
        accepted.append(visitor)
        welcome(door, visitor, address)

    monkeypatch.setattr(TlsListener, "_welcome", keep)
    for turns_before in range(6):
        server = RemotingServer(Handler(), tls=ReloadedContext(identity(node)))
        await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.send(first)
            for _ in range(turns_before):
                await asyncio.sleep(0)
            await server.close()
        await asyncio.sleep(0)
        assert not [one for one in accepted if one.fileno() >= 0], turns_before
    assert accepted


async def test_old_versions_of_tls_are_refused(open_end: contextlib.AsyncExitStack, node: Identity) -> None:
    server, _ = await start_server(open_end, identity(node))
    old = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert await asyncio.wait_for(old.wait(), WAIT_S) != 0


async def test_a_taken_port_is_an_error_that_names_it(open_end: contextlib.AsyncExitStack, node: Identity) -> None:
    server, _ = await start_server(open_end, identity(node))
    second = RemotingServer(Handler(), tls=ReloadedContext(identity(node)))
    with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{server.port}"):
        await second.start("127.0.0.1", server.port)
    await second.close()


def test_files_that_cannot_be_used_are_named(tmp_path: Path, node: Identity, authority: Identity) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsFileError, match=r"missing\.pem cannot be used: No such file"):
        ReloadedContext(ServerTls(certificate=missing, key=node.key))
    with pytest.raises(TlsFileError, match="key values mismatch"):
        ReloadedContext(ServerTls(certificate=authority.certificate, key=node.key))
    (empty := tmp_path / "empty.pem").touch()
    with pytest.raises(TlsFileError, match=r"trusted certificates .*empty\.pem"):
        ReloadedContext(ClientTls(trusted=empty))


def test_a_key_is_opened_with_its_password_which_is_never_shown(tmp_path: Path) -> None:
    locked = make_identity(tmp_path, "locked", password="open sesame")
    settings = ServerTls(certificate=locked.certificate, key=locked.key, key_password="open sesame")
    ReloadedContext(settings)
    assert "sesame" not in repr(settings)
    with pytest.raises(TlsFileError, match=r"locked\.key"):
        ReloadedContext(identity(locked))  # and does not ask at the terminal


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def tls_ends() -> int:
    return sum(isinstance(found, ssl.SSLObject) for found in gc.get_objects())


async def test_what_a_closed_tls_connection_held_is_free_without_the_garbage_collector(
    open_end: contextlib.AsyncExitStack, node: Identity, authority: Identity
) -> None:
    server, _ = await start_server(open_end, identity(node))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    gc.collect()
    gc.disable()
    open_end.callback(gc.enable)
    before = tls_ends()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), 10) as plain:
            await asyncio.to_thread(_shake_hands, context, plain)
    await eventually(lambda: not server.connections)
    await eventually(lambda: tls_ends() <= before)


def _shake_hands(context: ssl.SSLContext, plain: socket.socket) -> None:
    with context.wrap_socket(plain, server_hostname="127.0.0.1"):
        pass
