"""A send whose answer was lost: the log of a later leader says whether it was placed."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.append.answers import StoredPlace
from broker.passing import lost_sends, subsystem
from broker.passing.held_requests import Waiting
from broker.passing.lost_sends import LostSends
from broker.passing.relayed import RelayedClient
from broker.passing.runs import RunAnswers
from broker.server import BrokerRequestHandler
from broker.state.names import HALF_TOPIC, SCHEDULE_TOPIC
from dledger.core.messages import AppendRequest, AppendResponse
from ledgermq.message.batch import encode_batch
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause, Refusal
from node.broker_assembly import Broker
from store.errors import DiskReadError
from store.log.drafts import QueuedDraft
from store.replicated_log import Generation
from tests.broker.conftest import Desk, MemoryClient, eventually, send, send_fields
from tests.broker.conftest import make_topic as make_local_topic
from tests.broker.passing.test_through_any_member import hand_over_somewhere, make_topic, stored
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group, group
from tests.limits import WAIT_S

__all__ = ["group"]
_COUNT = 30


def numbered(number: int, **more: str) -> dict[str, str]:
    return send_fields(i=f"UNIQ_KEY\x01K{number:04}\x02WAIT\x01true\x02", **more)


async def sent_through(client: Any, follower: Broker, *numbers: int) -> dict[int, Command]:
    """Requests under way, which get their answers."""
    connection = await client.connection(follower.address)
    answers: dict[int, Any] = {}
    for number in numbers:
        command = Command(RequestCode.SEND_MESSAGE_V2, ext=numbered(number), body=b"%d" % number)
        connection.call(command, WAIT_S, partial(answers.__setitem__, number))
    return answers


def kill_links(monkeypatch: pytest.MonkeyPatch, *, is_placed: bool) -> list[bytes]:
    """From now on a leader ends a member's connection before it has placed what is passed on, or has answered it."""
    taken: list[bytes] = []
    serve = BrokerRequestHandler.on_request

    def take(handler: BrokerRequestHandler, connection: Connection, command: Command) -> None:
        if not isinstance(connection, RelayedClient) or command.code != RequestCode.SEND_MESSAGE_V2:
            serve(handler, connection, command)
            return
        taken.append(bytes(command.body))
        if is_placed:
            serve(handler, connection, command)
        else:
            connection._carrier.abort("killed")

    def lose(client: RelayedClient, *_: object, **__: object) -> None:
        client._carrier.abort("killed")

    monkeypatch.setattr(BrokerRequestHandler, "on_request", take)
    if is_placed:
        for kind in (RelayedClient, RunAnswers):
            monkeypatch.setattr(kind, "answer", lose)
            monkeypatch.setattr(kind, "respond", lose)
    return taken


async def places_named(group: Group, answers: dict[int, Command]) -> dict[int, Record]:
    """What is stored, by the number in its body; each answer names the place of its message."""
    places = {int(record.body): record for record in await stored(group)}
    for number, answer in answers.items():
        assert answer.ext["queueOffset"] == str(places[number].queue_offset)
        assert answer.ext["msgId"].endswith(f"{places[number].physical_offset:016X}")
    return places


def hold_entries_back(monkeypatch: pytest.MonkeyPatch, leader: Broker) -> None:
    """From now on this leader sends its followers no entries."""
    transport = leader.parts.context.store.log._node._transport  # type: ignore[attr-defined]
    tell = transport.send
    monkeypatch.setattr(transport, "send", lambda *told: isinstance(told[1], AppendRequest) or tell(*told))


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_deposed_leader_looks_for_the_sends_of_its_own_clients(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """It hears of no copy, or sends none: it cannot know whether the next leader has what it has placed."""
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    monkeypatch.setattr("broker.passing.pass_on.AGE_MAX_S", WAIT_S)
    await make_topic(group)
    old = group.leader
    term, answers_of = old.parts.context.role.generation, old.parts.context.answers
    with monkeypatch.context() as patches:
        if is_kept:
            node = old.parts.context.store.log._node  # type: ignore[attr-defined]
            hear = node.on_message
            patches.setattr(node, "on_message", lambda *heard: isinstance(heard[1], AppendResponse) or hear(*heard))
        else:
            hold_entries_back(patches, old)
        answers = await sent_through(group.client, old, *range(_COUNT))
        parked: list[Any] = []
        for number, waits in ((2000, "DELAY\x0118\x02"), (2001, "TRAN_MSG\x01true\x02")):
            command = waiting(number, waits)
            (await group.client.connection(old.address)).call(command, WAIT_S, parked.append)
        batch = encode_batch((0, body, b"UNIQ_KEY\x01%b\x02" % body) for body in (b"1000", b"1001"))
        connection, refused = await group.client.connection(old.address), list[Any]()
        command = Command(RequestCode.SEND_BATCH_MESSAGE, ext=send_fields(i="", m="true"), body=batch)
        connection.call(command, WAIT_S, refused.append)
        await eventually(lambda: not old.parts.context.role.writable, "it leads no more")
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert {answer.code for answer in answers.values()} == {0}
    await eventually(lambda: len(parked) == 2, "those that wait, too")
    assert {(answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) for answer in parked} == {(0, "0", "0")}
    assert [(answer.code, answer.ext["cause"]) for answer in refused] == [(14, "leader-changed")], "not looked for"
    assert answers_of.refusals == {"leader-changed": 1}
    assert old.parts.context.counting.calls.appends.failed == 2, "of the batch; the others are stored after all"
    await group.led()
    assert group.leader.parts.context.role.generation > term
    places = await places_named(group, answers)
    stored_once = [*range(_COUNT), *([1000, 1001] if is_kept else [])]
    assert sorted(places) == stored_once
    assert group.leader.parts.context.store.queues.get("T", 0).max_offset == len(stored_once)
    assert {int(answer.ext["term"]) == term for answer in answers.values()} == {is_kept}


async def test_a_deposed_leader_looks_also_where_its_records_lay_and_others_lie_now(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader's records begin and end elsewhere."""
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    monkeypatch.setattr("broker.passing.pass_on.AGE_MAX_S", WAIT_S)
    await make_topic(group)
    old = group.leader
    looking = old.parts.passing.pass_on._lost_sends
    with monkeypatch.context() as patches:
        patches.setattr(looking, "_decided_generation", lambda: 0)
        with monkeypatch.context() as cuts:
            hold_entries_back(cuts, old)
            connection, refused = await group.client.connection(old.address), list[Any]()
            keyless = Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(i=""), body=b"keyless")
            connection.call(keyless, WAIT_S, refused.append)
            answers = await sent_through(group.client, old, *range(_COUNT))
            await eventually(lambda: len(looking) == _COUNT, "the sends are looked for")
        await group.led()
        placed = max(one.waiting.since for one in looking._lost.values())
        for number in range(1000, 1004):
            body = b"%d" % number + bytes(4000)
            answer = await ask(group.client, group.leader, RequestCode.SEND_MESSAGE_V2, numbered(number), body)
            assert answer.code == 0
        await eventually(lambda: old.parts.context.store.dispatched_offset > placed, "others lie there")
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert {answer.code for answer in answers.values()} == {0}
    assert group.leader.parts.context.store.queues.get("T", 0).max_offset == _COUNT + 4, "each is stored once"


async def test_a_deposed_leader_does_not_look_for_what_a_member_passed_on_nor_while_it_stops(desk: Desk) -> None:
    """The member looks for it, too: passed on again by both, it would be stored twice."""
    pass_on = desk.parts.passing.pass_on
    draft, refusal = QueuedDraft(), Refusal(Cause.LEADER_CHANGED, "deposed")
    draft.physical_offset = 0
    connections: list[Any] = [Mock(spec=Connection, is_relayed=is_relayed) for is_relayed in (False, True)]
    answers = [(connection, lost(1), draft, b"") for connection in connections]
    assert pass_on.look_for(answers, refusal, 0.0) == [answers[1]]
    pass_on.release()
    assert [connection.refuse.call_count for connection in connections] == [1, 0]
    assert pass_on.look_for(answers, refusal, 0.0) == answers


async def test_a_deposed_leader_counts_the_sends_of_its_own_clients_that_it_refuses_late(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_sends, "WAIT_S", 0.2)
    await make_topic(group)
    context = group.leader.parts.context
    looking = group.leader.parts.passing.pass_on._lost_sends
    monkeypatch.setattr(looking, "_decided_generation", lambda: 0)
    hold_entries_back(monkeypatch, group.leader)
    answers = await sent_through(group.client, group.leader, *range(_COUNT))
    await eventually(lambda: len(looking) == _COUNT, "the sends are looked for")
    assert not context.answers.refusals
    assert context.counting.calls.appends.failed == 0, "it is not known yet"
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert {answer.ext.get("cause") for answer in answers.values()} == {"leader-changed"}
    assert context.answers.refusals == {"leader-changed": _COUNT}
    times = {key[:2]: found for key, found in context.counting.calls.latencies()}
    assert sum(times["send_message_v2", "service_not_available"].counts) == _COUNT
    assert context.counting.calls.appends.failed == _COUNT


@pytest.mark.parametrize("is_placed", [True, False])
async def test_a_send_without_an_answer_is_stored_once_and_answered_behind_the_next_election(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_placed: bool
) -> None:
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    await make_topic(group)
    old, follower = group.leader, group.followers[0]
    term, answers_of = old.parts.context.role.generation, follower.parts.context.answers
    await sent_through(group.client, follower, 9000)
    await eventually(lambda: old.parts.context.store.queues.get("T", 0).max_offset == 1, "the first is stored")
    with monkeypatch.context() as patches:
        taken = kill_links(patches, is_placed=is_placed)
        answers = await sent_through(group.client, follower, *range(_COUNT))
        await eventually(lambda: len(taken) >= 1, "the leader has them")
        lost = follower.parts.passing.pass_on._lost_sends._lost
        await eventually(
            lambda: len(follower.parts.passing.pass_on._lost_sends._lost) >= len(taken), "answers are lost"
        )
        assert not answers, lost
    await hand_over_somewhere(group.client, old)
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert {answer.code for answer in answers.values()} == {0}
    await group.led()
    records = await stored(group)
    assert sorted(int(record.body) for record in records) == [*range(_COUNT), 9000], "each is stored once"
    await places_named(group, answers)
    for number, answer in answers.items():
        assert answer.ext["transactionId"] == f"K{number:04}"
        assert (int(answer.ext["term"]) == term) is is_placed
    if is_placed:  # the member that answers counts them
        assert answers_of.messages == _COUNT
        calls = follower.parts.context.counting.calls.latencies()
        assert sum(sum(times.counts) for (request, *_), times in calls if request == "send_message_v2") == _COUNT


async def test_a_member_that_stops_looks_for_sends_before(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit in ((lost_sends, "WAIT_S"), (subsystem, "_FINISH_S")):
        monkeypatch.setattr(module, limit, WAIT_S)
    await make_topic(group)
    old, follower = group.leader, group.followers[0]
    with monkeypatch.context() as patches:
        taken = kill_links(patches, is_placed=True)
        answers = await sent_through(group.client, follower, *range(_COUNT))
        await eventually(
            lambda: 0 < len(taken) <= len(follower.parts.passing.pass_on._lost_sends._lost), "answers are lost"
        )
    group.brokers.remove(follower)
    closing = asyncio.create_task(follower.close())
    await hand_over_somewhere(group.client, old)
    await closing
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert [answer for answer in answers.values() if not isinstance(answer, Command) or answer.code != 0] == []


@pytest.mark.parametrize("is_placed", [True, False])
async def test_without_a_later_leader_the_sender_is_told_what_is_known(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_placed: bool
) -> None:
    """What is confirmed here is stored, whoever leads."""
    monkeypatch.setattr(lost_sends, "WAIT_S", 0.2)
    await make_topic(group)
    kill_links(monkeypatch, is_placed=is_placed)
    answer = await ask(group.client, group.followers[0], RequestCode.SEND_MESSAGE_V2, numbered(1), b"1")
    assert (answer.code, answer.ext.get("cause")) == ((0, None) if is_placed else (14, "leader-changed"))
    assert group.leader.parts.context.store.queues.get("T", 0).max_offset == is_placed


class Log:
    """A desk's store as a member sees it, whose log has a later generation from `start` on."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch, start: int = 0) -> None:
        self.store = desk.store
        self.starts = [Generation(3, start)]
        monkeypatch.setattr(desk.store.log, "generations", lambda: self.starts)
        self.settled: list[tuple[str, object]] = []
        self.number = 0
        self.sends = LostSends(
            desk.store,
            asyncio.get_running_loop(),
            desk.parts.context.spawn,
            lambda _connection, command, place, *_: self.settled.append((bytes(command.body).decode(), place)),
            lambda waiting: self.settled.append((bytes(waiting.command.body).decode(), "again")),
            lambda waiting, _: self.settled.append((bytes(waiting.command.body).decode(), "told")),
        )

    def lose(self, command: Command, generation: int = 2, since: int = 0) -> bool:
        unused: Any = None
        self.number += 1
        waiting = Waiting(0.0, self.number, unused, command, since, 0.0)
        return self.sends.take(waiting, generation, RemotingError("lost"))


def lost(number: int, **fields: str) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, 7, ext=numbered(number, **fields), body=b"%d" % number)


@pytest.fixture
async def log(desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(lost_sends, "WAIT_S", 0.2)
    await make_local_topic(client)
    for number in range(5):
        await send(client, b"%d" % number, i=f"UNIQ_KEY\x01K{number:04}\x02")
    return Log(desk, monkeypatch)


async def test_what_is_stored_is_answered_and_the_rest_is_passed_on_again(log: Log) -> None:
    assert log.lose(lost(3)) and log.lose(lost(77))
    await eventually(lambda: len(log.settled) == 2)
    (stored_one, place), again = log.settled
    assert (stored_one, again) == ("3", ("77", "again"))
    assert isinstance(place, StoredPlace) and (place.queue_id, place.queue_offset, place.generation) == (0, 3, 2)


def waiting(number: int, waits: str) -> Command:
    """A send with a property for which its message waits in a system topic."""
    fields = send_fields(i=f"UNIQ_KEY\x01K{number:04}\x02{waits}")
    return Command(RequestCode.SEND_MESSAGE_V2, 7, ext=fields, body=b"%d" % number)


@pytest.mark.parametrize(
    ("waits", "topic"), [("DELAY\x0118\x02", SCHEDULE_TOPIC), ("TRAN_MSG\x01true\x02", HALF_TOPIC)]
)
async def test_messages_that_wait_for_a_level_or_a_commit_are_found_where_they_wait(
    log: Log, client: MemoryClient, waits: str, topic: str
) -> None:
    """The answer names the queue that was asked for, as that to the send does."""
    sent = [waiting(number, waits) for number in (60, 61, 62)]
    answers = [await client.ask(sent[0].code, one.ext, bytes(one.body)) for one in sent[:2]]
    assert {answer.code for answer in answers} == {0}
    plain = await client.ask(sent[2].code, numbered(62), b"62")
    assert plain.code == 0
    for one in sent:
        assert log.lose(one)
    assert log.lose(waiting(63, waits))
    await eventually(lambda: len(log.settled) == 4)
    places = [place for _, place in log.settled[:2] if isinstance(place, StoredPlace)]
    assert [(str(one.queue_id), str(one.queue_offset)) for one in places] == [
        (answer.ext["queueId"], answer.ext["queueOffset"]) for answer in answers
    ]
    assert {record.topic for record in decode_all(log) if record.body in (b"60", b"61")} == {topic}
    assert log.settled[2:] == [("62", "told"), ("63", "again")], "a plain message with its key is another one"


async def test_nothing_is_decided_before_an_entry_of_a_later_generation_is_confirmed(log: Log) -> None:
    end = log.store.dispatched_offset
    for starts in ([], [Generation(2, 0)], [Generation(2, 0), Generation(3, end)], [Generation(3, end + 1, True)]):
        log.starts[:] = starts
        assert log.lose(lost(77)) and log.lose(lost(3))
        await eventually(lambda: len(log.settled) == 2)
        assert log.settled.pop(0) == ("77", "told")
        assert isinstance(log.settled.pop()[1], StoredPlace), "it is confirmed here"


async def test_a_generation_that_controllers_have_decided_needs_no_entry(log: Log) -> None:
    """A group without other senders writes none."""
    log.starts[:] = [Generation(3, log.store.dispatched_offset, is_final=True)]
    assert log.lose(lost(77))
    await eventually(lambda: bool(log.settled))
    assert log.settled == [("77", "again")]


async def test_a_later_generation_that_is_not_decided_does_not_hide_one_that_is(log: Log) -> None:
    log.starts.append(Generation(5, log.store.dispatched_offset))
    assert log.lose(lost(77))
    await eventually(lambda: bool(log.settled))
    assert log.settled == [("77", "again")]


async def test_what_lies_before_the_send_is_another_ones(log: Log) -> None:
    """A client may use a key twice; what was stored before it asked is no answer."""
    assert log.lose(lost(3), since=log.store.dispatched_offset)
    await eventually(lambda: bool(log.settled))
    assert log.settled == [("3", "again")]


@pytest.mark.parametrize(
    "other", [{"g": "1700000000001"}, {"e": "1"}, {"body": "another"}], ids=["born", "queue", "body"]
)
async def test_another_message_with_the_key_is_no_answer(log: Log, other: dict[str, str]) -> None:
    """A client that sends one object again uses its key again: the first message is stored, this one is not."""
    body = other.pop("body", "3").encode()
    command = lost(3, **other)
    command.body = body
    assert log.lose(command)
    await eventually(lambda: bool(log.settled))
    assert log.settled == [(bytes(command.body).decode(), "told")]


async def test_the_first_record_behind_what_was_dispatched_may_be_the_sends(log: Log) -> None:
    places = {record.body: record.physical_offset for record in decode_all(log)}
    assert log.lose(lost(3), since=places[b"3"])
    await eventually(lambda: bool(log.settled))
    assert isinstance(log.settled[0][1], StoredPlace)


def decode_all(log: Log) -> list[Record]:
    return [decode_record(record) for _, record in log.store.log.walk(0, log.store.dispatched_offset)]


async def test_what_is_kept_holds_nothing_that_was_received_with_it(log: Log) -> None:
    received = bytearray(b"23")
    command = lost(3)
    command.body = memoryview(received)[1:]
    assert log.lose(command)
    received.clear()  # which a view of it would refuse
    await eventually(lambda: bool(log.settled))


async def test_what_lies_before_one_of_two_sends_is_not_its_own(log: Log) -> None:
    assert log.lose(lost(3), since=log.store.dispatched_offset) and log.lose(lost(77))
    await eventually(lambda: len(log.settled) == 2)
    assert not [place for _, place in log.settled if isinstance(place, StoredPlace)]


async def test_sends_are_looked_for_from_the_oldest_one_on(log: Log) -> None:
    assert log.lose(lost(3)) and log.lose(lost(77), since=log.store.dispatched_offset)
    await eventually(lambda: len(log.settled) == 2)
    assert [body for body, outcome in log.settled if isinstance(outcome, StoredPlace)] == ["3"]


async def test_one_record_is_the_answer_to_one_send(log: Log) -> None:
    assert log.lose(lost(3)) and log.lose(lost(3))
    await eventually(lambda: len(log.settled) == 2)
    assert sorted(isinstance(outcome, StoredPlace) for _, outcome in log.settled) == [False, True]
    assert "told" in [outcome for _, outcome in log.settled]


class Walks:
    """The walks of a log; each record is read in a turn of its own. `on_record` gets how many a walk has read."""

    def __init__(
        self, log: Log, monkeypatch: pytest.MonkeyPatch, on_record: Callable[[int], None] = lambda _: None
    ) -> None:
        monkeypatch.setattr(lost_sends, "_TURN", 1)
        self.under_way = self.most = self.ended = 0
        self._on_record = on_record
        self._walk = log.store.log.walk
        monkeypatch.setattr(log.store.log, "walk", self.walk)

    def walk(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for count, record in enumerate(self._walk(start, end), start=1):
            yield record
            self._on_record(count)
        self.under_way -= 1
        self.ended += 1


async def test_the_log_is_walked_for_one_search_at_a_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = Walks(log, monkeypatch)
    monkeypatch.setattr(lost_sends, "_LOOK_S", 0.0)
    for number in range(70, 90):
        assert log.lose(lost(number))
        await asyncio.sleep(0)
    await eventually(lambda: len(log.settled) == 20)
    assert ({outcome for _, outcome in log.settled}, walks.most) == ({"again"}, 1)


async def test_a_stop_tells_those_that_are_searched_for_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = Walks(log, monkeypatch, lambda count: log.sends.release() if count == 1 else None)
    assert log.lose(lost(77))
    await eventually(lambda: walks.ended == 1)
    await asyncio.sleep(0)
    assert log.settled == [("77", "told")]


async def test_after_a_cut_of_the_log_all_senders_of_before_are_told(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = None
    pass_on = desk.parts.passing.pass_on
    monkeypatch.setattr(desk.parts, "cut", lambda _: None)
    pass_on._number = 7
    desk.parts.on_cut(desk.store.dispatched_offset)
    before, behind = (Waiting(0.0, number, unused, lost(1), 0, 0.0) for number in (7, 8))
    assert not pass_on._lost_sends.take(before, 2, RemotingError("lost"))
    assert pass_on._lost_sends.take(behind, 2, RemotingError("lost"))


async def test_after_a_cut_the_sender_is_told(log: Log) -> None:
    assert log.lose(lost(77))
    log.sends.on_cut(log.number + 1)
    assert not log.lose(lost(78)), "passed on before the cut"
    assert log.lose(lost(79)), "and behind it"
    await eventually(lambda: len(log.settled) == 2)
    assert log.settled == [("77", "told"), ("79", "again")]


async def test_what_was_found_before_a_cut_is_no_answer(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another message may be there afterwards."""
    ends = len([*log.store.log.walk(0, log.store.dispatched_offset)])
    walks = Walks(log, monkeypatch, lambda count: log.sends.on_cut(log.number) if count == ends else None)
    assert log.lose(lost(0)) and log.lose(lost(77))
    await eventually(lambda: walks.ended == 1)
    await asyncio.sleep(0)
    assert log.settled == [("0", "told"), ("77", "told")]


async def test_many_sends_are_settled_in_several_turns(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_sends, "_TURN", 1)
    turns: list[int] = [0]

    def count() -> None:
        turns[0] += 1
        handle[0] = asyncio.get_running_loop().call_soon(count)

    handle = [asyncio.get_running_loop().call_soon(count)]
    settled_in: list[int] = []
    log.sends._pass_on = lambda _: settled_in.append(turns[0])
    for number in (77, 78, 79):
        assert log.lose(lost(number))
    await eventually(lambda: len(settled_in) == 3)
    handle[0].cancel()
    assert len(set(settled_in)) == 3


async def test_a_record_is_compared_with_the_sends_of_its_key_and_time_only(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader's end loses the answers to thousands: comparing each record with each takes seconds."""
    compared: list[bytes] = []
    made = lost_sends._Lost.made

    def counted(one: lost_sends._Lost, record: Record) -> bool:
        compared.append(record.body)
        return made(one, record)

    monkeypatch.setattr(lost_sends._Lost, "made", counted)
    for number in (*range(900, 1000), *range(900)):
        command = lost(number)
        if number >= 900:  # others of a client that uses one key for all
            command.ext |= {"i": "UNIQ_KEY\x01K0004\x02", "g": str(number)}
        assert log.lose(command)
    await eventually(lambda: len(log.settled) == 1000)
    assert compared == [b"0", b"1", b"2", b"3", b"4"]


async def test_among_too_many_records_the_sender_is_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_sends, "_RECORDS_MAX", 3)
    assert log.lose(lost(77)) and log.lose(lost(1))
    await eventually(lambda: len(log.settled) == 2)
    assert [outcome for _, outcome in log.settled if outcome == "told"] == ["told"]
    assert [body for body, outcome in log.settled if isinstance(outcome, StoredPlace)] == ["1"]


@pytest.mark.parametrize(
    "error",
    [DiskReadError(Path("00000000000000000000"), 0, "a bad sector"), CorruptRecordError(0, "no record")],
    ids=["disk", "record"],
)
async def test_where_the_log_cannot_be_read_the_sender_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object) -> Any:
        raise error

    monkeypatch.setattr(log.store.log, "walk", broken)
    assert log.lose(lost(3))
    await eventually(lambda: bool(log.settled))
    assert log.settled == [("3", "told")]


async def test_where_the_log_does_not_reach_back_the_sender_is_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that got the log anew from a snapshot lacks what lies before."""
    monkeypatch.setattr(type(log.store.log), "min_offset", property(lambda _: log.store.dispatched_offset))
    assert log.lose(lost(3))
    await eventually(lambda: bool(log.settled))
    assert log.settled == [("3", "told")]


async def test_more_than_fit_are_not_kept_and_a_stop_tells_all(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_sends, "_COUNT_MAX", 1)
    log.starts.clear()
    assert log.lose(lost(1)) and not log.lose(lost(2))
    log.sends.release()
    assert log.settled == [("1", "told")]
    monkeypatch.setattr(lost_sends, "_COUNT_MAX", 100)
    monkeypatch.setattr(lost_sends, "_BYTES_MAX", 200)
    assert log.lose(lost(3)), "one fits"
    assert not log.lose(lost(4, a="p" * 200)), "headers count, too"
    log.starts.append(Generation(3, 0))
    await eventually(lambda: len(log.settled) == 2)
    assert log.sends._bytes == 0, "what is settled takes no room"


@pytest.mark.parametrize(
    "command",
    [
        Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(i="")),
        Command(RequestCode.SEND_MESSAGE_V2, ext=numbered(1), flag=ONEWAY_FLAG),
        Command(RequestCode.SEND_MESSAGE_V2, ext=numbered(1, e="-1")),
        Command(RequestCode.SEND_MESSAGE_V2, ext=numbered(1, b="%RETRY%g")),
        Command(RequestCode.SEND_MESSAGE_V2, ext=send_fields(i="UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x013\x02")),
        Command(
            RequestCode.SEND_BATCH_MESSAGE,
            ext=numbered(1, m="true"),
            body=encode_batch([(0, b"b", b"UNIQ_KEY\x01B\x02")]),
        ),
        Command(RequestCode.SEND_MESSAGE_V2, ext=numbered(1, m="true")),
        Command(RequestCode.ACK_MESSAGE, ext=numbered(1)),
    ],
)
async def test_a_timer_a_batch_and_what_has_no_key_are_not_looked_for(log: Log, command: Command) -> None:
    assert not log.lose(command)
