"""The leader's end of what members pass on: which clients it knows behind a member, and when it believes it no more."""

import asyncio
from pathlib import Path

import pytest

from broker.passing import postponed
from broker.passing.claims import VERSION, Claims, read_nonce
from broker.passing.member_requests import GREETING, MemberRequests
from broker.passing.relayed import RelayedClient
from broker.passing.runs import MIXED, SENDS
from broker.role import Role
from ledgermq.remoting.client import NoRequests
from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.proof import Secrets, make_nonce
from ledgermq.remoting.refusal import Cause, Refusal
from tests.broker.conftest import MemoryTransport, eventually, log_state, small_config

SECRET = b"s" * 32


class Served(NoRequests):
    """Serves what is passed on; notes the clients."""

    def __init__(self) -> None:
        self.served: list[Connection] = []
        self.bodies: list[bytes] = []
        self.closed: list[Connection] = []

    def on_request(self, connection: Connection, command: Command) -> None:
        self.served.append(connection)
        self.bodies.append(bytes(command.body))

    def on_closed(self, connection: Connection) -> None:
        self.closed.append(connection)


class Carrier(Connection):
    """A member's connection; keeps the answers to greetings."""

    def __init__(self, requests: MemberRequests) -> None:
        super().__init__(Greeted(requests), Limits(in_flight=4), lambda _: None, lambda _connection, _reason: None)
        self.next = 0
        self.last = b""
        self.nonces: list[bytes] = []
        self.refusals: list[Refusal] = []
        self.answers: list[tuple[int, object, bytes]] = []
        self.connection_made(MemoryTransport(("10.0.0.2", 4000)))
        self.requests = requests

    def respond(
        self, command: Command, code: int, ext: object = None, body: object = b"", remark: object = None
    ) -> None:
        if isinstance(ext, dict) and "nonce" in ext:
            self.nonces.append(read_nonce(ext["nonce"]))
        elif isinstance(body, list):
            self.answers.append((command.opaque, remark, b"".join(body)))

    def refuse(self, command: Command, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def greet(self, **more: str) -> Claims:
        own = make_nonce()
        self.receive(Command(GREETING, ext={"nonce": own.hex(), "version": VERSION} | more))
        return Claims(self.requests.secrets, own, self.nonces[-1])

    def pass_on(self, claims: Claims, client: str, body: bytes = b"", *, is_oneway: bool = False) -> None:
        command = Command(310, flag=ONEWAY_FLAG if is_oneway else 0, ext={"b": "T"}, body=body)
        command.remark = claims.make(command, client)
        self.receive(command)

    def pass_run_on(self, claims: Claims, client: str, frames: bytes) -> Command:
        command = Command(SENDS, body=frames)
        command.remark = claims.make(command, client)
        self.receive(command)
        return command

    def receive(self, command: Command) -> None:
        """Take the next request of the member; `last` is its frame."""
        command.opaque = self.next
        self.next = (self.next + 1) % 2**31
        self.last = encode(command)
        self.data_received(self.last)


class Greeted(NoRequests):
    def __init__(self, requests: MemberRequests) -> None:
        self._requests = requests

    def on_request(self, connection: Connection, command: Command) -> None:
        self._requests.greet(connection, command)


def made(tmp_path: Path, secrets: Secrets = (SECRET,)) -> tuple[Served, Carrier]:
    served = Served()
    role = Role(small_config(tmp_path).broker, log_state(writable=True, generation=1))
    requests = MemberRequests(role, lambda: served, {})
    requests.secrets, requests.trusts_all = secrets, not secrets
    return served, Carrier(requests)


async def test_a_member_that_greets_again_on_its_connection_leaves_no_clients_behind(tmp_path: Path) -> None:
    served, carrier = made(tmp_path)
    carrier.pass_on(carrier.greet(), "10.0.0.7:1")
    carrier.pass_on(carrier.greet(), "10.0.0.7:1")
    first, second = served.served
    assert served.closed == [carrier, first, carrier]  # what it was before it greeted ends, too: a client with a user
    carrier.connection_lost(None)
    assert served.closed == [carrier, first, carrier, second]


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
@pytest.mark.parametrize("is_oneway", [False, True])
async def test_what_arrives_twice_is_served_once(tmp_path: Path, secrets: Secrets, is_oneway: bool) -> None:
    """The second request of a client has no seal of its own."""
    served, carrier = made(tmp_path, secrets)
    carrier.next = 2**31 - 2  # so that the numbers begin at 0 again
    claims = carrier.greet()
    carrier.data_received(carrier.last)
    for body in (b"first", b"second"):
        carrier.pass_on(claims, "10.0.0.7:1", body, is_oneway=is_oneway)
        carrier.data_received(carrier.last)
    assert served.bodies == [b"first", b"second"]
    assert not (carrier.is_closed or carrier.refusals)
    assert (len(carrier.nonces), carrier.in_flight) == (1, 1 if is_oneway else 3), "none is left to be answered"


async def test_what_comes_late_is_not_served_in_a_later_generation(tmp_path: Path) -> None:
    """The member has looked in another leader's log for it meanwhile, and has passed it on again."""
    served, carrier = made(tmp_path)
    claims = carrier.greet(generation="1")
    carrier.requests._role.update(log_state(writable=True, generation=3))
    carrier.pass_on(claims, "10.0.0.7:1", b"late")
    assert [refusal.cause for refusal in carrier.refusals] == [Cause.NOT_LEADER]
    carrier.pass_on(carrier.greet(generation="3"), "10.0.0.7:1", b"greeted again")
    assert served.bodies == [b"greeted again"]


def send_frame(number: int, code: int = 310, flag: int = 0, **fields: str) -> bytes:
    return encode(Command(code, number, flag, {"b": "T"} | fields, b"%d" % number))


@pytest.mark.parametrize("secrets", [(), (SECRET,)])
async def test_the_sends_of_a_run_are_served_in_order_as_the_clients_and_never_twice(
    tmp_path: Path, secrets: Secrets
) -> None:
    served, carrier = made(tmp_path, secrets)
    claims = carrier.greet()
    carrier.pass_on(claims, "10.0.0.7:1", b"first")
    for _ in range(2):
        carrier.data_received(carrier.last)
    run = carrier.pass_run_on(claims, "10.0.0.7:1", send_frame(8) + send_frame(9))
    carrier.data_received(carrier.last)
    assert served.bodies == [b"first", b"8", b"9"]
    client, first, second = served.served
    assert (first, first.address, first.attributes) == (second, "10.0.0.7:1", client.attributes)
    assert isinstance(first, RelayedClient) and first.attributes is client.attributes
    before = len(carrier.answers)
    first.respond(Command(310, 9), 0, {})
    assert len(carrier.answers) == before, "the run is answered at once"
    first.refuse(Command(310, 8), Refusal(Cause.BUSY, "busy"))
    ((opaque, remark, body),) = carrier.answers[before:]
    assert (opaque, remark) == (run.opaque, MIXED)
    assert [(one.opaque, one.code) for one in FrameParser().feed(body)] == [(9, 0), (8, 2)]


@pytest.mark.parametrize(
    "frames",
    [
        b"",
        send_frame(8)[:-1],
        send_frame(8) + send_frame(9, code=320),
        send_frame(8) + send_frame(9, flag=ONEWAY_FLAG),
        send_frame(8) + send_frame(9, flag=RESPONSE_FLAG),
        send_frame(8) + send_frame(9, Signature="s"),
        send_frame(8) + b"\xff" * 12,
    ],
)
async def test_nothing_is_served_of_a_run_that_has_other_things_than_sends(tmp_path: Path, frames: bytes) -> None:
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    carrier.pass_run_on(claims, "10.0.0.7:1", frames)
    assert (served.bodies, [refusal.cause for refusal in carrier.refusals]) == ([], [Cause.MALFORMED_FIELD])
    carrier.pass_run_on(claims, "10.0.0.7:1", send_frame(8))
    assert served.bodies == [b"8"]


async def test_a_run_of_a_client_whose_quota_is_used_up_is_refused(tmp_path: Path) -> None:
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    await throttled_client(served, carrier, claims)
    carrier.pass_run_on(claims, "10.0.0.7:1", send_frame(8))
    assert (served.bodies, [refusal.cause for refusal in carrier.refusals]) == ([b"first"], [Cause.BUSY])


async def test_a_connection_ends_with_the_first_claim_that_is_not_valid(tmp_path: Path) -> None:
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    claims.make(Command(310), "10.0.0.7:1")  # one that did not arrive
    carrier.pass_on(claims, "10.0.0.7:1")
    assert (served.served, carrier.is_closed) == ([], True)


async def test_no_claim_is_left_out_when_too_many_requests_are_unanswered(tmp_path: Path) -> None:
    """The next one may be for the same client as the one before."""
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    for number in range(4):
        carrier.pass_on(claims, f"10.0.0.{number}:1")
    assert carrier.is_closed
    assert len(served.served) == 3, "the greeting is one of the four"


async def test_a_greeting_frees_nobody_from_quotas_and_a_sealed_claim_does(tmp_path: Path) -> None:
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    carrier.throttle(5.0)
    assert carrier.is_throttled, "whoever greets has proved nothing"
    carrier.pass_on(claims, "10.0.0.7:1")
    assert (len(served.served), carrier.is_throttled) == (1, False)
    carrier.throttle(5.0)
    assert not carrier.is_throttled


async def test_without_a_secret_a_member_is_in_the_quotas_of_its_address(tmp_path: Path) -> None:
    served, carrier = made(tmp_path, secrets=())
    carrier.pass_on(carrier.greet(), "10.0.0.7:1")
    carrier.throttle(5.0)
    assert (len(served.served), carrier.is_throttled) == (1, True)


@pytest.mark.parametrize("version", [{}, {"version": "1"}, {"version": "x" * 5000}])
async def test_a_member_of_another_release_is_told_so(tmp_path: Path, version: dict[str, str]) -> None:
    _, carrier = made(tmp_path)
    carrier.receive(Command(GREETING, ext={"nonce": make_nonce().hex()} | version))
    (refusal,) = carrier.refusals
    assert refusal.cause is Cause.NOT_SUPPORTED
    assert "all members must run the same release" in refusal.remark
    assert not (carrier.nonces or carrier.is_closed)


async def throttled_client(served: Served, carrier: Carrier, claims: Claims) -> Connection:
    carrier.pass_on(claims, "10.0.0.7:1", b"first", is_oneway=True)
    client = served.served[0]
    client.throttle(0.05)
    for body in (b"second", b"third"):
        carrier.pass_on(claims, "10.0.0.7:1", body, is_oneway=True)
    assert served.bodies == [b"first"]
    return client


async def test_one_way_requests_of_a_throttled_client_are_served_in_order_when_its_quota_is_paid_off(
    tmp_path: Path,
) -> None:
    served, carrier = made(tmp_path)
    claims = carrier.greet()
    client = await throttled_client(served, carrier, claims)
    client.throttle(0.1)  # longer than it was when they came
    carrier.pass_on(claims, "10.0.0.8:1", b"another client's", is_oneway=True)
    await eventually(lambda: len(served.bodies) == 4, "all are served")
    assert served.bodies == [b"first", b"another client's", b"second", b"third"]
    assert not client.is_throttled


async def test_one_way_requests_that_cannot_wait_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postponed, "_COUNT_MAX", 1)
    served, carrier = made(tmp_path)
    await throttled_client(served, carrier, carrier.greet())
    assert carrier.requests.postponed.dropped == 1
    carrier.connection_lost(None)
    assert carrier.requests.postponed.dropped == 2
    await asyncio.sleep(0.06)
    assert served.bodies == [b"first"]
