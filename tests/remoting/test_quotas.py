"""Quotas: the arithmetic with a clock of its own, and connections that are not read while one is used up."""

import time

import pytest

from ledgermq.remoting import quotas as module
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.connection import UNFINISHED_FREE_BYTES
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import AddressQuotas, Quota, Quotas, UserQuotas, address_block
from ledgermq.remoting.serving.line import FEW
from tests.remoting.peers import Dial, RawPeer, Serve, eventually, turns


def quota(rate: int, burst_s: float = 1.0) -> Quota:
    made = Quota("address", "requests", burst_s)
    made.rate = rate
    return made


def test_without_a_rate_nothing_waits_and_nothing_is_kept() -> None:
    free = quota(0)
    assert (free.take("a", 1e9, 0.0), len(free)) == (0.0, 0)


def test_what_is_saved_up_goes_first_and_then_the_rate_holds() -> None:
    ten = quota(10)
    assert [ten.take("a", 1, 5.0) for _ in range(10)] == [0.0] * 10
    assert [round(ten.take("a", 1, 5.0), 6) for _ in range(3)] == [0.1, 0.2, 0.3]  # each has a place of its own
    assert ten.take("a", 1, 5.5) == 0.0
    assert ten.take("b", 1, 5.0) == 0.0  # another one has all of it
    assert ten.take("a", 11, 100.0) == pytest.approx(0.1)  # no more than a second's worth is saved up
    assert ten.throttled_s == pytest.approx(0.7)


def test_a_debt_is_paid_off_in_a_minute_at_most() -> None:
    ten = quota(10)
    assert ten.take("a", 1e6, 0.0) == 60.0
    assert ten.take("a", 10, 60.0) == pytest.approx(1.0)


def test_the_one_that_was_used_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NAMES_MAX", 3)
    ten = quota(10)
    for name in "abc":
        ten.take(name, 20, 0.0)
    ten.take("a", 0, 0.0)
    ten.take("d", 20, 0.0)
    assert len(ten) == 3
    assert ten.take("a", 0, 0.0) == 1.0
    assert ten.take("b", 0, 0.0) == 0.0


def test_a_user_has_one_quota_from_whatever_address() -> None:
    both = Quotas(AddressQuotas(), UserQuotas(requests_a_second=10, bytes_a_second=100))
    assert both.limits_traffic
    assert both.traffic("10.0.0.1", "alice", 1, 10, 0.0) == 0.0
    assert both.traffic("10.0.0.2", "alice", 1, 5, 0.0) == 0.5
    assert both.traffic("10.0.0.2", "alice", 198, 0, 0.0) == 1.0  # bytes, on top of the two before
    assert both.traffic("10.0.0.2", "bob", 1, 10, 0.0) == 0.0
    assert both.traffic("10.0.0.2", None, 1000, 1000, 0.0) == 0.0


def test_settings_may_change() -> None:
    made = Quotas(AddressQuotas())
    assert made.traffic("a", None, 30, 1, 0.0) == 0.0
    made.set(AddressQuotas(bytes_a_second=10))
    assert made.traffic("a", None, 30, 1, 0.0) == 2.0
    assert {(one.of, one.what): one.throttled_s for one in made}[("address", "bytes")] == 2.0


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    assert address_block("10.1.2.3") == "10.1.2.3"
    assert address_block("2001:db8:1:2:3:4:5:6") == address_block("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert address_block("::1") == "::/64"


async def _answered_first(peer: RawPeer, count: int) -> None:
    for number in range(count):
        assert (await peer.receive()).opaque == number


async def test_a_used_up_quota_delays_and_refuses_nothing(serve: Serve, dial: Dial) -> None:
    quotas = Quotas(AddressQuotas(requests_a_second=100))
    server, _ = await serve(quotas=quotas)
    peer = await dial(server)
    began = time.monotonic()
    peer.send(*(Command(7, number) for number in range(130)))
    await _answered_first(peer, 130)  # what was read is served
    peer.send(Command(7, 130))
    assert (await peer.receive()).opaque == 130
    assert time.monotonic() - began >= 0.25
    assert sum(one.throttled_s for one in quotas) >= 0.25


async def test_one_way_requests_and_answers_count_for_all_connections_of_an_address(serve: Serve, dial: Dial) -> None:
    quotas = Quotas(AddressQuotas(requests_a_second=50))
    server, handler = await serve(quotas=quotas)
    one, other = await dial(server), await dial(server)
    one.send(*(Command(7, flag=ONEWAY_FLAG) for _ in range(70)))
    await eventually(lambda: len(handler.requests) == 70)
    other.send(Command(7, 0))
    await other.receive()
    assert [connection.is_throttled for connection in server.connections] == [True, True]


@pytest.mark.parametrize("count", [FEW // 2, 4 * FEW])
async def test_a_request_that_waits_until_answers_are_read_counts_once(
    serve: Serve, dial: Dial, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    counted, count_traffic = list[int](), Quotas.traffic

    def noted(quotas: Quotas, block: str, user: str | None, size: int, requests: int, now: float) -> float:
        counted.append(requests)
        return count_traffic(quotas, block, user, size, requests, now)

    monkeypatch.setattr(Quotas, "traffic", noted)
    quotas = Quotas(AddressQuotas(requests_a_second=1_000_000))
    server, handler = await serve(Limits(output_high_water_bytes=1000), quotas)
    handler.serve = lambda connection, command: connection.respond(command, 0, body=bytes(4000))
    peer = await dial(server)
    peer.send(*(Command(7, number) for number in range(count)))
    await _answered_first(peer, count)
    await eventually(lambda: server.line.unserved_bytes == 0)
    assert sum(counted) == count


async def test_bytes_sent_count_like_bytes_received(serve: Serve, dial: Dial) -> None:
    quotas = Quotas(AddressQuotas(bytes_a_second=10_000))
    server, handler = await serve(quotas=quotas)
    handler.serve = lambda connection, command: connection.respond(command, 0, body=bytes(12_000))
    peer = await dial(server)
    began = time.monotonic()
    for number in range(2):
        peer.send(Command(7, number))
        await peer.receive()
    assert time.monotonic() - began >= 0.15


async def test_new_connections_above_the_quota_are_read_later(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(quotas=Quotas(AddressQuotas(connects_a_second=2)))
    began = time.monotonic()
    peers = [await dial(server) for _ in range(22)]
    for peer in peers:
        peer.send(Command(7, 0))
    await eventually(lambda: len(handler.requests) == 22)
    assert time.monotonic() - began >= 0.9


async def test_a_throttled_connection_may_close(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(quotas=Quotas(AddressQuotas(requests_a_second=1)))
    peer = await dial(server)
    peer.send(*(Command(7, number) for number in range(30)))
    await _answered_first(peer, 30)
    (connection,) = server.connections
    connection.close()
    await eventually(lambda: len(handler.closed) == 1)
    assert await peer.closed()


async def test_a_delay_that_is_nearly_over_is_extended_and_the_time_for_a_frame_grows_once(
    serve: Serve, dial: Dial
) -> None:
    server, _ = await serve()
    peer = await dial(server)
    frame = encode(Command(7, 0, body=bytes(2 * UNFINISHED_FREE_BYTES)))
    peer.send(frame[:-1])
    await eventually(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    await eventually(lambda: connection.unfinished_since is not None)
    began, ends = time.monotonic(), (connection.unfinished_since or 0.0) + Limits().frame_s
    for delay_s in (0.0001, 0.1, 0.2, 0.3):
        connection.throttle(delay_s)
    await eventually(lambda: not connection.is_throttled)
    assert time.monotonic() - began >= 0.25
    connection.check_times(ends + 0.25)
    assert not connection.is_closed
    connection.check_times(ends + time.monotonic() - began + 0.05)
    assert connection.is_closed


async def test_nothing_is_read_from_a_connection_that_is_held_back(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    peer = await dial(server)
    peer.send(Command(7, 0))
    await peer.receive()
    (connection,) = server.connections
    connection.hold_back()
    connection.throttle(0.001)  # ends first, and does not make it read
    peer.send(Command(7, 1))
    await eventually(lambda: not connection.is_throttled)
    await turns(20)
    assert [command.opaque for _, command in handler.requests] == [0]
    connection.go_on()
    assert (await peer.receive()).opaque == 1
