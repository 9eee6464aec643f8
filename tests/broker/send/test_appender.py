"""One batch a turn: order, refusals of the log, and what senders are told of them."""

import asyncio
from collections.abc import Sequence

import pytest

from broker.append.answers import Answer, SendAnswers
from broker.append.appender import AnswerAll, Appender
from broker.counting.calls import CallLatencies
from broker.send.oneway import UNSETTLED_MAX_BYTES, OnewayMessages
from broker.state.tables import StateChange
from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, Command
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.log.drafts import QueuedDraft
from store.queues.queue_offsets import NotYetError
from store.replicated_log import AppendReceipt, Done
from tests.broker.conftest import STORE_HOST, Desk, MemoryClient

Outcome = AppendReceipt | Refusal
RECEIPT = AppendReceipt(generation=5, copies=3, durable_copies=2)


def _ignore(*_what: object) -> None: ...


class ScriptedStore:
    """Takes batches; each is settled by the test, or refused at once."""

    def __init__(self) -> None:
        self.batches: list[tuple[Sequence[QueuedDraft], Done]] = []
        self.error: Exception | None = None
        self.tries = 0

    def put(self, drafts: Sequence[QueuedDraft], done: Done, _deadline_s: float) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.batches.append((drafts, done))


def draft(queue_offset: int) -> QueuedDraft:
    made = QueuedDraft()
    made.messages = 1
    made.queue_id, made.queue_offset, made.physical_offset = 1, queue_offset, 100 + queue_offset
    return made


def appender_on(store: ScriptedStore, answer_all: AnswerAll = _ignore) -> Appender:
    return Appender(store.put, answer_all, _ignore, asyncio.get_running_loop(), lambda _: draft(0))


async def test_what_comes_in_one_turn_is_one_batch_in_its_order() -> None:
    store, heard = ScriptedStore(), list[Outcome]()
    appender = appender_on(store)
    first = [draft(n) for n in range(3)]
    for one in first:
        appender.add(one, heard.append)
    assert store.batches == []
    await asyncio.sleep(0)
    appender.add(draft(3))
    await asyncio.sleep(0)
    assert [len(drafts) for drafts, _ in store.batches] == [3, 1]
    assert list(store.batches[0][0]) == first
    store.batches[0][1](RECEIPT)
    assert heard == [RECEIPT] * 3


async def test_a_batch_that_waits_for_files_goes_before_what_comes_meanwhile() -> None:
    store, heard = ScriptedStore(), list[Outcome]()
    appender = appender_on(store)
    store.error = NotYetError()
    drafts = [draft(n) for n in range(3)]
    appender.add(drafts[0], heard.append)
    for one in drafts[1:]:
        await asyncio.sleep(0)
        appender.add(one, heard.append)
    store.error = None
    await asyncio.sleep(0)
    ((placed, done),) = store.batches
    assert list(placed) == drafts
    done(RECEIPT)
    assert heard == [RECEIPT] * 3


async def test_one_that_fails_at_the_outcome_keeps_it_from_none_of_the_others() -> None:
    store, heard = ScriptedStore(), list[Refusal | None]()
    appender = appender_on(store)

    def fails(_refusal: Refusal | None) -> None:
        raise ValueError("odd")

    appender.propose(StateChange(offsets={"T@g": {0: 1}}), fails)
    appender.propose(StateChange(offsets={"T@g": {0: 2}}), heard.append)
    await asyncio.sleep(0)
    assert appender.unsettled_bytes > 0
    store.batches[0][1](RECEIPT)
    assert (heard, appender.unsettled_bytes) == ([None], 0)


@pytest.mark.parametrize(
    ("error", "cause"),
    [(Refusal(Cause.DISK_FULL, "no room for 5 bytes"), Cause.DISK_FULL), (ValueError("odd"), Cause.SYSTEM_ERROR)],
)
async def test_a_batch_that_cannot_be_placed_is_refused_to_all_who_wait(error: Exception, cause: Cause) -> None:
    store, heard = ScriptedStore(), list[Outcome]()
    store.error = error
    appender = appender_on(store)
    appender.add(draft(0), heard.append)
    await asyncio.sleep(0)
    (refusal,) = heard
    assert isinstance(refusal, Refusal)
    assert refusal.cause is cause
    store.error = None
    appender.add(draft(1), heard.append)
    await asyncio.sleep(0)
    assert len(store.batches) == 1


@pytest.mark.parametrize(
    ("cause", "takes", "is_taken_back"),
    [
        (Cause.NOT_LEADER, True, True),
        (Cause.RECOVERING, True, True),
        (Cause.NOT_LEADER, False, False),
        (Cause.LEADER_CHANGED, True, False),
    ],
)
async def test_senders_of_a_batch_of_which_nothing_was_placed_may_try_another_leader(
    desk: Desk, client: MemoryClient, cause: Cause, takes: bool, is_taken_back: bool
) -> None:
    store, refused, taken = ScriptedStore(), list[object](), list[object]()

    def take_back(answers: list[Answer]) -> bool:
        taken.extend(answers if takes else [])
        return takes

    appender = appender_on(store, lambda answers, _: refused.extend(answers))
    appender.take_back = take_back
    store.error = Refusal(cause, "leads no more")
    appender.begin()
    answer = (client.connection, Command(310), draft(0), b"KEY")
    appender.answers.append(answer)
    await asyncio.sleep(0)
    assert (refused, taken) == (([], [answer]) if is_taken_back else ([answer], []))


async def answered(client: MemoryClient, outcome: Outcome, header_type: int = JSON_HEADER) -> Command:
    command = Command(310, 9, ext={}, header_type=header_type)
    client.connection.in_flight += 1
    SendAnswers(STORE_HOST, CallLatencies())([(client.connection, command, draft(7), b"KEY")], outcome)
    return await client.answer_to(9)


@pytest.mark.parametrize("header_type", [JSON_HEADER, BINARY_HEADER])
async def test_an_answer_tells_place_term_and_copies(desk: Desk, client: MemoryClient, header_type: int) -> None:
    answer = await answered(client, RECEIPT, header_type)
    assert answer.code == 0
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["transactionId"]) == ("1", "7", "KEY")
    assert (answer.ext["term"], answer.ext["copies"], answer.ext["durableCopies"]) == ("5", "3", "2")
    assert int(answer.ext["msgId"][16:], 16) == 107
    assert client.connection.in_flight == 0


@pytest.mark.parametrize("cause", [Cause.FLUSH_TIMEOUT, Cause.REPLICA_TIMEOUT])
async def test_what_is_stored_but_not_yet_safe_is_answered_with_its_place(
    desk: Desk, client: MemoryClient, cause: Cause
) -> None:
    answer = await answered(client, Refusal(cause, "5000 ms"))
    assert (answer.code, answer.remark) == (cause.code, "5000 ms")
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["transactionId"]) == ("1", "7", "KEY")


async def test_a_deposed_leaders_refusal_says_where_to_go(desk: Desk, client: MemoryClient) -> None:
    refusal = Refusal(Cause.LEADER_CHANGED, "deposed in term 6", leader_hint=LeaderHint("n1", "10.0.0.2:10911"))
    answer = await answered(client, refusal)
    assert (answer.code, answer.ext["cause"]) == (14, "leader-changed")
    assert answer.ext["leaderHint"] == "10.0.0.2:10911"


async def test_where_slaves_copy_a_long_batch_is_placed_before_the_turn_ends() -> None:
    store = ScriptedStore()
    appender = appender_on(store)
    drafts = [draft(n) for n in range(150)]
    for has_slaves, sizes in ((False, [150]), (True, [128, 22])):
        appender.has_slaves = has_slaves
        store.batches.clear()
        for one in drafts:
            appender.begin_plain()
            appender.drafts.append(one)
        await asyncio.sleep(0)
        assert [len(placed) for placed, _ in store.batches] == sizes
        assert [one for placed, _ in store.batches for one in placed] == drafts
        await asyncio.sleep(0)
        assert len(store.batches) == len(sizes)


async def test_a_long_batch_that_waits_for_files_is_tried_again_once_a_turn() -> None:
    store = ScriptedStore()
    appender = appender_on(store)
    appender.has_slaves, store.error = True, NotYetError()
    drafts = [draft(n) for n in range(150)]
    for one in drafts:
        appender.begin_plain()
        appender.drafts.append(one)
    assert store.tries == 1
    store.error = None
    await asyncio.sleep(0)
    ((placed, _),) = store.batches
    assert list(placed) == drafts


class _Read:
    """A connection of which it is told whether it is read."""

    is_read = True

    def hold_back(self) -> None:
        self.is_read = False

    def go_on(self) -> None:
        self.is_read = True


async def test_a_connection_is_not_read_while_too_many_of_its_oneway_messages_are_not_in_the_log() -> None:
    store = ScriptedStore()
    appender = appender_on(store)
    oneway, flood, other = OnewayMessages(appender, asyncio.get_running_loop()), _Read(), _Read()
    for _ in range(3):
        for connection, size in ((flood, UNSETTLED_MAX_BYTES // 10), (flood, UNSETTLED_MAX_BYTES // 10), (other, 100)):
            appender.add(draft(0))
            oneway.placed(connection, size)  # type: ignore[arg-type]
        await asyncio.sleep(0)
    (_, first), (_, second), (_, third) = store.batches
    seen = [(flood.is_read, other.is_read)]
    for settle, outcome in ((first, RECEIPT), (second, Refusal(Cause.REPLICA_TIMEOUT, "late")), (third, RECEIPT)):
        settle(outcome)
        seen.append((flood.is_read, other.is_read))
    assert seen == [(False, True), (False, True), (True, True), (True, True)]  # half of the room is each one's share
    assert not oneway.unsettled


@pytest.mark.parametrize("sizes", [(5, 0), (0, 0)])
async def test_a_oneway_message_without_a_body_keeps_no_listener_from_the_outcome(sizes: tuple[int, ...]) -> None:
    store, heard = ScriptedStore(), list[Outcome]()
    appender = appender_on(store)
    oneway, connection = OnewayMessages(appender, asyncio.get_running_loop()), _Read()
    for size in sizes:
        appender.add(draft(0))
        oneway.placed(connection, size)  # type: ignore[arg-type]
        appender.add(draft(0), heard.append)
        await asyncio.sleep(0)
    for _, settle in store.batches:
        settle(RECEIPT)
    assert heard == [RECEIPT] * 2
    assert not oneway.unsettled


async def test_oneway_messages_that_are_refused_within_their_turn_count_no_more() -> None:
    store = ScriptedStore()
    appender = appender_on(store)
    oneway, flood = OnewayMessages(appender, asyncio.get_running_loop()), _Read()
    appender.has_slaves, store.error = True, Refusal(Cause.DISK_FULL, "no room")
    for _ in range(3):
        for _ in range(200):
            appender.begin_plain()  # places what is there already
            appender.drafts.append(draft(0))
            oneway.placed(flood, UNSETTLED_MAX_BYTES // 40)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not oneway.unsettled and flood.is_read
