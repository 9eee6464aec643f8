"""Connections that send much at once are served in turns with others, on both event loops."""

import pytest

from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.serving import line
from ledgermq.remoting.serving.line import FEW, FULL_READ_BYTES, PIECE_BYTES, SMALL_READ_BYTES, ServingLine
from tests.limits import WAIT_S
from tests.remoting.peers import Dial, Handler, Serve, eventually, turns
from tests.remoting.test_connection import Wire

_MANY = 20 * FEW


async def test_others_are_served_between_the_requests_that_one_sent_at_once(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    monkeypatch.setattr(line, "_TURN_S", 0.0)
    server, handler = await serve()
    flood, other = await dial(server), await dial(server)
    other.send(Command(7, _MANY))
    await other.receive()
    handler.requests.clear()

    def serve_one(_: Connection, command: Command) -> None:
        if command.opaque == 0:
            other.send(Command(7, _MANY, flag=ONEWAY_FLAG))  # it is there when this turn of the loop ends

    handler.serve = serve_one
    flood.send(*(Command(7, number, flag=ONEWAY_FLAG) for number in range(_MANY)))
    await eventually(lambda: len(handler.requests) == _MANY + 1)
    served = [command.opaque for _, command in handler.requests]
    assert served.index(_MANY) < _MANY // 2
    served.remove(_MANY)
    assert served == list(range(_MANY))


async def test_all_is_served_of_a_peer_that_sends_much_and_closes(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    flood = await dial(server)
    flood.send(*(Command(7, number, flag=ONEWAY_FLAG) for number in range(_MANY)))
    flood.writer.close()
    await eventually(lambda: len(handler.requests) == _MANY and len(handler.closed) == 1)


@pytest.mark.parametrize("in_line", [False, True])
async def test_requests_before_a_malformed_frame_are_served_in_slices_too(
    in_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    monkeypatch.setattr(line, "_TURN_S", 0.0)
    handler, shared = Handler(), ServingLine()
    if in_line:
        monkeypatch.setattr(shared, "takes", lambda _size: False)
    one, _ = connect(handler, shared)
    one.data_received(encode(Command(7, 1, flag=ONEWAY_FLAG)) * _MANY + bytes(8))
    assert len(handler.requests) <= FEW
    one.data_received(encode(Command(7, 2, flag=ONEWAY_FLAG)))
    await eventually(lambda: one.is_closed)
    assert [command.opaque for _, command in handler.requests] == [1] * _MANY
    assert shared.unserved_bytes == 0


async def test_nothing_that_waits_in_line_is_served_while_a_connection_is_held_back(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    flood = await dial(server)
    handler.serve = lambda connection, command: connection.hold_back() if command.opaque == 0 else None
    flood.send(*(Command(7, number, flag=ONEWAY_FLAG) for number in range(_MANY)))
    await eventually(lambda: len(handler.requests) == FEW)
    await turns(20)
    assert len(handler.requests) == FEW
    (connection,) = server.connections
    connection.go_on()
    await eventually(lambda: len(handler.requests) == _MANY)


async def test_a_frame_of_many_reads_arrives(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.send(Command(7, 1, body=bytes(20 * PIECE_BYTES)), Command(7, 2))
    assert [(await peer.receive()).opaque, (await peer.receive()).opaque] == [1, 2]
    assert [len(command.body) for _, command in handler.requests] == [20 * PIECE_BYTES, 0]


async def test_a_large_read_whose_answers_pile_up_in_the_line_s_turn_is_not_the_last_one(
    serve: Serve, dial: Dial
) -> None:
    server, handler = await serve(Limits(output_high_water_bytes=1000))
    flood, other = await dial(server), await dial(server)
    handler.serve = lambda connection, command: connection.respond(command, 0, body=bytes(4000))
    for peer in (flood, other):
        peer.send(*(Command(7, number, body=bytes(2 * PIECE_BYTES)) for number in range(3)))
    for peer in (flood, other):
        assert [(await peer.receive()).opaque for _ in range(3)] == [0, 1, 2]
        peer.send(Command(7, 3))
        assert (await peer.receive()).opaque == 3


async def test_an_ordinary_window_is_served_without_a_pause_of_reading(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", WAIT_S)
    paused = list[Connection]()
    monkeypatch.setattr(Connection, "_pause_reading", lambda connection: paused.append(connection))
    server, _ = await serve()
    peer = await dial(server)
    peer.send(*(Command(7, number, body=bytes(2048)) for number in range(FEW)))
    assert [(await peer.receive()).opaque for _ in range(FEW)] == list(range(FEW))
    assert not paused


@pytest.mark.parametrize("slice_s", [0.0, WAIT_S])
async def test_reading_pauses_behind_full_reads_only_when_the_slice_is_over(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """A pause behind each full read divided windows of batches over two turns, with twice as many writes of answers."""
    monkeypatch.setattr(line, "_SLICE_S", slice_s)
    pauses = list[Connection]()
    pause = Connection._pause_reading

    def noted(connection: Connection) -> None:
        pauses.append(connection)
        pause(connection)

    monkeypatch.setattr(Connection, "_pause_reading", noted)
    server, handler = await serve()
    handler.serve = lambda connection, command: connection.respond(command, 0)
    peer = await dial(server)
    peer.send(*(Command(7, number, body=bytes(FULL_READ_BYTES // 6)) for number in range(FEW)))
    assert [(await peer.receive()).opaque for _ in range(FEW)] == list(range(FEW))
    assert bool(pauses) == (slice_s == 0.0)


async def test_who_sends_much_and_then_no_frame_is_served_until_there(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    server, handler = await serve()
    flood = await dial(server)
    flood.send(*(Command(7, number, flag=ONEWAY_FLAG) for number in range(_MANY)), b"no frame")
    assert await flood.closed()
    assert len(handler.requests) == _MANY


async def test_an_answer_that_cannot_be_taken_ends_its_connection_and_not_the_line(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    monkeypatch.setattr(line, "_TURN_S", WAIT_S)
    server, handler = await serve()
    faulty = await dial(server)
    await eventually(lambda: len(handler.connections) == 1)

    def fail(_: Command | RemotingError) -> None:
        raise ArithmeticError

    handler.connections[0].call(Command(9, 0), WAIT_S, fail)
    answer = Command(0, (await faulty.receive()).opaque, flag=RESPONSE_FLAG)
    other = await dial(server)

    def serve_one(connection: Connection, command: Command) -> None:
        if command.opaque == 0:
            other.send(*(Command(8, number, flag=ONEWAY_FLAG) for number in range(1, _MANY)))

    handler.serve = serve_one
    faulty.send(*(Command(7, number, flag=ONEWAY_FLAG) for number in range(FEW + 1)), answer)
    await eventually(lambda: sum(command.code == 8 for _, command in handler.requests) == _MANY - 1)
    assert await faulty.closed()


def connect(handler: Handler, shared: ServingLine) -> tuple[Connection, Wire]:
    made, wire = Connection(handler, Limits(), lambda _: None, lambda *_: None, line=shared), Wire()
    made.connection_made(wire)
    return made, wire


def flood(size: int) -> bytes:
    one = encode(Command(7, 1, flag=ONEWAY_FLAG))
    return one * (size // len(one))


async def test_of_floods_that_come_in_one_turn_most_are_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_SLICE_S", 0.0)
    handler, shared, data = Handler(), ServingLine(), flood(2 * PIECE_BYTES)
    many = [connect(handler, shared)[0] for _ in range(50)]
    for one in many:
        one.data_received(data)
    assert sum(bool(one._backlog) for one in many) < 5
    innocent, _ = connect(handler, shared)
    innocent.data_received(flood(200))
    assert handler.requests[-1][0] is innocent, "it is served at once"
    assert shared.unserved_bytes == 50 * len(data)
    await turns(2)
    innocent.data_received(flood(2 * SMALL_READ_BYTES))
    assert handler.requests[-1][0] is innocent, "in a later turn also of more"
    await eventually(lambda: not shared.unserved_bytes)
    assert len(handler.requests) == sum(
        size // len(flood(200)) for size in [200, 2 * SMALL_READ_BYTES] + 50 * [len(data)]
    )


async def test_above_its_budget_nothing_more_is_read_and_above_twice_the_sender_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line, "_UNSERVED_MAX_BYTES", 7 * PIECE_BYTES // 2)
    monkeypatch.setattr(line, "_READ_MAX_BYTES", PIECE_BYTES)
    handler, shared, data = Handler(), ServingLine(), flood(2 * PIECE_BYTES)
    handler.serve = lambda connection, command: connection.hold_back() if command.body else None
    stuck = encode(Command(7, 1, flag=ONEWAY_FLAG, body=b"hold")) + data
    held = [connect(handler, shared) for _ in range(3)]
    for one, _ in held[:2]:
        one.data_received(stuck)
    other, wire = connect(handler, shared)
    other.throttle(0.001)
    await eventually(lambda: not other.is_throttled)
    await turns(20)
    assert wire.calls[-1] == "pause", "the others hold too much"
    held[2][0].data_received(stuck + data)
    assert [one.is_closed for one, _ in held] == [False, False, True]
    assert shared.closed_count == 1
    held[0][0].go_on()
    await eventually(lambda: wire.calls[-1] == "resume")
    held[1][0].go_on()
    await eventually(lambda: not shared.unserved_bytes)


async def test_above_the_budget_of_all_nothing_is_read_behind_reads_that_are_not_small() -> None:
    held = [0]
    shared = ServingLine(lambda: held[0], 1000)
    small, large = (encode(Command(7, 1, body=bytes(size))) for size in (100, SMALL_READ_BYTES + 1))
    few, much = (connect(Handler(), shared) for _ in range(2))
    much[0].data_received(large)
    assert much[1].calls[-1:] != ["pause"]
    held[0] = 1001
    assert shared.buffered_bytes == 1001
    few[0].data_received(small)
    much[0].data_received(large)
    await turns(20)
    assert ("pause" in few[1].calls, much[1].calls[-1]) == (False, "pause")
    held[0] = 1000
    await eventually(lambda: much[1].calls[-1] == "resume")


async def test_unfinished_frames_and_unread_answers_are_in_the_budget_of_all(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(unfinished_bytes=1 << 20, output_all_bytes=8 << 20))
    handler.serve = lambda connection, command: connection.respond(command, 0, body=bytes(6 << 20))
    unread, unfinished = await dial(server), await dial(server)
    unread.send(Command(7, 1))
    await eventually(lambda: server.connections.output.spent_bytes > 1 << 20)
    unfinished.writer.write(encode(Command(7, 1, body=bytes(500_000)))[:-1])
    await eventually(lambda: server.connections.unfinished_bytes > 400_000)
    assert server.line.buffered_bytes == server.connections.output.spent_bytes + server.connections.unfinished_bytes
    assert server.connections.held_bytes() == server.line.buffered_bytes
