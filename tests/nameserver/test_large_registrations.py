"""Registrations of many topics hold nobody up: no step of the loop reads one, by the loop's processor time."""

import asyncio
import gc
import struct
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from nameserver.broker_requests import _AT_ONCE_BYTES
from nameserver.core.model import TopicTable
from nameserver.core.topics import CHANGED_AT_ONCE, TopicIndex
from nameserver.register_body import parse_register_body
from tests.limits import WAIT_S
from tests.nameserver.conftest import Peer, Served

BROKER = {"clusterName": "c", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0", "haServerAddr": "h:2"}

CHANGE_SOME = TopicIndex.change_some
TOPICS = 60_000
PART_OF_READING = 0.125
"""A step that reads the body takes as long as reading does; one that enters all topics, a third of that; ours 2 %."""


def registration(names: list[bytes], queues: int = 8, counter: int = 1) -> bytes:
    parts = [_sized(b'{"counter":%d,"timestamp":1,"stateVersion":0}' % counter), struct.pack(">i", len(names))]
    parts += [_sized(b"%b %d %d 6 SINGLE_TAG {}" % (name, queues, queues)) for name in names]
    return zlib.compress(b"".join([*parts, _sized(b"[]"), bytes(4)]), 1)


def _sized(part: bytes) -> bytes:
    return struct.pack(">i", len(part)) + part


async def longest_step_s(ask: Callable[[], Any]) -> float:
    """Await what `ask` begins; return the most processor time that a step of the loop took meanwhile.

    Without collections of garbage: one over all that the tests' process holds takes longer than the steps do.
    """
    longest, run = 0.0, asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        nonlocal longest
        began = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - began)

    gc.disable()
    try:
        with patch.object(asyncio.Handle, "_run", measured):
            await ask()
    finally:
        gc.enable()
    return longest


async def test_a_registration_of_many_topics_is_read_beside_the_loop_and_one_of_a_million_is_refused(
    served: Served,
) -> None:
    body = registration([b"topic-%d" % number for number in range(TOPICS)])
    began = time.thread_time()
    parse_register_body(body, 479, "b")
    limit_s = PART_OF_READING * (time.thread_time() - began)
    codes = []

    async def register(peer: Peer, content: bytes) -> None:
        codes.append((await peer.ask(103, BROKER, content)).code)

    peer = await served.peer()
    topics = served.server.table.topics

    async def register_whole(peer: Peer) -> None:
        await register(peer, body)
        await served.until(lambda: not topics.is_changing)

    assert await longest_step_s(lambda: register_whole(peer)) < limit_s
    assert len(topics) == TOPICS

    again = registration([b"topic-%d" % number for number in range(TOPICS)], counter=2)

    async def change_meanwhile(peer: Peer) -> None:
        await peer.ask(103, BROKER, again)
        assert topics.is_changing
        assert (await peer.ask(216, {"topic": f"topic-{TOPICS - 1}"})).code == 0
        await peer.close()
        await served.until(lambda: not served.server.table.has_members and not topics.is_changing)

    assert await longest_step_s(lambda: change_meanwhile(peer)) < limit_s, "nor a deletion, or the broker's end"
    assert len(topics) == 0
    peer = await served.peer()
    million = registration([b"t"] * 1_000_000)
    assert await longest_step_s(lambda: register(peer, million)) < limit_s
    assert codes == [0, 1]
    with patch("nameserver.broker_requests._AT_ONCE_BYTES", len(body)):  # as it once was: the loop reads it
        other = await served.peer()
        assert await longest_step_s(lambda: register(other, body)) > limit_s
    with patch.object(
        TopicIndex, "change_some", lambda topics, _=None: CHANGE_SOME(topics, None)
    ):  # and enters all at once
        served.server.table.topics.remove_brokers({"b"})
        assert await longest_step_s(lambda: register(other, again)) > limit_s


async def test_a_client_that_waits_hears_of_a_topic_that_is_entered_in_a_later_step(served: Served) -> None:
    broker, client = await served.peer(), await served.peer()
    names = [b"topic-%d" % number for number in range(2 * CHANGED_AT_ONCE)]
    topics = served.server.table.topics
    assert (await broker.ask(103, BROKER, registration(names))).code == 0
    await served.until(lambda: not topics.is_changing)
    client.send(Command(105, ext={"topic": "new", "waitMillis": "20000", "knownVersion": "0"}))
    await served.until(lambda: len(served.server._waiters) == 1)
    assert (await broker.ask(103, BROKER, registration([*names, b"new"], counter=2))).code == 0
    await served.until(lambda: not topics.is_changing)
    assert len(served.server._waiters) == 0


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Long bodies are read only when this is set."""
    event = threading.Event()

    def read(body: bytes, *arguments: Any, **named: Any) -> TopicTable:
        if len(body) > _AT_ONCE_BYTES:
            event.wait(WAIT_S)
        return parse_register_body(body, *arguments, **named)

    monkeypatch.setattr("nameserver.broker_requests.parse_register_body", read)
    return event


MANY = registration([b"topic-%d" % number for number in range(1000)])


async def test_who_leaves_while_his_registration_is_read_is_not_registered(
    served: Served, may_end: threading.Event
) -> None:
    requests, peer, held = served.server._broker_requests, await served.peer(), list[Connection]()
    assert requests is not None
    peer.send(Command(103, ext=BROKER, body=MANY, version=479))
    await served.until(lambda: bool(requests._reading))
    held += requests._reading
    await peer.close()
    await served.until(lambda: held[0].is_closed)
    may_end.set()
    await served.until(lambda: not requests._reading)
    assert not served.server.table.has_members


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_short_registration_does_not_overtake_a_long_one_of_its_connection(
    served: Served, may_end: threading.Event, is_known: bool
) -> None:
    peer, short = await served.peer(), registration([b"a", b"topic-1"], queues=16, counter=2)
    if is_known:
        assert (await peer.ask(103, BROKER, short)).code == 0
    for body in (MANY, short):
        peer.send(Command(103, ext=BROKER, body=body, version=479))
    may_end.set()
    answers = [await peer.answer() for _ in range(2)]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1 + is_known, 0), (2 + is_known, 0)]
    route = served.server.table.route("topic-1")
    assert route is not None and route.queues[0].read_queues == 16


async def test_of_registrations_that_come_while_one_is_read_the_last_of_each_broker_is_read(
    served: Served, may_end: threading.Event
) -> None:
    peer, requests = await served.peer(), served.server._broker_requests
    assert requests is not None
    other = BROKER | {"brokerName": "b2", "brokerAddr": "h:3"}
    bodies = [registration([b"topic-%d" % number for number in range(1000 + more)]) for more in range(5)]
    for ext, body in zip((BROKER, BROKER, other, BROKER, BROKER), bodies, strict=True):
        peer.send(Command(103, ext=ext, body=body, version=479))
    await served.until(
        lambda: bool(requests._later) and sum(map(len, next(iter(requests._later.values())).values())) == 4
    )
    assert requests._unread_bytes == len(bodies[0]) + len(bodies[2]) + len(bodies[4])
    may_end.set()
    answers = [await peer.answer() for _ in range(5)]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (4, 0), (5, 0), (3, 0)]
    assert len(served.server.table.topics) == 1004
    assert not (requests._reading or requests._later or requests._unread_bytes)


async def test_a_registration_does_not_replace_an_increment_that_waits(
    served: Served, may_end: threading.Event
) -> None:
    peer, requests = await served.peer(), served.server._broker_requests
    assert requests is not None
    assert (await peer.ask(103, BROKER | {"increment": "false"}, registration([b"old", b"kept"]))).code == 0
    less = BROKER | {"increment": "true", "removedTopics": "old"}
    for ext, body in ((BROKER, MANY), (less, registration([b"new"], counter=2)), (BROKER, registration([b"kept"]))):
        peer.send(Command(103, ext=ext, body=body, version=479))
    assert (await peer.answer()).ext["cause"] == "busy", "the last one"
    may_end.set()
    assert [(await peer.answer()).code for _ in range(2)] == [0, 0]
    assert "old" not in served.server.table.topics
    assert "new" in served.server.table.topics


async def test_a_broker_that_leaves_has_nothing_wait_to_be_read(served: Served, may_end: threading.Event) -> None:
    peer, requests = await served.peer(), served.server._broker_requests
    assert requests is not None
    for _ in range(3):
        peer.send(Command(103, ext=BROKER, body=MANY, version=479))
    await served.until(lambda: bool(requests._later))
    (connection,) = requests._reading
    await peer.close()
    await served.until(lambda: connection.is_closed)
    may_end.set()
    await served.until(lambda: not requests._reading)
    assert not (requests._later or requests._unread_bytes or served.server.table.has_members)


async def test_a_registration_whose_reading_fails_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> TopicTable:
        raise RuntimeError("no thread for it")

    monkeypatch.setattr("nameserver.broker_requests.parse_register_body", fail)
    peer = await served.peer()
    answer = await peer.ask(103, BROKER, MANY)
    assert (answer.code, answer.remark) == (1, "RuntimeError: no thread for it")
    requests = served.server._broker_requests
    assert requests is not None and not requests._reading and not requests._unread_bytes


async def test_a_large_registration_that_is_refused_is_counted(served: Served) -> None:
    peer = await served.peer()
    assert (await peer.ask(103, BROKER | {"bodyCrc32": "5"}, MANY)).code == 1
    assert 'cause="system-error"} 1' in served.server.registry.render()


async def test_registrations_that_wait_to_be_read_are_bounded_by_their_bytes(
    served: Served, may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nameserver.broker_requests._READING_MAX_BYTES", 2 * len(MANY))
    first, second, third = [await served.peer() for _ in range(3)]
    for peer in (first, second):
        peer.send(Command(103, ext=BROKER, body=MANY, version=479))
    requests = served.server._broker_requests
    assert requests is not None
    await served.until(lambda: len(requests._reading) == 2)
    assert (await third.ask(103, BROKER, MANY)).ext["cause"] == "busy"
    may_end.set()
    assert [(await peer.answer()).code for peer in (first, second)] == [0, 0]
    assert (await third.ask(103, BROKER, MANY)).code == 0
