"""What a connection makes of one turn of the loop, seen at its transport."""

import asyncio
import time
from functools import partial

import pytest

from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import ConnectionLostError, RemotingError, RequestTimeoutError
from ledgermq.remoting.limits import Limits
from tests.limits import WAIT_S
from tests.remoting.peers import Handler, turns
from tests.wire import encode_response


class Wire(asyncio.Transport):
    """A transport that keeps what is written; `unsent` is what the system is said not to have taken."""

    def __init__(self, peer: tuple[str, int] = ("10.0.0.7", 4711)) -> None:
        super().__init__({"peername": peer, "sockname": ("10.0.0.1", 10911)})
        self.writes: list[bytes] = []
        self.unsent = 0
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert isinstance(data, bytes)
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limits {high} {low}")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


Ended = list[tuple[Connection, str]]


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def ended() -> Ended:
    return []


@pytest.fixture
async def connection(handler: Handler, wire: Wire, ended: Ended) -> Connection:
    limits = Limits(output_high_water_bytes=20_000, output_hard_bytes=50_000, idle_s=10, frame_s=20)
    made = Connection(handler, limits, lambda _: None, lambda *end: ended.append(end))
    made.connection_made(wire)
    return made


def _requests(*opaques: int) -> bytes:
    return b"".join(encode(Command(10, opaque, body=b"x" * 100)) for opaque in opaques)


async def test_all_answers_of_a_turn_are_one_write(connection: Connection, wire: Wire) -> None:
    connection.data_received(_requests(*range(30)))
    connection.data_received(_requests(*range(30, 50)))
    assert wire.writes == []
    await turns(1)
    assert len(wire.writes) == 1
    assert [answer.opaque for answer in FrameParser().feed(wire.writes[0])] == list(range(50))
    connection.data_received(_requests(50))
    await turns(1)
    assert len(wire.writes) == 2


async def test_a_body_in_pieces_is_written_with_its_head(connection: Connection, handler: Handler, wire: Wire) -> None:
    handler.serve = lambda connection, command: connection.respond(
        command, 0, body=[b"one", memoryview(b"-two-")[1:4], b""]
    )
    connection.data_received(_requests(1))
    await turns(1)
    (answer,) = FrameParser().feed(wire.writes[0])
    assert (answer.code, bytes(answer.body)) == (0, b"onetwo")


async def test_an_answer_has_the_header_type_of_its_request(
    connection: Connection, handler: Handler, wire: Wire
) -> None:
    handler.serve = lambda connection, command: connection.respond(command, 0, {"k": "v"}, body=b"b")
    connection.data_received(encode(Command(10, 1)) + encode(Command(10, 2, header_type=BINARY_HEADER)))
    await turns(1)
    answers = FrameParser().feed(wire.writes[0])
    assert [(a.header_type, a.opaque, a.ext["k"], bytes(a.body)) for a in answers] == [
        (JSON_HEADER, 1, "v", b"b"),
        (BINARY_HEADER, 2, "v", b"b"),
    ]


async def test_encoded_answers_free_their_places(connection: Connection, handler: Handler, wire: Wire) -> None:
    handler.serve = lambda connection, command: None
    connection.data_received(_requests(1, 2, 3))
    assert connection.in_flight == 3
    connection.answer([encode_response(1, 0), encode_response(2, 0)], count=2)
    connection.answer(memoryview(encode_response(3, 0)))
    assert connection.in_flight == 0
    await turns(1)
    assert [answer.opaque for answer in FrameParser().feed(wire.writes[0])] == [1, 2, 3]


async def test_reading_pauses_while_much_is_unsent(connection: Connection, wire: Wire) -> None:
    assert wire.calls == ["limits 20000 10000"]
    connection.pause_writing()
    connection.resume_writing()
    assert wire.calls[1:] == ["pause", "resume"]
    wire.calls.append("close")
    connection.pause_writing()
    connection.resume_writing()
    assert wire.calls[3:] == ["close"]


async def test_answers_that_pile_up_put_the_next_requests_off(
    connection: Connection, handler: Handler, wire: Wire
) -> None:
    answer = bytes(8000)
    handler.serve = lambda connection, command: connection.respond(command, 0, body=answer)
    connection.data_received(_requests(*range(7)))
    assert len(handler.requests) == 3  # above 20,000 bytes
    assert wire.calls[1:] == ["pause"]
    connection.data_received(_requests(7))
    await turns(1)
    assert [len(handler.requests), len(wire.writes)] == [3, 1]
    await turns(1)
    assert len(handler.requests) == 6
    assert "resume" not in wire.calls
    connection.pause_writing()  # what the next write would cause
    await turns(5)
    assert [len(handler.requests), len(wire.writes)] == [6, 2]
    connection.resume_writing()
    assert len(handler.requests) == 8
    assert wire.calls[-1] == "resume"
    await turns(1)
    answers = FrameParser().feed(b"".join(wire.writes))
    assert [answer.opaque for answer in answers] == list(range(8))


async def test_one_large_answer_to_the_last_request_pauses_nothing(
    connection: Connection, handler: Handler, wire: Wire
) -> None:
    handler.serve = lambda connection, command: connection.respond(command, 0, body=bytes(30_000))
    connection.data_received(_requests(1))
    await turns(2)
    assert wire.calls[1:] == []


async def test_more_unsent_than_the_hard_limit_closes(connection: Connection, wire: Wire, ended: Ended) -> None:
    connection.send(bytes(90_000))  # nothing unsent before: one large answer is no offence
    await turns(1)
    assert len(wire.writes) == 1
    wire.unsent = 40_000
    connection.send(bytes(10_000))
    await turns(1)
    assert len(wire.writes) == 2
    connection.send(bytes(10_001))
    await turns(1)
    assert wire.calls[-1] == "abort"
    assert connection.is_closed
    connection.connection_lost(None)
    assert ended == [(connection, "50001 bytes unsent")]


async def test_what_moves_is_not_idle(connection: Connection, wire: Wire) -> None:
    start = asyncio.get_running_loop().time()
    connection.check_times(start + 9)
    assert "abort" not in wire.calls
    wire.unsent = 1
    connection.send(b"pushed at a peer that takes nothing")
    await turns(1)
    connection.check_times(start + 11)
    assert wire.calls[-1] == "abort"


async def test_a_closing_connection_that_does_not_drain_is_cut_off(connection: Connection, wire: Wire) -> None:
    connection.send(b"last words")
    connection.close()
    assert wire.writes == [b"last words"]
    assert wire.calls[-1] == "close"
    connection.check_times(asyncio.get_running_loop().time() + 11)
    assert wire.calls[-1] == "abort"


async def test_an_unfinished_frame_has_its_own_time(handler: Handler, wire: Wire) -> None:
    connection = Connection(handler, Limits(frame_s=20), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    connection.data_received(_requests(1) + b"\0\0")
    start = asyncio.get_running_loop().time()
    connection.data_received(b"\1")
    connection.check_times(start + 19)
    assert "abort" not in wire.calls
    connection.check_times(start + 21)
    assert wire.calls[-1] == "abort"


async def test_a_finished_frame_needs_no_more_time(handler: Handler, wire: Wire) -> None:
    connection = Connection(handler, Limits(frame_s=20), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    connection.data_received(_requests(1)[:50])
    connection.data_received(_requests(1)[50:])
    connection.check_times(asyncio.get_running_loop().time() + 21)
    assert "abort" not in wire.calls


async def test_no_time_counts_while_a_connection_is_held_back(handler: Handler, wire: Wire) -> None:
    connection = Connection(handler, Limits(frame_s=20, idle_s=30), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    connection.data_received(_requests(1) + b"\0\0")
    start = asyncio.get_running_loop().time()
    connection.hold_back()
    connection.check_times(start + 1000)
    assert "abort" not in wire.calls
    connection.go_on()
    connection.check_times(start + 21)
    assert wire.calls[-1] == "abort"


async def test_the_time_for_a_frame_stands_still_while_the_peer_reads_too_little(handler: Handler, wire: Wire) -> None:
    connection = Connection(handler, Limits(frame_s=20, idle_s=30), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    connection.data_received(_requests(1) + b"\0\0")
    start = asyncio.get_running_loop().time()
    connection.pause_writing()
    connection.check_times(start + 29)
    assert "abort" not in wire.calls
    connection.check_times(start + 31)
    assert wire.calls[-1] == "abort", "it is idle"


async def test_opaques_of_the_two_directions_are_apart(connection: Connection, handler: Handler, wire: Wire) -> None:
    outcomes: list[Command | RemotingError] = []
    connection.call(Command(40), 5, outcomes.append)
    connection.data_received(encode(Command(10, 0)))  # the peer's request with the opaque that we await
    assert outcomes == []
    connection.data_received(encode(Command(0, 0, 1)))
    assert len(outcomes) == 1
    assert [command.code for _, command in handler.requests] == [10]


async def test_each_call_is_settled_once(connection: Connection, wire: Wire) -> None:
    outcomes: list[Command | RemotingError] = []
    connection.call(Command(11), 60, outcomes.append)
    connection.call(Command(12), 0.01, outcomes.append)
    connection.call(Command(13), 60, outcomes.append)
    connection.data_received(encode_response(0, 7))
    while len(outcomes) < 2:
        await asyncio.sleep(0.001)
    connection.data_received(encode_response(1, 7))  # too late
    connection.connection_lost(ConnectionResetError("reset"))
    assert isinstance(outcomes[0], Command)
    assert outcomes[0].code == 7
    assert str(outcomes[1]) == "10.0.0.7:4711 did not answer QUERY_MESSAGE within 0.01 s"
    assert isinstance(outcomes[1], RequestTimeoutError)
    assert str(outcomes[2]) == "connection to 10.0.0.7:4711 lost: broken: reset"
    connection.call(Command(14), 60, outcomes.append)
    await turns(1)
    assert len(outcomes) == 4
    assert isinstance(outcomes[3], ConnectionLostError)


async def answers_of_ten_requests(connection: Connection) -> list[int]:
    """The code that each request is answered by; the peer answers the newest first, with the code of the request."""
    sent: list[Command] = []
    codes = [-1] * 10

    def settled(number: int, answer: Command | RemotingError) -> None:
        codes[number] = answer.code if isinstance(answer, Command) else -2

    for number in range(10):
        sent.append(Command(11 + number))
        connection.call(sent[-1], 60, partial(settled, number))
    for command in reversed(sent):
        connection.data_received(encode_response(command.opaque, command.code))
    await turns(1)
    return codes


async def test_each_request_has_its_own_answer_however_many_wait(connection: Connection) -> None:
    assert await answers_of_ten_requests(connection) == list(range(11, 21))


async def test_ids_that_are_used_again_too_soon_are_found(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgermq.remoting.outgoing_requests.OPAQUE_MAX", 3)
    assert await answers_of_ten_requests(connection) != list(range(11, 21))


async def test_requests_that_a_late_loop_finds_timed_out_fail_in_the_order_of_their_deadlines(
    connection: Connection,
) -> None:
    outcomes: list[Command | RemotingError] = []
    connection.call(Command(12), 0.02, outcomes.append)
    connection.call(Command(13), 0.01, outcomes.append)
    time.sleep(0.05)  # noqa: ASYNC251  # both are due when the loop runs again
    async with asyncio.timeout(WAIT_S):
        while len(outcomes) < 2:
            await asyncio.sleep(0.001)
    assert [str(outcome).split()[4] for outcome in outcomes] == ["13", "QUERY_MESSAGE"]


async def test_a_shorter_time_out_after_a_longer_one_is_kept(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    outcomes: list[Command | RemotingError] = []
    connection.call(Command(11), 3600, outcomes.append)
    connection.call(Command(12), 0.02, outcomes.append)
    connection.call(Command(13), 0.01, outcomes.append)
    start = loop.time()
    while len(outcomes) < 2:
        assert loop.time() - start < 10
        await asyncio.sleep(0.001)
    assert [str(outcome).split()[4] for outcome in outcomes] == ["13", "QUERY_MESSAGE"]


async def test_nothing_goes_out_after_the_end(connection: Connection, wire: Wire) -> None:
    connection.connection_lost(None)
    connection.send(b"late")
    connection.oneway(Command(10))
    connection.close()
    await turns(2)
    assert wire.writes == []


async def test_the_end_is_told_once_with_its_reason(connection: Connection, handler: Handler, ended: Ended) -> None:
    connection.connection_lost(None)
    assert ended == [(connection, "closed by the peer")]
    assert handler.closed == [connection]


async def test_addresses_are_plain(handler: Handler) -> None:
    mapped = Connection(handler, Limits(), lambda _: None, lambda *_: None)
    mapped.connection_made(Wire(("::ffff:10.1.2.3", 5)))
    assert (mapped.address, mapped.peer_host) == ("10.1.2.3:5", bytes([10, 1, 2, 3, 0, 0, 0, 5]))
    six = Connection(handler, Limits(), lambda _: None, lambda *_: None)
    six.connection_made(Wire(("fe80::1%eth0", 5)))
    assert (six.address, len(six.peer_host)) == ("[fe80::1]:5", 20)


async def test_a_socket_that_closed_before_it_was_looked_at_is_dropped(handler: Handler) -> None:
    wire = Wire()
    wire._extra["peername"] = None  # type: ignore[attr-defined] # as uvloop answers for a closed socket
    connection = Connection(handler, Limits(), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    connection.connection_lost(None)
    assert wire.calls == ["abort"]
    assert (handler.connections, handler.closed) == ([], [])


async def test_a_handler_that_fails_at_the_start_costs_its_connection(
    handler: Handler, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Handler):
        def on_connected(self, connection: Connection) -> None:
            raise RuntimeError("no room")

        def on_closed(self, connection: Connection) -> None:
            raise RuntimeError("still no room")

    connection = Connection(Failing(), Limits(), lambda _: None, lambda *_: None)
    connection.connection_made(wire)
    assert wire.calls[-1] == "abort"
    connection.connection_lost(None)
    assert "on_connected failed" in caplog.text
    assert "on_closed failed" in caplog.text
