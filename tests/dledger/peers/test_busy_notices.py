"""Notices of a busy loop, over real sockets: when the thread sends them, and which are heeded."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator

import pytest

from dledger.core.busy import is_due, patience_ms
from dledger.core.messages import BusyNotice
from dledger.core.settings import RaftSettings
from dledger.peers.busy_notices import BusyNotices
from tests.broker.conftest import eventually
from tests.dledger.peers.pair import Pair

SECRETS = (b"s" * 32,)


def settings(name: str) -> RaftSettings:
    return RaftSettings(node_id=name, peers=("n0", "n1"), heartbeat_ms=30, election_min_ms=100, election_max_ms=150)


class Ends:
    """Two members with their notices."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.notices: dict[str, BusyNotices] = {}
        self.heard: list[tuple[str, BusyNotice]] = []

    async def start(self, name: str, secrets: tuple[bytes, ...]) -> None:
        transport, _ = await self.pair.start(name, secrets=secrets)
        made = BusyNotices(settings(name), transport.links, lambda peer, notice: self.heard.append((peer, notice)))
        self.notices[name] = made
        await made.start("127.0.0.1", self.pair.ports[name])

    async def join(self) -> None:
        links = [next(iter(transport.links.values())) for transport in self.pair.transports]
        await eventually(lambda: all(link.target and link.notice_key for link in links), "both are joined")

    async def close(self) -> None:
        for notices in self.notices.values():
            notices.close()
        for transport in self.pair.transports:
            await transport.close()

    def stand_still(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(params=[SECRETS, ()], ids=["sealed", "open"])
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    made = Ends()
    for name in ("n0", "n1"):
        await made.start(name, request.param)
    await made.join()
    yield made
    await made.close()


def test_notices_begin_with_a_late_heartbeat_and_end_with_patience() -> None:
    one = settings("n0")
    assert [is_due(one, quiet) for quiet in (29, 30, 449, 450)] == [False, True, True, False]
    assert patience_ms(one) == 450


async def test_a_leader_whose_loop_stands_still_says_so_until_patience_ends(ends: Ends) -> None:
    leader = ends.notices["n0"]
    leader.turned(7)
    ends.stand_still(0.7)  # all of this process's loop, not the threads
    sent = leader.sent_count
    await eventually(lambda: len(ends.heard) > 0, "a notice")
    assert set(ends.heard) == {("n0", BusyNotice(7))}
    assert sent <= 14  # of 23 heartbeats: none after 450 ms
    assert ends.notices["n1"].sent_count == 0  # it does not lead


async def test_notices_are_sent_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ipv4Socket(socket.socket):
        def __init__(self, family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, kind, proto, fileno)

    monkeypatch.setattr("dledger.peers.busy_notices.socket.socket", Ipv4Socket)
    ends = Ends()
    for name in ("n0", "n1"):
        await ends.start(name, SECRETS)
    try:
        await ends.join()
        ends.notices["n0"].turned(7)
        ends.stand_still(0.15)
        await eventually(lambda: len(ends.heard) > 0, "a notice")
    finally:
        await ends.close()


async def test_while_the_loop_turns_nothing_is_said(ends: Ends) -> None:
    leader = ends.notices["n0"]
    for _ in range(100):
        leader.turned(7)
        ends.stand_still(0.002)
    leader.turned(None)
    ends.stand_still(0.2)
    assert leader.sent_count <= 3  # but when this process was not run


async def test_a_notice_counts_once_and_only_on_its_connection(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    datagrams: list[bytes] = []
    follower = ends.notices["n1"]
    hear = follower.datagram_received

    def keep(data: bytes, addr: tuple[str, int]) -> None:
        datagrams.append(data)
        hear(data, addr)

    monkeypatch.setattr(follower, "datagram_received", keep)
    ends.notices["n0"].turned(7)
    ends.stand_still(0.15)
    await eventually(lambda: len(ends.heard) > 0, "a notice")
    ends.notices["n0"].turned(None)
    await asyncio.sleep(0.05)
    count = len(ends.heard)
    last = datagrams[-1]
    hear(last, ("127.0.0.1", 1))  # sent again
    newer = last[:12] + (1 << 40).to_bytes(8) + last[20:]
    hear(newer, ("127.0.0.1", 1))  # changed
    for wrong in (b"", last[:-1], last + b"x", last.replace(b"n0", b"n9"), bytes(len(last)), bytes(2000)):
        hear(wrong, ("127.0.0.1", 1))
    assert len(ends.heard) == count
    link = ends.pair.transports[1].links["n0"]
    link.notice_number = 0
    hear(last, ("127.0.0.1", 1))
    assert len(ends.heard) == count + 1  # it was the number
    link.notice_number, link.notice_key = 0, b"k" * 32
    hear(last, ("127.0.0.1", 1))
    assert len(ends.heard) == count + 1


async def test_after_the_connection_is_lost_no_notice_of_it_is_heeded(ends: Ends) -> None:
    link = ends.pair.transports[1].links["n0"]
    await ends.pair.transports[0].close()
    await eventually(lambda: link.notice_key == b"", "the loss of the connection")
    ends.notices["n0"].turned(7)
    ends.stand_still(0.2)
    await asyncio.sleep(0.05)
    assert ends.heard == []
