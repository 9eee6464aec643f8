"""When a controller takes a connection to another one for dead."""

import socket
import time
from collections.abc import Iterator

import pytest
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import CONNECTION_STATE

from ha.controller.quorum.transport import BoundedConnection

SILENCE_S = 0.2


class Pair:
    """Both ends of a connection, and what arrived at each."""

    def __init__(self) -> None:
        self.arrived: tuple[list[object], list[object]] = [], []
        self.pollers = createPoller("auto"), createPoller("auto")
        self.ends = tuple(
            BoundedConnection(poller, arrived.append, socket=one, timeout=SILENCE_S)
            for poller, arrived, one in zip(self.pollers, self.arrived, socket.socketpair(), strict=True)
        )
        for one in self.ends:
            one._TcpConnection__socket.setblocking(False)

    def is_open(self) -> bool:
        return all(one.state == CONNECTION_STATE.CONNECTED for one in self.ends)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    for one in pair.ends:
        one.disconnect()


def test_what_is_sent_after_a_long_silence_arrives(pair: Pair) -> None:
    """Two followers have nothing to say to each other until their leader ends."""
    pair.ends[0].send("greeting")
    time.sleep(1.5 * SILENCE_S)
    pair.ends[0].send("vote for me")
    pair.pollers[1].poll(0)
    assert pair.arrived[1] == ["greeting", "vote for me"]
    assert pair.is_open()


def test_who_stood_still_reads_what_has_arrived(pair: Pair) -> None:
    pair.ends[0].send("heartbeat")
    pair.ends[1].send("answer")
    time.sleep(1.5 * SILENCE_S)
    pair.pollers[0].poll(0)
    assert pair.arrived[0] == ["answer"]
    assert pair.is_open()


def test_an_end_that_never_answers_is_left(pair: Pair) -> None:
    began_s = time.monotonic()
    while pair.is_open():
        assert time.monotonic() - began_s < 100 * SILENCE_S
        pair.ends[0].send("heartbeat")
        time.sleep(SILENCE_S / 10)
    assert time.monotonic() - began_s > SILENCE_S
