"""Frames and connections between peers: what is said arrives, strangers and garbage are refused, loss is told."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    InstallRequest,
    InstallResponse,
    Span,
    TermRun,
    TransferRequest,
    VoteCause,
    VoteRequest,
    VoteResponse,
)
from dledger.errors import ListenError, PeerProtocolError
from dledger.peers.frame_stream import FrameStream, frame_header, frame_prefix
from dledger.peers.hello import decode_hello
from dledger.peers.wire import (
    APPEND_REQUEST,
    CHALLENGE,
    HELLO,
    CopyRequest,
    CopyResponse,
    Encoder,
    PeerMessage,
    decode,
    seal,
)
from ledgermq.remoting.proof import NONCE_SIZE
from tests.dledger.conftest import until
from tests.dledger.peers.pair import Pair, hello
from tests.limits import WAIT_S

I64 = st.integers(-(2**63), 2**63 - 1)
INDEX = st.integers(0, 2**62)
SPANS = st.builds(
    lambda term, first, count, start, data: Span(term, first, first + count, start, start + len(data), data),
    I64, INDEX, st.integers(0, 1000), INDEX, st.binary(min_size=1, max_size=300),
)  # fmt: skip
MESSAGES = st.one_of(
    st.builds(AppendRequest, I64, st.just("n1"), I64, I64, st.none() | SPANS, I64, I64, I64),
    st.builds(
        AppendResponse, I64, st.booleans(), I64, I64, I64, I64, st.booleans(),
        st.lists(st.builds(TermRun, I64, I64), max_size=64).map(tuple),
    ),
    st.builds(VoteRequest, I64, st.just("n1"), I64, I64, st.booleans(), st.booleans(), st.booleans()),
    st.builds(VoteResponse, I64, st.booleans(), st.booleans(), st.sampled_from(VoteCause), I64, I64, st.booleans()),
    st.builds(InstallRequest, I64, st.just("n1"), I64, I64, I64, I64, I64, I64, st.binary(max_size=300), I64),
    st.builds(InstallResponse, I64, st.booleans(), I64, I64, st.booleans(), I64),
    st.builds(TransferRequest, I64, st.just("n1")),
    st.builds(CopyRequest, I64, I64),
    st.builds(CopyResponse, I64, I64, st.binary(max_size=300)),
)  # fmt: skip


class Frames:
    """A frame handler that keeps copies."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes]] = []

    def on_open(self, transport: asyncio.Transport) -> None: ...

    def on_frame(self, code: int, body: memoryview) -> None:
        self.seen.append((code, bytes(body)))

    def on_closed(self, error: Exception | None) -> None: ...


def feed(stream: FrameStream, data: bytes, piece: int) -> None:
    for at in range(0, len(data), piece):
        left = data[at : at + piece]
        while left:
            room = stream.get_buffer(-1)
            size = min(len(room), len(left))
            room[:size] = left[:size]
            left = left[size:]
            stream.buffer_updated(size)


@settings(deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=8), piece=st.integers(1, 700))
def test_every_message_arrives_as_it_was_however_the_bytes_are_cut(messages: list[PeerMessage], piece: int) -> None:
    encoder, frames = Encoder(), Frames()
    feed(FrameStream(frames, 1 << 20), b"".join(b"".join(encoder.encode(message)) for message in messages), piece)
    assert [decode(code, memoryview(body), "n1") for code, body in frames.seen] == messages


@settings(deadline=None)
@given(message=MESSAGES, data=st.data())
def test_any_changed_bit_of_a_body_is_refused(message: PeerMessage, data: st.DataObject) -> None:
    frames = Frames()
    feed(FrameStream(frames, 1 << 20), b"".join(Encoder().encode(message)), 10**6)
    code, body = frames.seen[0]
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PeerProtocolError):
        decode(code, memoryview(changed), "n1")


def test_a_frame_larger_than_the_buffer_arrives_whole() -> None:
    frames = Frames()
    stream = FrameStream(frames, 64 << 20)
    small, large = seal(HELLO, b"small"), seal(HELLO, bytes(range(256)) * 20_000)
    feed(stream, small + large + small + large + small, 300_000)
    assert [len(body) - 6 for _, body in frames.seen] == [5, 5_120_000, 5, 5_120_000, 5]
    assert len(stream.get_buffer(-1)) <= 1 << 20, "the large buffer is let go"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        struct.pack(">ii", 1 << 30, 10),
        struct.pack(">ii", 20, 1 << 24 | 8) + bytes(20),
        struct.pack(">ii", 20, 100) + bytes(100),
        frame_prefix(b"no json", 0),
        frame_prefix(b'{"flag":2}', 0),
        frame_prefix(b"[1]", 0),
    ],
)
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    stream = FrameStream(Frames(), 1 << 16)
    with pytest.raises(PeerProtocolError):
        feed(stream, garbage, 1000)
        if stream._error is not None:
            raise stream._error


def test_an_unknown_code_is_a_protocol_error() -> None:
    with pytest.raises(PeerProtocolError, match="code 10 "):
        decode(10, memoryview(bytes(50)), "n1")


# ---- connections


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    for transport in made.transports:
        await transport.close()


async def test_peers_join_and_messages_arrive_in_order(pair: Pair) -> None:
    (zero, ear0), (one, ear1) = await pair.start("n0"), await pair.start("n1")
    await until(lambda: ear0.joined and ear1.joined, "both joined")
    assert ear0.hellos["n1"].client_address == "n1:10911"
    for term in range(100):
        zero.send("n1", TransferRequest(term, "n0"))
    one.send("n0", TransferRequest(7, "n1"))
    await until(lambda: len(ear1.messages) == 100 and ear0.messages, "the messages")
    assert ear1.messages == [("n0", TransferRequest(term, "n0")) for term in range(100)]
    assert ear0.messages == [("n1", TransferRequest(7, "n1"))]


async def test_a_message_to_a_peer_that_is_not_there_is_dropped(pair: Pair) -> None:
    zero, _ = await pair.start("n0")
    zero.send("n1", TransferRequest(1, "n0"))


async def test_a_peer_whose_process_ends_is_lost_at_once_and_joins_again(pair: Pair) -> None:
    (_, ear0), (one, _) = await pair.start("n0"), await pair.start("n1")
    await until(lambda: ear0.joined, "joined")
    await one.close()
    await until(lambda: ear0.lost == ["n1"], "told of the loss")
    await pair.start("n1", session="another process")
    await until(lambda: len(ear0.joined) == 2, "joined again")


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"cluster": "Other"}, "cluster", "'Other'"),
        ({"group": "Other"}, "group", "'Other'"),
        ({"node_id": "n7"}, "node id", "'n7'"),
        ({"version": 1}, "protocol version", "1"),
        ({"version": 3}, "protocol version", "3"),
        ({"members": "n0;n1;n2"}, "dLegerPeers", "'n0;n1;n2'"),
        ({"data_file_size": 8192}, "data file size", "8192"),
    ],
)
async def test_a_stranger_is_refused_and_named_once(
    pair: Pair, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], field: str, value: str
) -> None:
    caplog.set_level(logging.WARNING)
    zero, ear0 = await pair.start("n0")
    one, ear1 = await pair.start("n1", **changes)
    said = f"its {field} is {value}"
    await until(lambda: any(said in record.message for record in caplog.records), said)
    await asyncio.sleep(0.3)  # time for more attempts, which must not be told again
    texts = [record.message for record in caplog.records]
    assert len(texts) == len(set(texts))
    assert not ear0.joined and not ear1.joined
    assert zero.refused_count and one.refused_count, "both sides count it"


def test_a_hello_of_an_older_version_is_read_as_far_as_its_version() -> None:
    said = json.loads(hello("n1", version=1).encode())
    del said["members"], said["nonce"]
    assert decode_hello(json.dumps(said).encode()).version == 1


async def test_a_node_that_meant_another_one_is_told(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    _, ear0 = await pair.start("n0")
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["n0"])
    writer.write(seal(HELLO, replace(hello("n1"), to="n5").encode()))
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    assert answer.endswith(b"addressee"), "told what is wrong"
    assert b"n0" not in answer, "not told what would be right"
    writer.close()
    assert not ear0.joined
    assert "its addressee is" in caplog.text


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        frame_prefix(frame_header(APPEND_REQUEST), 10) + bytes(10),
        seal(HELLO, b"{}"),
        seal(HELLO, b"[1"),
        seal(HELLO, b"[" * 3000),
        seal(HELLO, hello("n1", to="n0", nonce="0").encode()),
        seal(CHALLENGE, bytes(NONCE_SIZE)),
        struct.pack(">ii", 60 << 20, 8),
    ],
)
async def test_whoever_does_not_say_hello_is_closed_and_the_node_goes_on(pair: Pair, first: bytes) -> None:
    _, ear0 = await pair.start("n0")
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["n0"])
    await asyncio.wait_for(reader.readexactly(len(seal(CHALLENGE, bytes(NONCE_SIZE)))), WAIT_S)
    writer.write(first)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await asyncio.wait_for(reader.readexactly(1), WAIT_S)
    writer.close()
    _, ear1 = await pair.start("n1")
    await until(lambda: ear0.joined and ear1.joined, "the true peer joined")


async def test_nothing_of_a_peers_earlier_connection_is_heard_after_the_hello_of_its_next_one(pair: Pair) -> None:
    zero, ear0 = await pair.start("n0")
    said = seal(HELLO, replace(hello("n1"), to="n0").encode())
    frames = Frames()
    feed(FrameStream(frames, 1 << 16), b"".join(Encoder().encode(TransferRequest(1, "n1"))), 1000)
    ((code, body),) = frames.seen
    connections, accepted = [], []
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["n0"])
        connections.append(writer)
        await asyncio.wait_for(reader.readexactly(len(seal(CHALLENGE, bytes(NONCE_SIZE)))), WAIT_S)
        writer.write(said)
        await asyncio.wait_for(reader.readexactly(1), WAIT_S)
        accepted.append(zero.links["n1"]._accepted)
    older, newer = accepted
    assert older is not None and newer is not None and newer is not older
    older.on_frame(code, memoryview(body))  # it lay in the socket when the connection was closed
    assert not ear0.messages
    newer.on_frame(code, memoryview(body))
    assert ear0.messages == [("n1", TransferRequest(1, "n1"))]
    for writer in connections:
        writer.close()


async def test_a_peer_that_sends_a_wrong_crc_is_cut_off(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    (zero, ear0), (_, ear1) = await pair.start("n0"), await pair.start("n1")
    await until(lambda: ear0.joined and ear1.joined, "joined")
    frame = bytearray(b"".join(Encoder().encode(TransferRequest(1, "n0"))))
    frame[-1] ^= 1
    zero.links["n1"].write([bytes(frame)])
    await until(lambda: ear1.lost, "cut off")
    assert "CRC" in caplog.text
    assert not ear1.messages
    await until(lambda: len(ear1.joined) == 2, "joined again")


async def test_a_peer_that_does_not_read_is_cut_off(pair: Pair) -> None:
    (zero, ear0), (one, ear1) = await pair.start("n0", queue_limit=100_000), await pair.start("n1")
    await until(lambda: ear0.joined and ear1.joined, "joined")
    accepted = one.links["n0"]._accepted
    assert accepted is not None and accepted._transport is not None
    accepted._transport.pause_reading()
    for _ in range(200):
        zero.send("n1", InstallRequest(1, "n0", 0, 0, 0, 1, 100_000, 0, bytes(100_000), 1))
        if ear0.lost:
            break
    assert ear0.lost == ["n1"]


async def test_an_address_in_use_is_a_listen_error(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", pair.ports["n0"])), pytest.raises(ListenError, match=str(pair.ports["n0"])):
        await pair.start("n0")


async def test_silent_connections_do_not_pile_up(pair: Pair) -> None:
    zero, _ = await pair.start("n0")
    connections = [await asyncio.open_connection("127.0.0.1", pair.ports["n0"]) for _ in range(80)]
    await until(lambda: len(zero._unknown) <= 16, "the oldest closed")
    assert zero.refused_count >= 64
    for _, writer in connections:
        writer.close()
