"""A follower that passes requests on, at leaders that answer late, twice, wrongly or not at all."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.append.answers import SendAnswers
from broker.config import BrokerConfig
from broker.counting.calls import CallLatencies
from broker.groups.clients import HEARTBEAT, ClientTable
from broker.groups.locks import GroupLocks
from broker.groups.shared_locks import LOCKS, SharedLocks
from broker.passing import held_requests, lost_sends
from broker.passing import pass_on as module
from broker.passing.claims import VERSION, Claims
from broker.passing.leader_link import LeaderLink
from broker.passing.member_requests import CLIENT_GONE, GREETING
from broker.passing.pass_on import PassOn
from broker.passing.relayed import RelayedClient
from broker.passing.runs import MIXED, SENDS, goes_in_a_run, serve_run
from broker.role import Role
from broker.send.oneway import UNSETTLED_MAX_BYTES
from broker.timers import Timers
from ledgermq.message.hosts import Host
from ledgermq.remoting.client import NoRequests
from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.codec.repeated_headers import LEARN_AFTER, RepeatedSend
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.proof import make_nonce
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from ledgermq.remoting.server import RemotingServer
from store.replicated_log import Generation, LogRole, LogState
from tests.broker.conftest import MemoryTransport, eventually, log_state, small_config
from tests.limits import WAIT_S
from tests.ports import free_ports
from tests.remoting.test_client import full_port

__all__ = ["full_port"]


class Leader(NoRequests):
    """A node that answers the greeting and knows no locks; `serve` decides about what is passed on to it.

    It serves this in the generation of the greeting only if it `is_bound`.
    """

    def __init__(
        self, serve: Callable[[Connection, Command], None], *, takes_runs: bool = True, is_bound: bool = False
    ) -> None:
        self._serve = serve
        self._is_bound = is_bound
        self.on_greeting: Callable[[], None] = lambda: None
        self._greeted = {"version": VERSION} | ({"runs": "true"} if takes_runs else {})
        self.server = RemotingServer(self)
        self.taken: list[bytes] = []
        self.runs: list[int] = []
        self.generations: list[str] = []
        self.answer_of_runs: bytes | None = None

    async def start(self) -> str:
        await self.server.start("127.0.0.1", 0)
        return f"127.0.0.1:{self.server.port}"

    def on_request(self, connection: Connection, command: Command) -> None:
        if command.code == GREETING:
            self.generations.append(command.ext["generation"])
            bound = {"generation": command.ext["generation"]} if self._is_bound else {}
            connection.respond(command, 0, {"nonce": make_nonce().hex()} | self._greeted | bound)
            self.on_greeting()
        elif command.code == LOCKS:
            connection.respond(command, 0, {}, b"[]")
        elif command.code == SENDS and self.answer_of_runs is not None:
            connection.respond(command, 0, {}, self.answer_of_runs, MIXED)
        elif command.code == SENDS:
            before = len(self.taken)
            serve_run(RelayedClient(connection, self, Host("10.0.0.9", 4000)), self, command)
            self.runs.append(len(self.taken) - before)
        else:
            self.taken.append(bytes(command.body))
            self._serve(connection, command)


class Client(Connection):
    """A client's connection; keeps the answers as (opaque, code, cause)."""

    def __init__(self) -> None:
        super().__init__(NoRequests(), Limits(), lambda _: None, lambda _connection, _reason: None)
        self.answers: list[tuple[int, int, str]] = []
        self.connection_made(MemoryTransport(("10.0.0.9", 4000)))

    def respond(
        self, command: Command, code: int, ext: object = None, body: object = b"", remark: object = None
    ) -> None:
        fields = dict(ext) if isinstance(ext, dict) else {}
        self.answers.append((command.opaque, code, fields.get("cause", "")))


class Follower:
    """A `PassOn` whose role the test sets."""

    def __init__(self, config: BrokerConfig) -> None:
        loop = asyncio.get_running_loop()
        self.timers = Timers(loop)
        self.role = Role(config, log_state(writable=False, generation=1))
        self.served: list[int] = []
        self.clients = ClientTable(loop.time, lambda _: None)
        locks = SharedLocks(GroupLocks(loop.time), self.role)
        self.generations: list[Generation] = []
        log = SimpleNamespace(generations=lambda: self.generations, min_offset=0, walk=lambda *_: iter(()))
        empty: Any = SimpleNamespace(dispatched_offset=0, log=log)
        answers = SendAnswers(bytes(8), CallLatencies())
        self.pass_on = PassOn(self.role, self.clients, locks, self._serve, self.timers.spawn, loop, empty, answers)
        self.pass_on.open(None, (), config.limits)
        self.client = Client()

    def _serve(self, connection: Connection, command: Command) -> None:
        self.served.append(command.opaque)

    def leads(self, address: str | None, generation: int = 2, *, is_decided: bool = False) -> None:
        """Another node leads from now on; None: nobody. It may be decided that nothing of those before was placed."""
        if is_decided:
            self.generations.append(Generation(generation, 0, is_final=True))
        leader = None if address is None else LeaderHint("n0", address)
        self.role.update(log_state(writable=False, generation=generation, leader=leader))
        self.pass_on.follow()

    def send(self, opaque: int, code: int = 310) -> None:
        self.pass_on.take(self.client, Command(code, opaque, body=b"%d" % opaque))

    async def answered(self, *opaques: int) -> list[tuple[int, int, str]]:
        await eventually(lambda: {one[0] for one in self.client.answers} >= set(opaques), f"answers to {opaques}")
        return self.client.answers


@pytest.fixture
async def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follower]:
    monkeypatch.setattr(lost_sends, "WAIT_S", 0.1)  # no later leader's entries come
    made = Follower(small_config(tmp_path).broker)
    yield made
    await made.pass_on.close()
    await made.timers.close()


def repeated(*numbers: int, flag: int = 0, **ext: str) -> list[Command]:
    """Sends with these numbers, which are their bodies, too; their headers are like others before."""
    fields = {"b": "T", "e": "0", "g": "1700000000000", "i": "UNIQ_KEY\x01A\x02"} | ext
    every = [*numbers[:1] * LEARN_AFTER, *numbers]
    frames = b"".join(encode(Command(310, number, flag, fields, b"%d" % number)) for number in every)
    sends = FrameParser().feed(frames)[LEARN_AFTER:]
    assert all(isinstance(send, RepeatedSend) for send in sends)
    return sends


def client_at(port: int, in_flight: int = 0) -> tuple[Connection, MemoryTransport]:
    client = Connection(NoRequests(), Limits(), lambda _: None, lambda _, _reason: None)
    transport = MemoryTransport(("10.0.0.9", port))
    client.connection_made(transport)
    client.in_flight = in_flight
    return client, transport


def answers_on(transport: MemoryTransport) -> list[tuple[int, int]]:
    return [(answer.opaque, answer.code) for answer in FrameParser().feed(b"".join(transport.writes))]


def accept(connection: Connection, command: Command) -> None:
    connection.respond(command, 0, {})


def say_not_leader(connection: Connection, command: Command) -> None:
    raise Refusal(Cause.NOT_LEADER, "another one leads")


async def test_what_was_held_is_passed_on_in_order_before_what_comes_later(follower: Follower) -> None:
    leader = Leader(accept)
    address = await leader.start()
    for opaque in range(1, 4):
        follower.send(opaque)
    follower.leads(address)
    await eventually(lambda: follower.pass_on.held == 0)
    follower.send(4)
    assert await follower.answered(1, 2, 3, 4) == [(opaque, 0, "") for opaque in range(1, 5)]
    assert leader.taken == [b"1", b"2", b"3", b"4"]
    await leader.server.close()


async def test_what_comes_in_one_turn_is_passed_on_in_one_write(follower: Follower) -> None:
    connection = Connection(NoRequests(), Limits(), lambda _: None, lambda _, _reason: None)
    transport = MemoryTransport(("10.0.0.2", 10911))
    connection.connection_made(transport)
    claims = Claims((), make_nonce(), make_nonce())
    follower.pass_on._link = LeaderLink(
        "10.0.0.2:10911", connection, claims, Limits(), generation=1, is_bound=True, takes_runs=True
    )
    for opaque in range(1, 65):
        follower.send(opaque)
    await asyncio.sleep(0)
    (written,) = transport.writes
    assert [command.body for command in FrameParser().feed(written)] == [b"%d" % number for number in range(1, 65)]


async def test_what_a_node_refused_as_no_leader_goes_to_the_next_one_in_order(follower: Follower) -> None:
    first, second = Leader(say_not_leader), Leader(accept)
    follower.leads(await first.start())
    for opaque in range(1, 6):
        follower.send(opaque)
    await eventually(lambda: len(first.taken) >= 5)
    follower.leads(await second.start())
    assert {code for _, code, _ in await follower.answered(1, 2, 3, 4, 5)} == {0}
    assert second.taken == [b"1", b"2", b"3", b"4", b"5"]
    for leader in (first, second):
        await leader.server.close()


async def test_a_leader_that_is_elected_again_is_greeted_again_on_the_same_connection(follower: Follower) -> None:
    """It refuses what was passed on in its earlier generation; what it has taken, it still answers."""
    late: list[tuple[Connection, Command]] = []
    leader = Leader(lambda connection, command: late.append((connection, command)))
    address = await leader.start()
    follower.leads(address)
    follower.send(1)
    await eventually(lambda: len(late) == 1)
    follower.leads(address, generation=4)
    follower.send(2)
    await eventually(lambda: len(late) == 2)
    assert leader.generations == ["2", "4"]
    assert late[0][0] is late[1][0]
    for one in late:
        accept(*one)
    assert await follower.answered(1, 2) == [(1, 0, ""), (2, 0, "")]
    await leader.server.close()


async def test_what_may_have_been_stored_is_never_passed_on_again(follower: Follower) -> None:
    second = Leader(accept)

    def die(connection: Connection, command: Command) -> None:
        connection.abort("killed")

    first = Leader(die)
    follower.leads(await first.start())
    follower.send(1)
    assert await follower.answered(1) == [(1, 14, "leader-changed")]
    await first.server.close()
    follower.leads(await second.start())
    follower.send(2)
    await follower.answered(2)
    assert second.taken == [b"2"]
    assert follower.pass_on.unanswered == 1
    await second.server.close()


async def test_a_leader_that_says_nothing_is_given_up_once_another_one_leads(follower: Follower) -> None:
    silent, second = Leader(lambda *_: None), Leader(accept)
    follower.leads(await silent.start())
    follower.send(1)
    await eventually(lambda: silent.taken == [b"1"])
    follower.leads(None)
    follower.send(2)
    follower.leads(await second.start())
    assert sorted(await follower.answered(1, 2)) == [(1, 14, "leader-changed"), (2, 0, "")]
    assert second.taken == [b"2"]
    for leader in (silent, second):
        await leader.server.close()


async def test_a_late_answer_after_the_hand_over_still_counts(follower: Follower) -> None:
    late: list[tuple[Connection, Command]] = []
    old = Leader(lambda connection, command: late.append((connection, command)))
    follower.leads(await old.start())
    follower.send(1)
    await eventually(lambda: len(late) == 1)
    follower.leads(None)
    accept(*late[0])
    accept(*late[0])  # doubled: ignored
    assert await follower.answered(1) == [(1, 0, "")]
    await old.server.close()


async def test_a_node_that_is_elected_serves_what_it_held(follower: Follower) -> None:
    follower.send(1)
    follower.send(2)
    follower.role.update(
        LogState(LogRole.LEADER, 2, LeaderHint("n1", "127.0.0.1:1"), Refusal(Cause.RECOVERING, "soon"))
    )
    follower.pass_on.follow()
    await asyncio.sleep(0)
    assert follower.served == []
    follower.role.update(log_state(writable=True, generation=2))
    follower.pass_on.lead()
    await eventually(lambda: follower.served == [1, 2])
    assert follower.client.answers == []


async def test_nobody_waits_for_ever(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.05)
    follower.send(1)
    follower.send(2, code=14)
    assert await follower.answered(1) == [(1, 14, "not-leader")]
    await eventually(lambda: follower.served == [2], "the follower answers a question about progress")


async def test_a_node_that_stood_still_serves_nothing_that_its_clients_have_given_up(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due in the loop runs first, the timer of the requests that are held after it."""
    monkeypatch.setattr(module, "HOLD_S", 0.05)
    follower.send(1)
    await asyncio.sleep(0)
    follower.role.update(log_state(writable=True, generation=2))
    follower.pass_on.lead()
    time.sleep(0.1)  # noqa: ASYNC251, it does stand still
    follower.send(2)
    await eventually(lambda: follower.served == [2])
    assert follower.client.answers == [(1, 14, "not-leader")]


async def test_the_number_of_held_requests_and_their_bytes_are_bounded(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "_COUNT_MAX", 2)
    for opaque in (1, 2, 3):
        follower.send(opaque)
    assert follower.client.answers == [(3, 2, "busy")]
    monkeypatch.setattr(held_requests, "_COUNT_MAX", 100)
    monkeypatch.setattr(held_requests, "_BYTES_MAX", 3)
    follower.send(4)
    follower.send(5)
    assert follower.client.answers == [(3, 2, "busy"), (5, 2, "busy")]
    monkeypatch.setattr(held_requests, "_BYTES_MAX", 100)
    follower.pass_on.take(follower.client, Command(310, 6, ext={"i": "p" * 100}, body=b"6"))
    assert follower.client.answers[2:] == [(6, 2, "busy")], "headers count, too"


async def test_oneway_requests_leave_half_of_the_room_to_others(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_requests, "_COUNT_MAX", 4)
    for opaque in range(10):
        follower.pass_on.take(follower.client, Command(310, opaque, flag=ONEWAY_FLAG, body=b"x"))
    assert follower.pass_on.held == 2
    for opaque in (10, 11, 12):
        follower.send(opaque)
    assert (follower.pass_on.held, follower.client.answers[-1]) == (4, (12, 2, "busy"))


async def test_more_than_the_leader_takes_at_once_waits_here(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PASSED_MAX", 2)
    waiting: list[tuple[Connection, Command]] = []
    leader = Leader(lambda connection, command: waiting.append((connection, command)))
    follower.leads(await leader.start())
    for opaque in range(1, 5):
        follower.send(opaque)
    await eventually(lambda: len(waiting) == 2)
    assert (leader.taken, follower.pass_on.held) == ([b"1", b"2"], 2)
    accept(*waiting[0])
    await eventually(lambda: leader.taken == [b"1", b"2", b"3"])
    await leader.server.close()


async def test_what_a_deposed_leader_may_have_stored_is_not_passed_on_again(follower: Follower) -> None:
    def depose(connection: Connection, command: Command) -> None:
        raise Refusal(Cause.LEADER_CHANGED, "it did not become known whether it is stored")

    leader = Leader(depose)
    follower.leads(await leader.start())
    follower.send(1)
    assert await follower.answered(1) == [(1, 14, "leader-changed")]
    assert (leader.taken, follower.pass_on.held) == ([b"1"], 0)
    await leader.server.close()


async def test_pops_have_room_of_their_own_and_a_lost_answer_is_no_message(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POPS_MAX", 1)
    waiting: list[tuple[Connection, Command]] = []
    leader = Leader(lambda connection, command: waiting.append((connection, command)))
    follower.leads(await leader.start())
    for opaque, code in ((1, 200050), (2, 200050), (3, 310)):
        follower.send(opaque, code)
    assert await follower.answered(2) == [(2, 209, "")]
    await eventually(lambda: leader.taken == [b"1", b"3"])
    waiting[0][0].abort("killed")
    assert sorted(await follower.answered(1, 3)) == [(1, 210, ""), (2, 209, ""), (3, 14, "leader-changed")]
    await leader.server.close()


async def test_what_a_member_passed_on_goes_back_to_it_once_another_node_will_lead(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member need not wait until this node has reached the next leader."""
    monkeypatch.setattr(held_requests, "_BYTES_MAX", 100)
    member = Client()
    member.is_relayed = True
    closed = Refusal(Cause.RECOVERING, "it hands over")
    follower.role.update(LogState(LogRole.LEADER, 2, None, closed))
    follower.pass_on.follow()
    follower.pass_on.take(member, Command(310, 1, body=bytes(60)))
    follower.send(2)
    assert (member.answers, follower.pass_on.held) == ([], 2)
    follower.leads(None)
    follower.pass_on.take(member, Command(310, 3))
    assert member.answers == [(1, 14, "not-leader"), (3, 14, "not-leader")]
    follower.pass_on.take(follower.client, Command(310, 4, body=bytes(60)))
    assert follower.pass_on.held == 2, "there is room for as many bytes as before"


async def test_a_broker_that_stops_refuses_what_it_holds(follower: Follower) -> None:
    follower.send(1)
    follower.pass_on.release()
    follower.send(2)
    assert [(opaque, code) for opaque, code, _ in follower.client.answers] == [(1, 14), (2, 14)]


async def test_a_broker_that_stops_refuses_what_it_would_pass_on(follower: Follower) -> None:
    """The leader's answer may come when the connection of the client has closed."""
    leader = Leader(accept)
    follower.leads(await leader.start())
    follower.send(1)
    await follower.answered(1)
    follower.pass_on.release()
    follower.send(2)
    assert follower.client.answers == [(1, 0, ""), (2, 14, "not-leader")]
    await leader.server.close()


async def test_a_node_that_does_not_lead_any_more_is_left_when_it_has_answered_everything(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OLD_LINK_S", 60.0)
    asked: list[tuple[Connection, Command]] = []
    old, new = Leader(lambda connection, command: asked.append((connection, command))), Leader(accept)
    follower.leads(await old.start())
    follower.send(1)
    await eventually(lambda: bool(asked))
    follower.leads(await new.start())
    follower.send(2)
    await follower.answered(2)
    ((connection, command),) = asked
    assert not connection.is_closed
    connection.respond(command, 0, {})
    await eventually(lambda: connection.is_closed, "the former leader is left")
    assert follower.client.answers == [(2, 0, ""), (1, 0, "")]
    for leader in (old, new):
        await leader.server.close()


async def test_a_node_that_refuses_as_no_leader_is_not_asked_again_at_once(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOLD_S", 60.0)
    deposed = Leader(say_not_leader)
    follower.leads(await deposed.start())
    started = asyncio.get_running_loop().time()
    follower.send(1)
    await eventually(lambda: len(deposed.taken) >= 4)
    assert asyncio.get_running_loop().time() - started >= 3 * module._RETRY_S
    assert follower.client.answers == []
    await deposed.server.close()


async def test_what_is_too_long_with_its_claim_does_not_end_the_connection_of_all(follower: Follower) -> None:
    leader = Leader(accept)
    follower.leads(await leader.start())
    follower.send(1)
    await follower.answered(1)
    long = {"i": "x" * (Limits().header_bytes - 150)}
    follower.pass_on.take(follower.client, Command(310, 2, ext=long))
    follower.pass_on.take(follower.client, Command(310, 3, ext={"i": "\x01" * (Limits().header_bytes // 5)}))
    follower.pass_on.take(follower.client, Command(310, 4, body=bytes(Limits().frame_bytes - 100)))
    follower.send(5)
    answers = await follower.answered(1, 2, 3, 4, 5)
    assert sorted(answers) == [(1, 0, ""), *((opaque, 13, "message-illegal") for opaque in (2, 3, 4)), (5, 0, "")]
    await leader.server.close()


async def test_nothing_more_is_given_to_a_leader_that_does_not_read(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNSENT_MAX_BYTES", 10_000)
    leader = Leader(accept)
    follower.leads(await leader.start())
    follower.send(1)
    await follower.answered(1)
    for opaque in range(2, 6):
        follower.pass_on.take(follower.client, Command(310, opaque, body=bytes(9_000)))
    assert follower.pass_on.held == 2
    assert {code for _, code, _ in await follower.answered(2, 3, 4, 5)} == {0}
    await leader.server.close()


async def test_a_request_that_comes_back_keeps_its_deadline(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[tuple[Connection, Command]] = []
    deposed = Leader(lambda connection, command: late.append((connection, command)))
    monkeypatch.setattr(module, "HOLD_S", 0.1)
    follower.leads(await deposed.start())
    await eventually(lambda: follower.pass_on._link is not None)
    follower.send(1)
    await eventually(lambda: len(late) == 1)
    follower.leads(None)
    monkeypatch.setattr(module, "HOLD_S", 60.0)
    follower.send(2)
    late[0][0].refuse(late[0][1], Refusal(Cause.NOT_LEADER, "another one leads"))
    assert await follower.answered(1) == [(1, 14, "not-leader")]
    assert follower.pass_on.held == 1
    await deposed.server.close()


async def test_the_leader_is_asked_at_its_inside_address(follower: Follower) -> None:
    """Containers: what clients dial is a port of the host, which another container does not reach."""
    leader = Leader(accept)
    hint = LeaderHint("n0", "127.0.0.1:1", await leader.start())
    follower.role.update(log_state(writable=False, generation=2, leader=hint))
    follower.pass_on.follow()
    follower.send(1)
    assert await follower.answered(1) == [(1, 0, "")]
    await leader.server.close()


async def test_a_leader_whose_inside_address_is_wrong_is_asked_at_the_other_one(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    leader, [nobody] = Leader(accept), free_ports(1)
    hint = LeaderHint("n0", await leader.start(), f"127.0.0.1:{nobody}")
    follower.role.update(log_state(writable=False, generation=2, leader=hint))
    follower.pass_on.follow()
    follower.send(1)
    assert await follower.answered(1) == [(1, 0, "")]
    assert f"the leader answers at {hint.address} only: is its brokerIP2 wrong?" in caplog.text
    assert follower.role.leader_elsewhere == hint.address
    await leader.server.close()


async def test_a_slave_makes_no_connection_to_its_master(follower: Follower) -> None:
    master = Leader(accept)
    hint = LeaderHint("b/0", await master.start())
    follower.role.update(LogState(LogRole.SLAVE, 0, hint, Refusal(Cause.NOT_LEADER, "a slave", leader_hint=hint)))
    follower.pass_on.follow()
    await asyncio.sleep(0.1)
    assert not master.server.connections
    assert not follower.pass_on.take_back([]), "nobody elects: what a demoted master did not place is refused at once"
    await master.server.close()


async def test_a_node_that_still_leads_takes_nothing_back(follower: Follower) -> None:
    follower.role.update(log_state(writable=True, generation=2))
    assert not follower.pass_on.take_back([])
    follower.role.update(log_state(writable=False, generation=3))
    assert follower.pass_on.take_back([])


async def test_clients_are_introduced_in_slices_and_before_their_requests(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.passing.pass_on.FILTER_SLICE_S", 0.0)
    clients = [Client() for _ in range(50)]
    for number, one in enumerate(clients):
        one.address = f"10.0.0.{number}:1"
        one.attributes[HEARTBEAT] = (Command(34, body=b"beat"),)
        follower.clients.beat_producer("g", f"c{number}", one, "JAVA", 1, None)
    taken: list[int] = []
    leader = Leader(lambda connection, command: taken.append(command.code))
    told: list[Connection] = []
    tell = follower.pass_on._tell
    turns = 0

    def watched(link: LeaderLink, command: Command, connection: Connection) -> None:
        told.append(connection)
        tell(link, command, connection)

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(told) == 10:  # one that is introduced beats again, and one leaves
            told[0].attributes[HEARTBEAT] = (Command(34, body=b"again"),)
            told[1].close()
            list(follower.clients.connection_closed(told[1]))
        if 310 not in taken:
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(follower.pass_on, "_tell", watched)
    follower.send(1)
    turn()
    follower.leads(await leader.start())
    await eventually(lambda: 310 in taken, "the request")
    assert (taken.count(34), taken.count(CLIENT_GONE), taken[-1]) == (51, 1, 310)
    assert turns > 50
    await leader.server.close()


async def test_a_new_leader_learns_which_groups_a_client_has_left(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.passing.pass_on.FILTER_SLICE_S", 0.0)
    taken: list[int] = []
    leader = Leader(lambda connection, command: taken.append(command.code))
    one, other = follower.client, Client()
    other.address = "10.0.0.8:1"
    for client in (one, other):
        client.attributes[HEARTBEAT] = (Command(34),)
        follower.clients.beat_producer("g", "c", client, "JAVA", 1, None)
    one.attributes[HEARTBEAT] += (Command(35),)  # it is in another group still
    tell = follower.pass_on._tell

    def leaves(link: LeaderLink, command: Command, connection: Connection) -> None:
        tell(link, command, connection)
        if other in follower.clients.connections() and connection is other:  # it leaves when the leader knows of it
            follower.clients.leave_producer("g", other)
            other.attributes[HEARTBEAT] = (Command(34), Command(35))

    monkeypatch.setattr(follower.pass_on, "_tell", leaves)
    follower.send(1)
    follower.leads(await leader.start())
    await eventually(lambda: 310 in taken, "the request")
    assert sorted(taken) == [34, 34, 34, 35, 35, 310], taken
    await leader.server.close()


async def test_a_flood_of_heartbeats_does_not_keep_requests_from_a_new_leader(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.passing.pass_on.FILTER_SLICE_S", 0.0)
    follower.client.attributes[HEARTBEAT] = (Command(34),)
    follower.clients.beat_producer("g", "c", follower.client, "JAVA", 1, None)
    taken: list[int] = []
    leader = Leader(lambda connection, command: taken.append(command.code))

    def beat() -> None:
        follower.client.attributes[HEARTBEAT] = (Command(34),)
        if 310 not in taken:
            asyncio.get_running_loop().call_soon(beat)

    follower.send(1)
    beat()
    follower.leads(await leader.start())
    await eventually(lambda: 310 in taken, "the request")
    await leader.server.close()


async def test_a_client_is_found_by_its_address_while_it_is_connected_here(follower: Follower) -> None:
    table, client = follower.clients, follower.client
    for group in ("g", "h"):
        table.beat_producer(group, "c", client, "JAVA", 1, None)
    assert table.connected_at("10.0.0.9:4000") is client
    table.leave_producer("g", client)
    assert table.connected_at("10.0.0.9:4000") is client
    assert len(list(table.connection_closed(client))) > 0
    assert table.connected_at("10.0.0.9:4000") is None


async def test_an_answered_pop_makes_room_for_the_next_one(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POPS_MAX", 1)
    leader = Leader(accept)
    follower.leads(await leader.start())
    for opaque in (1, 2, 3):
        follower.send(opaque, 200050)
        await follower.answered(opaque)
    assert follower.client.answers == [(1, 0, ""), (2, 0, ""), (3, 0, "")]
    await leader.server.close()


async def test_a_lost_answer_is_told_when_the_members_know_of_the_leaders_end(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Loop:
        def __getattr__(self, name: str) -> object:
            return getattr(asyncio.get_running_loop(), name)

        def call_later(self, delay_s: float, call: Callable[..., object], *args: object) -> object:
            if call == follower.client.refuse:
                pauses.append(delay_s)
            return asyncio.get_running_loop().call_later(delay_s, call, *args)

    monkeypatch.setattr(follower.pass_on, "_loop", Loop())
    leader = Leader(lambda connection, _: connection.abort("killed"))
    follower.leads(await leader.start())
    follower.send(1)
    assert await follower.answered(1) == [(1, 14, "leader-changed")]
    assert pauses == [0.1]
    await leader.server.close()


@pytest.mark.parametrize("flag", [0, ONEWAY_FLAG])
async def test_who_asks_for_no_answer_gets_none_whatever_headers_came_before(follower: Follower, flag: int) -> None:
    leader = Leader(accept)
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    sends = repeated(*range(1000, 1040), flag=flag)
    client, transport = client_at(4000, 0 if flag else len(sends))
    for command in sends:
        follower.pass_on.take(client, command)
    await eventually(lambda: len(leader.taken) == len(sends) and not follower.pass_on.in_flight, "all are answered")
    await asyncio.sleep(0)
    assert client.in_flight == 0
    assert answers_on(transport) == ([] if flag else [(command.opaque, 0) for command in sends])
    assert leader.runs == ([] if flag else [40])
    await leader.server.close()


async def test_what_clients_send_in_one_turn_is_passed_on_in_a_run_of_each_in_order(follower: Follower) -> None:
    leader = Leader(accept)
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    (one, to_one), (other, to_other) = client_at(4000, 5), client_at(4001, 4)
    sends = [(one, send) for send in repeated(11, 12, 13)] + [(other, send) for send in repeated(11, 12)]
    sends += [(other, Command(320, 21, body=b"21"))]  # a batch is none of a run, and stays where it was
    sends += [(other, send) for send in repeated(22)] + [(one, send) for send in repeated(14, 14)]
    for client, send in sends:
        follower.pass_on.take(client, send)
    await eventually(lambda: not follower.pass_on.in_flight, "all are answered")
    await asyncio.sleep(0)
    assert leader.taken == [b"%d" % send.opaque for _, send in sends]
    assert leader.runs == [3, 2, 1, 1, 1], "two sends of one number could not be told apart"
    assert answers_on(to_one) == [(11, 0), (12, 0), (13, 0), (14, 0), (14, 0)]
    assert answers_on(to_other) == [(11, 0), (12, 0), (21, 0), (22, 0)]
    assert (one.in_flight, other.in_flight, follower.pass_on.passed) == (0, 0, 9)
    await leader.server.close()


async def test_a_leader_of_an_earlier_release_gets_the_sends_of_a_turn_one_by_one(follower: Follower) -> None:
    leader = Leader(accept, takes_runs=False)
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    client, transport = client_at(4000, 3)
    for send in repeated(11, 12, 13):
        follower.pass_on.take(client, send)
    await eventually(lambda: len(answers_on(transport)) == 3, "all are answered")
    assert answers_on(transport) == [(11, 0), (12, 0), (13, 0)]
    assert (leader.taken, leader.runs) == ([b"11", b"12", b"13"], [])
    await leader.server.close()


@pytest.mark.parametrize(
    ("body", "code_of_11"), [(encode(Command(0, 11, RESPONSE_FLAG)), 0), (b"\0\0\0\1x", 14), (b"", 14)]
)
async def test_a_send_that_the_answers_to_its_run_lack_counts_as_lost(
    follower: Follower, body: bytes, code_of_11: int
) -> None:
    leader = Leader(accept)
    leader.answer_of_runs = body
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    client, transport = client_at(4000, 2)
    for send in repeated(11, 12):
        follower.pass_on.take(client, send)
    await eventually(lambda: len(answers_on(transport)) == 2, "all are answered")
    assert dict(answers_on(transport)) == {11: code_of_11, 12: 14}
    assert (client.in_flight, follower.pass_on.in_flight) == (0, 0)
    await leader.server.close()


async def test_the_leader_forgets_a_client_whose_sends_came_in_runs_when_it_closes(follower: Follower) -> None:
    """Else it would keep the patterns of headers of every producer that ever sent without a heartbeat."""
    codes: list[int] = []
    leader = Leader(lambda _, command: codes.append(command.code))
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    client, _ = client_at(4000, 1)
    (send,) = repeated(11)
    follower.pass_on.take(client, send)
    follower.pass_on.client_closed(client)
    await eventually(lambda: codes == [310, CLIENT_GONE], "the leader is told behind the send")
    await leader.server.close()


async def test_only_those_of_a_run_that_were_not_placed_go_to_the_next_leader(follower: Follower) -> None:
    def take_two(connection: Connection, command: Command) -> None:
        if len(first.taken) > 2:
            raise Refusal(Cause.NOT_LEADER, "another one leads")
        accept(connection, command)

    first, second = Leader(take_two), Leader(accept)
    follower.leads(await first.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    client, transport = client_at(4000, 4)
    for send in repeated(11, 12, 13, 14):
        follower.pass_on.take(client, send)
    await eventually(lambda: len(first.taken) >= 4)
    follower.leads(await second.start())
    await eventually(lambda: len(answers_on(transport)) == 4, "all are answered")
    assert answers_on(transport) == [(11, 0), (12, 0), (13, 0), (14, 0)]
    assert second.taken == [b"13", b"14"]
    assert client.in_flight == 0
    for leader in (first, second):
        await leader.server.close()


async def test_a_run_whose_answer_is_lost_is_not_passed_on_again(follower: Follower) -> None:
    first, second = Leader(lambda connection, _: connection.abort("killed")), Leader(accept)
    follower.leads(await first.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    for send in repeated(11, 12):
        follower.pass_on.take(follower.client, send)
    assert await follower.answered(11, 12) == [(11, 14, "leader-changed"), (12, 14, "leader-changed")]
    await first.server.close()
    follower.leads(await second.start())
    follower.send(3)
    await follower.answered(3)
    assert (second.taken, follower.pass_on.unanswered) == ([b"3"], 2)
    await second.server.close()


async def lose_one(follower: Follower, first: Leader) -> None:
    """Pass a send on of which the leader tells nothing, or that it does not know."""
    follower.leads(await first.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    follower.pass_on.take(follower.client, *repeated(11))
    await eventually(lambda: first.taken == [b"11"], "the leader has it")


def kill(connection: Connection, _: Command) -> None:
    connection.abort("killed")


def refuse(cause: Cause) -> Callable[[Connection, Command], None]:
    def fate(_: Connection, __: Command) -> None:
        raise Refusal(cause, "it did not become known whether it is stored")

    return fate


_UNDECIDED = (Cause.LEADER_CHANGED, Cause.NO_QUORUM, Cause.DISK_FAILED, Cause.SHUTTING_DOWN)
"""Causes for which a log refuses batches that it has placed."""


def say_nothing(_: Connection, __: Command) -> None:
    pass


@pytest.mark.parametrize(
    "fate",
    [kill, say_nothing, *map(refuse, _UNDECIDED)],
    ids=["killed", "silent", *(one.slug for one in _UNDECIDED)],
)
@pytest.mark.parametrize("is_old", [False, True])
async def test_a_send_that_a_later_leaders_log_lacks_is_passed_on_again_unless_its_client_has_given_up(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, fate: Callable[[Connection, Command], None], is_old: bool
) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.0)  # which is over when it is looked for
    monkeypatch.setattr(module, "AGE_MAX_S", 0.05 if is_old else WAIT_S)
    monkeypatch.setattr(lost_sends, "_LOOK_S", 0.1)
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    first, second = Leader(fate, takes_runs=False, is_bound=True), Leader(accept, takes_runs=False)
    await lose_one(follower, first)
    follower.leads(await second.start(), generation=3, is_decided=True)
    await eventually(lambda: follower.pass_on._link is not None and follower.pass_on._link.generation == 3)
    assert await follower.answered(11) == [(11, 14, "not-leader") if is_old else (11, 0, "")]
    assert second.taken == ([] if is_old else [b"11"])
    for leader in (first, second):
        await leader.server.close()


async def test_what_a_client_sent_that_has_left_is_not_passed_on(follower: Follower) -> None:
    follower.send(1)
    follower.client.close("gone")
    follower.pass_on.take(other := Client(), Command(310, 2, body=b"2"))
    leader = Leader(accept)
    follower.leads(await leader.start())
    await eventually(lambda: other.answers == [(2, 0, "")])
    assert leader.taken == [b"2"]
    await leader.server.close()


async def test_the_connection_to_a_node_that_leads_again_stays(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OLD_LINK_S", 0.1)
    first, second = Leader(say_nothing), Leader(accept)
    address = await first.start()
    follower.leads(address)
    follower.send(1)
    await eventually(lambda: first.taken == [b"1"])
    follower.leads(await second.start(), generation=3)
    follower.leads(address, generation=4)
    await eventually(lambda: follower.pass_on._link is not None and follower.pass_on._link.generation == 4)
    await asyncio.sleep(0.2)
    assert (first.generations, follower.client.answers) == (["2", "4"], [])
    for leader in (first, second):
        await leader.server.close()


async def test_what_a_leader_may_place_in_any_generation_is_not_looked_for(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release does not heed the generation of a greeting."""
    monkeypatch.setattr(lost_sends, "WAIT_S", 10 * WAIT_S)
    first = Leader(kill, takes_runs=False)
    await lose_one(follower, first)
    assert await follower.answered(11) == [(11, 14, "leader-changed")]
    await first.server.close()


async def test_a_broker_that_stops_tells_all_whose_answers_are_lost(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_sends, "WAIT_S", 10 * WAIT_S)
    first, second = Leader(kill, takes_runs=False, is_bound=True), Leader(lambda *_: None, is_bound=True)
    await lose_one(follower, first)
    follower.leads(await second.start(), generation=3)
    await eventually(lambda: follower.pass_on._link is not None, "the next leader is known")
    follower.pass_on.take(follower.client, *repeated(12))
    await eventually(lambda: second.taken == [b"12"], "it has one, too")
    follower.pass_on.release()
    assert follower.client.answers == [(11, 14, "leader-changed")], "at once: the connections are closed next"
    await second.server.close()
    assert await follower.answered(12) == [(11, 14, "leader-changed"), (12, 14, "leader-changed")]
    await first.server.close()


async def test_a_leader_that_is_elected_again_while_it_is_greeted_is_greeted_again(follower: Follower) -> None:
    leader = Leader(accept)
    address = await leader.start()

    def elected_again() -> None:
        leader.on_greeting = lambda: None
        follower.leads(address, generation=4)

    leader.on_greeting = elected_again
    follower.leads(address)
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    assert follower.pass_on._link is not None
    assert (leader.generations, follower.pass_on._link.generation) == (["2", "4"], 4)
    await leader.server.close()


@pytest.mark.parametrize("hangs", ["connecting", "greeting"])
async def test_a_leader_that_dies_while_it_is_connected_to_keeps_nobody_from_the_next_one(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, full_port: int, hangs: str
) -> None:
    """A machine that is off refuses no connection."""
    monkeypatch.setattr("broker.passing.leader_link._GREETING_TIMEOUT_S", 10 * WAIT_S)
    monkeypatch.setattr(module, "HOLD_S", 10 * WAIT_S)
    assert follower.pass_on._client is not None
    follower.pass_on._client._connect_timeout_s = 10 * WAIT_S
    second, asked = Leader(accept), asyncio.Event()
    first = RemotingServer(Silent(asked))
    await first.start("127.0.0.1", 0)
    follower.leads(f"127.0.0.1:{full_port if hangs == 'connecting' else first.port}")
    follower.send(1)
    if hangs == "connecting":
        await eventually(lambda: bool(follower.pass_on._client and follower.pass_on._client._attempts))
    else:
        await asked.wait()
    follower.leads(await second.start(), generation=3)
    assert await follower.answered(1) == [(1, 0, "")]
    await eventually(lambda: not first.connections, "that node is left")
    for server in (first, second.server):
        await server.close()


class Silent(NoRequests):
    """A node that stands still."""

    def __init__(self, asked: asyncio.Event) -> None:
        self._asked = asked

    def on_request(self, connection: Connection, command: Command) -> None:
        self._asked.set()


async def test_a_run_that_could_not_be_sent_waits_for_the_next_leader(follower: Follower) -> None:
    first, second = Leader(accept), Leader(accept)
    follower.leads(await first.start())
    await eventually(lambda: follower.pass_on._link is not None, "the leader is known")
    link = follower.pass_on._link
    assert link is not None
    client, transport = client_at(4000, 2)
    for send in repeated(11, 12):
        follower.pass_on.take(client, send)
    link.connection.abort("broken in the same turn")
    follower.leads(await second.start())
    await eventually(lambda: len(answers_on(transport)) == 2, "all are answered")
    assert answers_on(transport) == [(11, 0), (12, 0)]
    assert (first.taken, second.taken, follower.pass_on.unanswered) == ([], [b"11", b"12"], 0)
    for leader in (first, second):
        await leader.server.close()


def test_signed_and_long_sends_are_passed_on_alone() -> None:
    (send,) = repeated(11)
    assert goes_in_a_run(send)
    send.body = bytes(17 << 10)
    assert not goes_in_a_run(send)
    (signed,) = repeated(11, Signature="s")
    assert not goes_in_a_run(signed)


async def test_a_client_is_not_read_while_the_leader_has_too_many_of_its_oneway_messages(follower: Follower) -> None:
    waiting: list[tuple[Connection, Command]] = []
    leader = Leader(lambda connection, command: waiting.append((connection, command)))
    follower.leads(await leader.start())
    await eventually(lambda: follower.pass_on._link is not None)
    held = []
    for opaque in range(5):
        body = bytes(UNSETTLED_MAX_BYTES // 4)
        follower.pass_on.take(follower.client, Command(310, opaque, flag=ONEWAY_FLAG, body=body))
        held.append(follower.client._is_held_back)
    assert held == [False, False, False, True, True]
    await eventually(lambda: len(waiting) == 5)
    assert not any(command.is_oneway for _, command in waiting)
    for one in waiting:
        accept(*one)
    await eventually(lambda: not follower.client._is_held_back)
    assert not follower.pass_on._oneway
    await leader.server.close()
