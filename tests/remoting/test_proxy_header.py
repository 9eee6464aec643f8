"""Headers of proxies: read as their specification says, believed from trusted addresses only."""

import asyncio
import contextlib
import ipaddress
import ssl
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.hosts import Host
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import AddressQuotas, Quotas
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.serving.proxy_header import ProxyHeader, ProxyHeaderError, read_proxy_header
from ledgermq.remoting.tls import ReloadedContext, ServerTls
from tests.remoting.certificates import make_identity
from tests.remoting.peers import Dial, Handler, RawPeer, Serve

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
TEXT = b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 10911\r\n"
HERE = Limits(proxies=(ipaddress.ip_network("127.0.0.0/8"),))


def binary(addresses: bytes, family: int = 0x11, version: int = 0x21) -> bytes:
    return SIGNATURE + struct.pack(">BBH", version, family, len(addresses)) + addresses


FOUR = bytes([192, 0, 2, 7, 10, 0, 0, 1]) + struct.pack(">HH", 40_000, 10_911)
SIX = ipaddress.ip_address("2001:db8::7").packed + bytes(16) + struct.pack(">HH", 40_000, 10_911)


@pytest.mark.parametrize(
    ("data", "client"),
    [
        (TEXT, Host("192.0.2.7", 40_000)),
        (b"PROXY TCP6 2001:db8::7 ::1 40000 1\r\n", Host("2001:db8::7", 40_000)),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 40000 1\r\n", Host("192.0.2.7", 40_000)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (binary(FOUR), Host("192.0.2.7", 40_000)),
        (binary(SIX, 0x21), Host("2001:db8::7", 40_000)),
        (binary(FOUR + b"\x04\x00\x01x"), Host("192.0.2.7", 40_000)),  # a further part
        (binary(b"", 0x00, 0x20), None),  # the proxy's own check
        (binary(bytes(216), 0x31), None),  # a unix socket
    ],
)
def test_a_header_names_the_client(data: bytes, client: Host | None) -> None:
    assert read_proxy_header(data + b"\x00\x00more") == ProxyHeader(len(data), client)


@pytest.mark.parametrize(
    "data",
    [
        TEXT[:-1], b"PROXY TCP4 192.0.2.7 10.0.0.1 40000\r\n", b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 70000 1\r\n", b"PROXY UDP4 192.0.2.7 10.0.0.1 1 2\r\n", b"PROXY \r\n",
        b"PROXY TCP4 " + b"1" * 200 + b"\r\n", binary(FOUR)[:-1], binary(FOUR[:8]), binary(FOUR, version=0x11),
        binary(FOUR, version=0x2F), binary(bytes(2000)), SIGNATURE,
    ],
)  # fmt: skip
def test_a_wrong_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(data)


@given(st.sampled_from([TEXT, binary(FOUR), binary(SIX, 0x21)]), st.integers(0, 60), st.integers(0, 255))
def test_any_bytes_are_a_header_none_or_refused(data: bytes, at: int, value: int) -> None:
    changed = bytearray(data)
    changed[at % len(data)] = value
    with contextlib.suppress(ProxyHeaderError):
        read_proxy_header(bytes(changed))


async def told(dial: Dial, server: RemotingServer, *data: bytes) -> RawPeer:
    """A connection on which this was sent."""
    peer = await dial(server)
    peer.send(*data)
    return peer


async def test_a_trusted_proxys_client_has_its_own_address_and_its_own_bound(serve: Serve, dial: Dial) -> None:
    limits = Limits(proxies=HERE.proxies, connections_per_address=1)
    server, _ = await serve(limits)
    first = await told(dial, server, TEXT + encode(Command(1, 1)))
    await first.receive()
    (connection,) = server.connections
    assert (connection.address, connection.is_local) == ("192.0.2.7:40000", False)
    assert await (await told(dial, server, TEXT.replace(b"40000", b"40001"))).closed()  # its second one
    other = await told(dial, server, binary(SIX, 0x21) + encode(Command(1, 1)))
    await other.receive()
    plain = await told(dial, server, encode(Command(1, 1)))  # the proxy itself
    await plain.receive()
    assert {one.peer[0] for one in server.connections} == {"192.0.2.7", "2001:db8::7", "127.0.0.1"}


async def test_what_a_proxy_calls_its_own_machine_is_not_this_one(serve: Serve, dial: Dial) -> None:
    server, _ = await serve(HERE)
    peer = await told(dial, server, b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 10911\r\n" + encode(Command(1, 1)))
    await peer.receive()
    (connection,) = server.connections
    assert (connection.address, connection.is_local) == ("127.0.0.1:40000", False)


async def test_headers_of_others_wrong_ones_and_second_ones_end_the_connection(serve: Serve, dial: Dial) -> None:
    elsewhere, _ = await serve(Limits(proxies=(ipaddress.ip_network("192.0.2.1"),)))
    assert await (await told(dial, elsewhere, TEXT + encode(Command(1, 1)))).closed()
    nobody, _ = await serve(Limits())
    assert await (await told(dial, nobody, TEXT + encode(Command(1, 1)))).closed()
    trusting, _ = await serve(HERE)
    assert await (await told(dial, trusting, TEXT + TEXT)).closed()
    assert await (await told(dial, trusting, binary(FOUR, version=0x11))).closed()


async def test_connects_count_for_the_client_and_not_for_its_proxy(serve: Serve, dial: Dial) -> None:
    quotas = Quotas(AddressQuotas(connects_a_second=1))
    server, _ = await serve(HERE, quotas=quotas)
    peers = [await told(dial, server, TEXT + encode(Command(1, 1))) for _ in range(13)]  # ten at once may come
    other = await told(dial, server, binary(SIX, 0x21) + encode(Command(1, 1)))
    await other.receive()
    assert len(server.connections) < len(peers)


async def test_a_header_comes_before_the_handshake(tmp_path: Path) -> None:
    made = make_identity(tmp_path, "node")
    context = ReloadedContext(ServerTls(certificate=made.certificate, key=made.key), lambda: 0.0)
    server = RemotingServer(Handler(), limits=HERE, tls=context, takes_plain=False)
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(TEXT)
    await writer.start_tls(ssl.create_default_context(cafile=str(made.certificate)), server_hostname="127.0.0.1")
    peer = RawPeer(reader, writer)
    peer.send(Command(1, 1))
    await peer.receive()
    assert [one.peer[0] for one in server.connections] == ["192.0.2.7"]
    writer.close()
    await server.close()
