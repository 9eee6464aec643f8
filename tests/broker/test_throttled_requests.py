"""Requests that read messages wait while there is no room for their answers, and are served when there is."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from broker import throttled_requests
from broker.pull import query
from broker.throttled_requests import _COUNT_MAX, _OF_CONNECTION_MAX, ThrottledRequests
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send
from tests.broker.pop.support import pop_fields

BY_KEY = {"topic": "T", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
READS = [
    (RequestCode.PULL_MESSAGE, pull_fields()),
    (RequestCode.LITE_PULL_MESSAGE, pull_fields()),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T"}),
    (RequestCode.QUERY_MESSAGE, BY_KEY),
    (RequestCode.PEEK_MESSAGE, pop_fields()),
    (RequestCode.POP_MESSAGE, pop_fields()),
]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[Connection]:
    """The connections without room."""
    connections: set[Connection] = set()
    monkeypatch.setattr(Connection, "is_full", property(lambda self: self in connections))
    return connections


async def with_a_message(client: MemoryClient) -> int:
    """Returns the position of the message."""
    await make_topic(client, "T", 1)
    await send(client, b"the message", i="KEYS\x01k\x02")
    found = await client.ask(RequestCode.QUERY_MESSAGE, BY_KEY)  # it is in the index, too
    return decode_records(found.body)[0].physical_offset


@pytest.mark.parametrize(("code", "fields"), READS)
async def test_what_reads_messages_waits_for_room(
    desk: Desk, client: MemoryClient, full: set[Connection], code: int, fields: dict[str, str]
) -> None:
    position = await with_a_message(client)
    fields = fields | ({"offset": str(position)} if code == RequestCode.VIEW_MESSAGE_BY_ID else {})
    full.add(client.connection)
    waiting = client.start(code, fields)
    throttled = desk.parts.context.throttled
    await eventually(lambda: len(throttled) == 1)
    other = desk.client()
    assert (await other.ask(code, fields)).code == 0
    await asyncio.sleep(0)
    client.take()
    assert waiting not in client.answers
    full.clear()
    answer = await client.answer_to(waiting)
    assert len(throttled) == 0
    assert b"the message" in bytes(answer.body) or code == RequestCode.POP_MESSAGE  # which the other has taken


async def test_requests_that_wait_are_bounded_and_go_with_their_connection(
    desk: Desk, client: MemoryClient, full: set[Connection]
) -> None:
    await with_a_message(client)
    throttled = desk.parts.context.throttled
    clients = [desk.client() for _ in range(_COUNT_MAX // _OF_CONNECTION_MAX)]
    for one in clients:
        full.add(one.connection)
        for _ in range(_OF_CONNECTION_MAX):
            one.start(*READS[0])
        if one is clients[0]:
            assert (await one.ask(*READS[0])).code == ResponseCode.SYSTEM_BUSY, "others may still wait"
    assert len(throttled) == _COUNT_MAX
    assert (await clients[0].ask(*READS[0])).code == ResponseCode.SYSTEM_BUSY
    full.add(client.connection)
    assert (await client.ask(*READS[0])).code == ResponseCode.SYSTEM_BUSY
    for one in clients[1:]:
        one.close()
    await eventually(lambda: len(throttled) == _OF_CONNECTION_MAX)
    full.clear()
    await eventually(lambda: len(throttled) == 0)


async def test_a_request_that_fails_after_it_waited_is_answered(
    desk: Desk, client: MemoryClient, full: set[Connection]
) -> None:
    await with_a_message(client)
    refusals, refused = desk.parts.handler.refusals, desk.parts.handler.refusals.total()
    full.add(client.connection)
    waiting = client.start(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": "12345"})
    full.clear()
    assert (await client.answer_to(waiting)).code == ResponseCode.SYSTEM_ERROR
    assert refusals.total() == refused + 1


async def test_a_further_request_does_not_overtake_those_of_its_connection_that_wait(
    desk: Desk, client: MemoryClient, full: set[Connection]
) -> None:
    """Otherwise a client that asks again as soon as it has read an answer starves its own requests."""
    await with_a_message(client)
    full.add(client.connection)
    waiting = [client.start(*READS[0]) for _ in range(2)]
    full.clear()
    asked = [*waiting, client.start(*READS[0])]
    assert len(desk.parts.context.throttled) == 2
    for opaque in reversed(asked):
        await client.answer_to(opaque)
    assert list(client.answers)[-3:] == asked


class Peer:
    """What is asked of a connection here."""

    is_full = True
    is_closed = False


def test_those_that_wait_are_served_in_slices_one_after_the_other_and_without_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttled_requests, "_SLICE_S", -1.0)  # over at once
    served: list[object] = []
    later: list[tuple[float, Callable[[], None]]] = []
    throttled = ThrottledRequests(lambda seconds, step: later.append((seconds, step)))
    throttled.serve_late = lambda _, connection, __: served.append(connection)
    serve = throttled.guard(lambda *_: None)
    peers = [Peer(), Peer()]
    for peer in peers:
        serve(cast(Connection, peer), Command(RequestCode.PULL_MESSAGE))
    ((seconds, step),) = later
    assert seconds == 0.0
    step()
    assert (served, later[1][0] > 0.0) == ([], True), "none has room"
    for peer in peers:
        peer.is_full = False
    later[1][1]()
    assert (served, later[2][0]) == ([peers[1]], 0.0), "the other was looked at before"
    later[2][1]()
    assert (served, len(throttled), len(later)) == (peers[::-1], 0, 3)


async def test_searches_by_key_are_bounded(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_a_message(client)
    monkeypatch.setattr(query, "_OF_CONNECTION_MAX", 2)
    asked = [client.start(RequestCode.QUERY_MESSAGE, BY_KEY) for _ in range(3)]
    codes = [(await client.answer_to(opaque)).code for opaque in asked]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert (await client.ask(RequestCode.QUERY_MESSAGE, BY_KEY)).code == 0
