"""A server serves good frames, refuses bad ones by closing, and bounds what any peer can make it hold."""

import asyncio
import contextlib
import logging
import socket

import pytest

from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from ledgermq.remoting.server import RemotingServer
from tests.limits import WAIT_S
from tests.remoting.peers import Dial, Handler, Serve, eventually, turns

MIB = 1024 * 1024


async def test_answers_come_in_the_order_in_which_they_are_given(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    waiting: list[tuple[Connection, Command]] = []
    handler.serve = lambda connection, command: waiting.append((connection, command))
    peer = await dial(server)
    peer.send(Command(10, 1, body=b"one"), Command(10, 2), Command(10, 3))
    while len(waiting) < 3:
        await asyncio.sleep(0)
    for connection, command in reversed(waiting):
        connection.respond(command, 0, body=bytes(command.body))
    answers = [await peer.receive() for _ in range(3)]
    assert [(answer.opaque, answer.flag, bytes(answer.body)) for answer in answers] == [
        (3, RESPONSE_FLAG, b""),
        (2, RESPONSE_FLAG, b""),
        (1, RESPONSE_FLAG, b"one"),
    ]
    assert waiting[0][0].in_flight == 0


async def test_oneway_requests_are_served_and_never_answered(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()

    def fail_when_oneway(connection: Connection, command: Command) -> None:
        if command.code == 98:
            raise Refusal(Cause.BUSY, "no")
        if command.code == 99:
            raise ZeroDivisionError
        connection.respond(command, 0)

    handler.serve = fail_when_oneway
    peer = await dial(server)
    peer.send(*(Command(code, 1, ONEWAY_FLAG) for code in (10, 98, 99)), Command(10, 2))
    assert (await peer.receive()).opaque == 2
    assert len(handler.requests) == 4
    assert handler.connections[0].in_flight == 0


async def test_a_refusal_is_answered_with_its_hints(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()

    def refuse(connection: Connection, command: Command) -> None:
        hint = LeaderHint("n1", "10.0.0.2:10911")
        raise Refusal(Cause.NOT_LEADER, "n1 leads in term 3", retry_after_ms=50, leader_hint=hint)

    handler.serve = refuse
    peer = await dial(server)
    peer.send(Command(10, 1))
    answer = await peer.receive()
    assert (answer.code, answer.remark) == (14, "n1 leads in term 3")
    assert answer.ext == {
        "cause": "not-leader",
        "retryAfterMs": "50",
        "leaderHint": "10.0.0.2:10911",
        "leaderId": "n1",
    }


async def test_a_failing_handler_is_answered_by_name_without_a_traceback(
    serve: Serve, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    server, handler = await serve()

    def fail(connection: Connection, command: Command) -> None:
        raise KeyError("missing \ud800")

    handler.serve = fail
    peer = await dial(server)
    peer.send(Command(10, 1))
    answer = await peer.receive()
    assert (answer.code, answer.remark) == (1, "KeyError: 'missing \\ud800'")
    assert "KeyError" in caplog.text
    handler.serve = lambda connection, command: connection.respond(command, 0)
    peer.send(Command(10, 2))
    assert (await peer.receive()).code == 0


async def test_the_peer_is_known_by_address_and_as_records_hold_it(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.send(Command(10, 1))
    await peer.receive()
    connection = handler.connections[0]
    port = peer.writer.get_extra_info("sockname")[1]
    assert connection.peer == ("127.0.0.1", port)
    assert connection.peer_host == bytes([127, 0, 0, 1]) + port.to_bytes(4, "big")
    assert connection.address == f"127.0.0.1:{port}"
    assert connection.local_address == f"127.0.0.1:{server.port}"


BAD_INPUT = {
    "garbage": b"\xde\xad\xbe\xef" * 10,
    "negative length": b"\xff\xff\xff\xff\0\0\0\0",
    "oversized": (17 * MIB).to_bytes(4, "big") + bytes(4),
    "header longer than frame": b"\0\0\0\x10\0\0\0\x20",
    "unknown type": b"\0\0\0\x10\x07\0\0\x02" + bytes(12),
    "broken header": b"\0\0\0\x06\0\0\0\x02{}",
    "deep header": (10004).to_bytes(4, "big") + (10000).to_bytes(4, "big") + b"[" * 10000,
    "huge number": b"\0\0\0\x3b\0\0\0\x37" + b'{"code":1,"opaque":' + b"9" * 35 + b"}",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
}


@pytest.mark.parametrize("bad", BAD_INPUT.values(), ids=BAD_INPUT.keys())
async def test_bad_input_closes_its_connection_only(
    serve: Serve, dial: Dial, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server, handler = await serve()
    good, evil = await dial(server), await dial(server)
    evil.send(Command(10, 1), bad)
    assert (await evil.receive()).opaque == 1
    assert await evil.closed()
    await eventually(lambda: len(handler.closed) == 1)
    good.send(Command(10, 2))
    assert (await good.receive()).opaque == 2
    assert "bad frame" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_a_frame_cut_off_by_the_peer_just_ends(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.send(encode(Command(10, 1))[:-3])
    peer.writer.write_eof()
    assert await peer.closed()
    await eventually(lambda: len(handler.closed) == 1)
    assert handler.requests == []


async def test_a_frame_may_come_byte_by_byte(serve: Serve, dial: Dial) -> None:
    server, _ = await serve()
    peer = await dial(server)
    for byte in encode(Command(10, 9, body=b"slow")):
        peer.send(bytes([byte]))
        await asyncio.sleep(0)
    assert bytes((await peer.receive()).body) == b"slow"


async def test_frames_up_to_the_limit_are_served(serve: Serve, dial: Dial) -> None:
    server, _ = await serve(Limits(frame_bytes=4 * MIB))
    peer = await dial(server)
    overhead = len(encode(Command(10, 1)))
    peer.send(Command(10, 1, body=bytes(4 * MIB - overhead)))
    assert len((await peer.receive()).body) == 4 * MIB - overhead
    peer.send(Command(10, 1, body=bytes(4 * MIB - overhead + 1)))
    assert await peer.closed()


async def test_one_connection_too_many_is_closed_at_once(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(connections=2))
    peers = [await dial(server) for _ in range(2)]
    await eventually(lambda: len(server.connections) == 2)
    assert await (await dial(server)).closed()
    assert server.connections.refused_count == 1
    assert handler.closed == []
    peers[0].writer.close()
    await eventually(lambda: len(server.connections) == 1)
    late = await dial(server)
    late.send(Command(10, 1))
    assert (await late.receive()).code == 0


async def test_one_request_too_many_in_flight_is_answered_busy(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(in_flight=3))
    waiting: list[tuple[Connection, Command]] = []
    handler.serve = lambda connection, command: waiting.append((connection, command))
    peer = await dial(server)
    peer.send(*(Command(10, number) for number in range(4)))
    busy = await peer.receive()
    assert (busy.opaque, busy.code, busy.ext["cause"]) == (3, 2, "busy")
    for connection, command in waiting:
        connection.respond(command, 0)
    assert [(await peer.receive()).code for _ in range(3)] == [0, 0, 0]
    peer.send(*(Command(10, number) for number in range(4, 7)))
    peer.send(Command(10, 7, ONEWAY_FLAG), Command(10, 8))
    assert (await peer.receive()).opaque == 8
    assert [command.opaque for _, command in waiting] == [0, 1, 2, 4, 5, 6, 7]


async def test_nothing_is_read_from_a_peer_that_does_not_read(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(output_high_water_bytes=MIB))
    answer = bytes(MIB)
    handler.serve = lambda connection, command: connection.respond(command, 0, body=answer)
    peer = await dial(server)
    peer.pause()
    sent = 0
    # one request at a time, until the buffers of both sockets are full
    while not (handler.connections and handler.connections[0].unsent_bytes > MIB):
        sent += 1
        peer.send(Command(10, sent))
        while len(handler.requests) < sent:
            await asyncio.sleep(0)
        await turns(5)
    peer.send(Command(10, sent + 1))
    await turns(50)
    assert len(handler.requests) == sent
    peer.resume()
    assert [(await peer.receive()).opaque for _ in range(sent + 1)] == list(range(1, sent + 2))


async def test_a_peer_that_never_reads_is_closed_at_the_hard_limit(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(output_hard_bytes=4 * MIB))
    peer = await dial(server)
    peer.pause()
    await eventually(lambda: bool(handler.connections))
    connection = handler.connections[0]
    push = encode(Command(40, 1, ONEWAY_FLAG, body=bytes(MIB)))
    async with asyncio.timeout(WAIT_S):
        while not connection.is_closed:
            connection.send(push)
            await asyncio.sleep(0)
            assert connection.unsent_bytes <= 4 * MIB
    await eventually(lambda: handler.closed == [connection])


async def test_an_idle_connection_is_closed(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(idle_s=0.05))
    peer = await dial(server)
    peer.send(Command(10, 1))
    assert (await peer.receive()).code == 0
    assert await peer.closed()
    await eventually(lambda: len(server.connections) == 0)
    assert len(handler.closed) == 1


async def test_an_unfinished_frame_is_not_waited_for_for_ever(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(frame_s=0.05))
    peer = await dial(server)
    for byte in encode(Command(10, 1, body=bytes(100_000))):
        peer.send(bytes([byte]))
        await asyncio.sleep(0.001)
        if handler.closed:
            break
    assert len(handler.closed) == 1
    assert handler.requests == []


async def test_closing_sends_what_is_queued(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)

    def answer_and_close(connection: Connection, command: Command) -> None:
        connection.respond(command, 0, body=bytes(MIB))
        connection.close()
        connection.respond(command, 1)
        connection.close()

    handler.serve = answer_and_close
    peer.send(Command(10, 1), Command(10, 2))
    assert len((await peer.receive()).body) == MIB
    assert await peer.closed()
    assert len(handler.requests) == 1


async def test_the_server_closes_all_connections_and_its_port(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peers = [await dial(server) for _ in range(3)]
    for peer in peers:
        peer.send(Command(10, 1))
        await peer.receive()
    port = server.port
    await server.close()
    assert [await peer.closed() for peer in peers] == [True] * 3
    assert len(handler.closed) == 3
    assert server.port == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await server.close()


async def test_closing_does_not_wait_for_a_peer_that_does_not_read(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.pause()
    await eventually(lambda: bool(handler.connections))
    handler.connections[0].send(bytes(32 * MIB))
    await turns(5)
    async with asyncio.timeout(WAIT_S):
        await server.close()
    assert len(handler.closed) == 1


async def test_a_taken_port_is_an_error(serve: Serve) -> None:
    server, _ = await serve()
    with pytest.raises(OSError, match="in use"):
        await RemotingServer(Handler()).start("127.0.0.1", server.port)


async def test_an_unexpected_answer_is_dropped(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.send(Command(0, 1234, RESPONSE_FLAG), Command(10, 1))
    assert (await peer.receive()).opaque == 1
    assert len(handler.requests) == 1


@pytest.mark.parametrize("turns_before", range(5))
async def test_a_connection_that_is_accepted_when_the_server_closes_is_closed_too(turns_before: int) -> None:
    server = RemotingServer(Handler())
    await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        for _ in range(turns_before):
            await asyncio.sleep(0)
        await server.close()
        assert not server.connections
        peer.setblocking(False)
        with contextlib.suppress(ConnectionResetError):  # it was not accepted any more
            async with asyncio.timeout(WAIT_S):
                assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
