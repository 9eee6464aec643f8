"""Each limit on what nobody has authenticated: just within it is served, one more is not, others are served on."""

import asyncio
import gc
import struct
import tracemalloc
from types import SimpleNamespace

import pytest

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.codec.headers import decode_odd_json_header
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import UNFINISHED_FREE_BYTES
from ledgermq.remoting.errors import FrameError, JsonError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.server import RemotingServer
from tests.remoting.peers import Dial, RawPeer, Serve, eventually


async def test_a_header_one_byte_too_long_closes_and_one_as_long_as_may_be_is_served(serve: Serve, dial: Dial) -> None:
    just = Command(7, 1, ext={"a": "x" * 500})
    size = struct.unpack_from(">i", encode(just), 4)[0]
    server, _ = await serve(Limits(header_bytes=size))
    good, bad = await dial(server), await dial(server)
    good.send(just)
    bad.send(Command(7, 1, ext={"a": "x" * 501}))
    assert (await good.receive()).opaque == 1
    assert await bad.closed()


async def test_a_header_with_one_field_too_many_closes(serve: Serve, dial: Dial) -> None:
    server, _ = await serve(Limits(header_fields=3))
    good, bad = await dial(server), await dial(server)
    good.send(Command(7, 1, ext={"a": "", "b": "", "c": ""}))
    bad.send(Command(7, 1, ext={"a": "", "b": "", "c": "", "d": ""}))
    assert (await good.receive()).opaque == 1
    assert await bad.closed()


@pytest.mark.parametrize("header_type", [0, 1])
def test_fields_are_counted_in_both_forms_of_header(header_type: int) -> None:
    command = Command(7, ext={f"f{n}": "v" for n in range(129)}, header_type=header_type)
    with pytest.raises(FrameError, match="129 fields, must be at most 128"):
        FrameParser().feed(encode(command))


def test_a_header_nests_eight_deep_at_most() -> None:
    def header(depth: int) -> bytes:
        return b'{"code":1,"opaque":1,"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"

    assert decode_odd_json_header(header(7)).ext == {"a": "[[[[[[[]]]]]]]"}
    with pytest.raises(JsonError, match="nested deeper than 8"):
        decode_odd_json_header(header(9))


async def _from_another_address(port: int) -> RawPeer:
    return RawPeer(*await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)))


async def test_one_address_too_often_is_closed_and_this_machine_and_others_are_not(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(connections_per_address=2))
    peers = [await _from_another_address(server.port) for _ in range(2)]
    await eventually(lambda: len(handler.connections) == 2)
    one_more = await _from_another_address(server.port)
    assert await one_more.closed()
    assert server.connections.refused_count == 1
    for number in range(4):
        own = await dial(server)
        own.send(Command(7, number))
        assert (await own.receive()).opaque == number
    peers[0].writer.close()
    await eventually(lambda: len(handler.closed) == 1)
    again = await _from_another_address(server.port)
    again.send(Command(7, 9))
    assert (await again.receive()).opaque == 9
    for peer in (*peers, one_more, again):
        peer.writer.close()


async def test_clients_of_this_machine_leave_a_quarter_of_the_connections_to_others(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(connections=8, connections_per_address=2))
    own = [await dial(server) for _ in range(7)]
    assert await own[6].closed()
    others = [await _from_another_address(server.port) for _ in range(2)]
    await eventually(lambda: len(handler.connections) == 8)
    own[0].writer.close()
    await eventually(lambda: len(handler.closed) == 1)
    again = await dial(server)
    again.send(Command(7, 9))
    assert (await again.receive()).opaque == 9
    for peer in others:
        peer.writer.close()


async def test_connections_leave_descriptors_for_files(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = SimpleNamespace(getrlimit=lambda _: (260, 260), RLIMIT_NOFILE=7, RLIM_INFINITY=-1)
    monkeypatch.setattr("ledgermq.remoting.server.resource", limited)  # only there: others would set this limit
    server, _ = await serve()
    peers = [await dial(server) for _ in range(5)]
    peers[0].send(Command(7, 1))
    assert (await peers[0].receive()).opaque == 1
    assert await peers[4].closed()
    assert server.connections.refused_count == 1


async def test_frames_that_came_in_part_are_bounded_together_and_the_oldest_make_room(serve: Serve, dial: Dial) -> None:
    part = UNFINISHED_FREE_BYTES + 40_000
    server, handler = await serve(Limits(unfinished_bytes=100_000))
    whole = encode(Command(7, 1, body=bytes(200_000)))
    left_lying = [await dial(server) for _ in range(2)]
    for number, peer in enumerate(left_lying, 1):
        peer.send(whole[:part])
        await eventually(lambda size=40_000 * number: server.connections.unfinished_bytes == size)  # type: ignore[misc]
    sender = await dial(server)
    sender.send(whole[:part])
    assert await left_lying[0].closed()
    await eventually(lambda: server.connections.unfinished_bytes == 80_000)
    sender.send(whole[part:])
    assert (await sender.receive()).opaque == 1
    assert server.connections.unfinished_bytes == 40_000
    left_lying[1].send(whole[part:])
    assert (await left_lying[1].receive()).opaque == 1
    assert server.connections.unfinished_bytes == 0
    assert len(handler.closed) == 1


async def test_a_frame_does_not_get_younger_while_nothing_is_read_from_its_connection(serve: Serve, dial: Dial) -> None:
    """Else one who has himself held back would keep his part of the bytes, and others' frames would make room."""
    part = UNFINISHED_FREE_BYTES + 40_000
    server, _ = await serve(Limits(unfinished_bytes=100_000))
    whole = encode(Command(7, 1, body=bytes(200_000)))
    held_back, slow, sender = [await dial(server) for _ in range(3)]
    held_back.send(whole[:part])
    await eventually(lambda: server.connections.unfinished_bytes == 40_000)
    connection = next(one for one in server.connections if one.unfinished_since is not None)
    connection.throttle(60)
    throttled_at = asyncio.get_running_loop().time()
    read_s = throttled_at - (connection.unfinished_since or 0.0)
    slow.send(whole[:part])
    await eventually(lambda: server.connections.unfinished_bytes == 80_000)
    await eventually(lambda: asyncio.get_running_loop().time() > throttled_at + 10 * read_s)
    sender.send(whole[:part])
    assert await held_back.closed()
    for peer in (slow, sender):
        peer.send(whole[part:])
        assert (await peer.receive()).opaque == 1


async def test_two_listeners_of_a_process_share_the_limits_of_bytes(serve: Serve, dial: Dial) -> None:
    limits, part = Limits(unfinished_bytes=100_000), UNFINISHED_FREE_BYTES + 40_000
    whole = encode(Command(7, 1, body=bytes(200_000)))
    server, handler = await serve(limits)
    other = RemotingServer(handler, limits=limits, beside=server)
    await other.start("127.0.0.1", 0)
    try:
        first = await dial(server)
        first.send(whole[:part])
        await eventually(lambda: other.connections.unfinished_bytes == 40_000)
        for _ in range(2):
            (await dial(other)).send(whole[:part])
        assert await first.closed()
        await eventually(lambda: server.connections.unfinished_bytes == 80_000)
        assert other.line is server.line and other.connections.output is server.connections.output
    finally:
        await other.close()


async def test_a_frame_that_alone_is_too_much_is_closed(serve: Serve, dial: Dial) -> None:
    server, _ = await serve(Limits(unfinished_bytes=100_000))
    peer = await dial(server)
    peer.send(bytes.fromhex("00100000") + encode(Command(7, 1, body=bytes(500_000)))[4:])
    assert await peer.closed()
    await eventually(lambda: server.connections.unfinished_bytes == 0)


async def test_a_connection_that_ends_leaves_nothing_of_its_half_frame_behind(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    half = encode(Command(7, 1, body=bytes(2_000_000)))[:1_000_000]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for number in range(1, 21):
            peer = await dial(server)
            peer.send(half)
            await eventually(lambda: server.connections.unfinished_bytes > 900_000)
            peer.writer.close()
            await eventually(lambda count=number: len(handler.closed) == count)  # type: ignore[misc]
        assert tracemalloc.get_traced_memory()[0] < 10_000_000
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("text", [b"{a:18446744073709551616}", b"{a:-9223372036854775809}"])
def test_an_integer_beyond_64_bits_is_refused_by_its_place(text: bytes) -> None:
    with pytest.raises(JsonError, match="does not fit into 64 bits"):
        loads(text)


def test_an_integer_beyond_64_bits_in_standard_json_is_no_integer() -> None:
    assert isinstance(loads(b"18446744073709551616"), float)
    assert loads(b"9223372036854775807") == 2**63 - 1
