"""A client finds, shares, loses and finds again its connections; only the absence of an answer is an error."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from ledgermq.remoting import connection_set
from ledgermq.remoting.client import NoRequests, RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.outgoing_requests import OutgoingRequests
from ledgermq.remoting.server import RemotingServer
from ledgermq.remoting.serving.lost_machine import acknowledges
from tests.limits import WAIT_S
from tests.remoting.peers import Handler, Serve, eventually

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _address(server: RemotingServer) -> str:
    return f"127.0.0.1:{server.port}"


def _silent(connection: Connection, command: Command) -> None:
    """Serves nothing."""


class EndsItsAttempt(NoRequests):
    """Cancels the attempt to connect in the turn of the loop in which it succeeds, as a time-out may."""

    client: RemotingClient

    def __init__(self) -> None:
        self.connected_count = self.closed_count = 0

    def on_connected(self, connection: Connection) -> None:
        self.connected_count += 1
        for attempt in self.client._attempts.values():
            attempt.cancel()

    def on_closed(self, connection: Connection) -> None:
        self.closed_count += 1


@pytest.fixture
async def full_port() -> AsyncIterator[int]:
    """A port that listens, but whose queue is full: connecting to it takes for ever."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port: int = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(("127.0.0.1", port))
    yield port
    for opened in (listener, *fillers):
        opened.close()


async def test_a_request_gets_its_answer(serve: Serve, client: RemotingClient) -> None:
    server, _ = await serve()
    answer = await client.request(_address(server), Command(10, ext={"k": "v"}, body=b"body"))
    assert (answer.code, answer.ext, bytes(answer.body)) == (0, {"echo": "1"}, b"body")


async def test_requests_that_start_together_share_one_connection(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    bodies = [b"%d" % number for number in range(50)]
    answers = await asyncio.gather(*(client.request(_address(server), Command(10, body=body)) for body in bodies))
    assert [bytes(answer.body) for answer in answers] == bodies
    assert len(handler.connections) == 1
    assert client.connected(_address(server)) is await client.connection(_address(server))


async def test_any_code_is_an_answer(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = lambda connection, command: connection.respond(command, 17, remark="no such topic")
    answer = await client.request(_address(server), Command(10))
    assert (answer.code, answer.remark) == (17, "no such topic")


async def test_servers_ask_over_the_same_connection(serve: Serve) -> None:
    server, handler = await serve()
    ours = Handler()
    client = RemotingClient(ours)
    await client.request(_address(server), Command(34))
    there = handler.connections[0]
    answer = await there.request(Command(307, body=b"who?"), 5)
    assert (answer.code, bytes(answer.body)) == (0, b"who?")
    there.oneway(Command(40))
    await eventually(lambda: len(ours.requests) == 2)
    await client.close()
    assert len(ours.closed) == 1


async def test_a_client_that_serves_nothing_says_so(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    await client.request(_address(server), Command(34))
    answer = await handler.connections[0].request(Command(307), 5)
    assert (answer.code, answer.remark) == (3, " request type 307 not supported")


async def test_oneway_is_sent(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    await client.oneway(_address(server), Command(15))
    await eventually(lambda: len(handler.requests) == 1)
    assert handler.requests[0][1].is_oneway


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:port", "host:0", "host:65536", "host:-1", "h:1e3"]
)
async def test_what_is_no_address_is_refused(client: RemotingClient, address: str) -> None:
    with pytest.raises(ConnectError, match="not host:port"):
        await client.request(address, Command(10))


async def test_nobody_listening_is_a_connect_error(serve: Serve, client: RemotingClient) -> None:
    server, _ = await serve()
    address = _address(server)
    await server.close()
    with pytest.raises(ConnectError, match=f"cannot connect to {address}"):
        await client.request(address, Command(10))
    with pytest.raises(ConnectError):
        await client.oneway(address, Command(10))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70 + ".invalid", "::::"])
async def test_an_unknown_host_is_a_connect_error(client: RemotingClient, host: str) -> None:
    with pytest.raises(ConnectError):
        await client.request(f"{host}:1", Command(10), timeout_s=10)


async def test_connecting_has_a_time_limit(full_port: int) -> None:
    client = RemotingClient(connect_timeout_s=0.05)
    with pytest.raises(ConnectError, match=r"not within 0\.05 s"):
        await client.request(f"127.0.0.1:{full_port}", Command(10))
    await client.close()


async def test_the_time_out_of_a_request_includes_connecting(full_port: int, client: RemotingClient) -> None:
    with pytest.raises(ConnectError, match=r"not within 0\.05 s"):
        await client.request(f"127.0.0.1:{full_port}", Command(10), timeout_s=0.05)


async def test_closing_ends_attempts_to_connect(full_port: int) -> None:
    client = RemotingClient()
    attempt = asyncio.ensure_future(client.connection(f"127.0.0.1:{full_port}"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectError, match="the client is closed"):
        await attempt
    with pytest.raises(ConnectError, match="the client is closed"):
        await client.request("127.0.0.1:1", Command(10))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_attempt_that_ends_just_when_it_is_connected_leaves_no_connection_behind(loop_factory: LoopFactory) -> None:
    async def end_the_attempt_when_connected() -> tuple[int, int]:
        handler = EndsItsAttempt()
        client = handler.client = RemotingClient(handler)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            with pytest.raises(ConnectError):
                await client.connection(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            async with asyncio.timeout(WAIT_S):  # it waited for that connection for ever
                await client.close()
        return handler.connected_count, handler.closed_count

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(end_the_attempt_when_connected()) == (1, 1)


async def test_closing_does_not_wait_for_ever_for_a_connection_whose_end_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_set, "_CLOSE_GRACE_S", 0.05)
    connections = connection_set.ConnectionSet(Limits())
    connection = Connection(NoRequests(), Limits(), connections.admit, connections.forget)
    connection.address = "10.0.0.1:10911"
    assert connections.admit(connection) is None
    async with asyncio.timeout(WAIT_S):
        await connections.close("the client closes")
    assert "have not ended 0.05 s after they were aborted: 10.0.0.1:10911" in caplog.text


async def test_one_waiter_that_gives_up_does_not_end_the_attempt(serve: Serve, client: RemotingClient) -> None:
    server, _ = await serve()
    first = asyncio.ensure_future(client.connection(_address(server)))
    second = asyncio.ensure_future(client.connection(_address(server)))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).is_closed
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_no_answer_in_time_is_a_time_out(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = _silent
    await client.connection(_address(server))  # the time is the answer's alone
    with pytest.raises(RequestTimeoutError, match="did not answer SEND_MESSAGE within 0") as caught:
        await client.request(_address(server), Command(10), timeout_s=0.02)
    assert caught.value.address == _address(server)


async def test_a_connection_that_swallows_everything_is_given_up(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = _silent
    await client.connection(_address(server))  # the time is the answer's alone
    with pytest.raises(RequestTimeoutError):
        await client.request(_address(server), Command(10), timeout_s=0.02)
    assert client.connected(_address(server)) is None
    handler.serve = lambda connection, command: connection.respond(command, 0)
    assert (await client.request(_address(server), Command(10))).code == 0
    assert len(handler.connections) == 2


async def test_a_connection_on_which_something_waits_with_patience_is_kept_until_that_is_over(
    serve: Serve, client: RemotingClient
) -> None:
    server, handler = await serve()
    handler.serve = _silent
    connection = await client.connection(_address(server))
    assert connection.is_standing
    more_s = [0.02, 600.0, 0.02, 0.0]
    answered = asyncio.ensure_future(client.request(_address(server), Command(10), 0.02, lambda: more_s.pop(0)))
    await eventually(lambda: len(more_s) == 2)
    with pytest.raises(RequestTimeoutError):
        await client.request(_address(server), Command(11), timeout_s=0.02)
    at, command = handler.requests[0]
    at.respond(command, 0)
    assert (await answered).code == 0
    assert client.connected(_address(server)) is connection
    with pytest.raises(RequestTimeoutError):
        await client.request(_address(server), Command(10), 0.02, lambda: more_s.pop(0))
    assert client.connected(_address(server)) is None
    assert not more_s


async def test_a_machine_that_answers_nothing_acknowledges_nothing(full_port: int) -> None:
    """The kernel sends the first packet again and again, as it does with data that the network loses."""
    with socket.socket() as sock:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", full_port))
        transport = asyncio.Transport({"socket": sock})
        assert acknowledges(transport), "it was sent once"
        await eventually(lambda: not acknowledges(transport))


async def test_a_request_made_while_another_times_out_makes_none_wait_longer() -> None:
    loop, settled = asyncio.get_running_loop(), list[str]()
    requests = OutgoingRequests(loop, lambda: "peer", lambda _: None)

    def timed_out(_: object) -> None:
        settled.append("first")
        requests.add(2, 10, 600.0, lambda _: settled.append("last"))

    requests.add(0, 10, 0.01, timed_out)
    requests.add(1, 10, 0.05, lambda _: settled.append("second"))
    await eventually(lambda: settled == ["first", "second"])
    assert len(requests) == 1


async def test_time_outs_of_many_requests_are_told_once_with_the_time_of_the_latest() -> None:
    """Each time, all others are looked at, whether one of them is to wait on."""
    loop, told = asyncio.get_running_loop(), list[float]()
    requests = OutgoingRequests(loop, lambda: "peer", told.append)
    for opaque in range(100):
        requests.add(opaque, 10, 0.0, lambda _: None)
    latest = requests._waiting[99].sent_at
    await eventually(lambda: not len(requests))
    assert told == [latest]


async def test_a_connection_on_which_others_are_answered_is_kept(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = lambda connection, command: None if command.code == 11 else connection.respond(command, 0)
    slow = asyncio.ensure_future(client.request(_address(server), Command(11), timeout_s=0.1))
    await eventually(lambda: bool(handler.requests))
    assert (await client.request(_address(server), Command(10))).code == 0
    with pytest.raises(RequestTimeoutError):
        await slow
    connection, command = handler.requests[0]
    connection.respond(command, 0)  # late: nobody waits any more
    assert (await client.request(_address(server), Command(10))).code == 0
    assert len(handler.connections) == 1


async def test_a_lost_connection_fails_what_waits_and_is_made_again(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = _silent
    waiting = [asyncio.ensure_future(client.request(_address(server), Command(10))) for _ in range(3)]
    await eventually(lambda: len(handler.requests) == 3)
    handler.connections[0].abort("test")
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ConnectionLostError)
    handler.serve = lambda connection, command: connection.respond(command, 0)
    assert (await client.request(_address(server), Command(10))).code == 0
    assert len(handler.connections) == 2


async def test_a_restarted_server_is_found_again(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    address, port = _address(server), server.port
    await client.request(address, Command(10))
    await server.close()
    await eventually(lambda: client.connected(address) is None)
    again = RemotingServer(handler)
    await again.start("127.0.0.1", port)
    assert (await client.request(address, Command(10))).code == 0
    await again.close()


async def test_closing_fails_what_waits(serve: Serve) -> None:
    server, handler = await serve()
    handler.serve = _silent
    client = RemotingClient()
    waiting = asyncio.ensure_future(client.request(_address(server), Command(10)))
    await eventually(lambda: bool(handler.requests))
    await client.close()
    with pytest.raises(ConnectionLostError, match="the client closes"):
        await waiting
    await eventually(lambda: len(handler.closed) == 1)


async def test_a_request_that_is_given_up_leaves_the_others_alone(serve: Serve, client: RemotingClient) -> None:
    server, handler = await serve()
    handler.serve = _silent
    given_up = asyncio.ensure_future(client.request(_address(server), Command(10)))
    other = asyncio.ensure_future(client.request(_address(server), Command(10)))
    await eventually(lambda: len(handler.requests) == 2)
    given_up.cancel()
    for connection, command in handler.requests:
        connection.respond(command, 0)
    assert (await other).code == 0
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_idle_connections_are_closed_and_made_again(serve: Serve) -> None:
    server, handler = await serve()
    client = RemotingClient(limits=Limits(idle_s=0.5))
    await client.request(_address(server), Command(10))
    await eventually(lambda: client.connected(_address(server)) is None)
    await client.request(_address(server), Command(10))
    assert len(handler.connections) == 2
    await client.close()


async def test_ipv6_addresses_are_written_in_brackets(client: RemotingClient) -> None:
    handler = Handler()
    server = RemotingServer(handler)
    try:
        await server.start("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert (await client.request(f"[::1]:{server.port}", Command(10))).code == 0
    assert len(handler.connections[0].peer_host) == 20
    await server.close()
