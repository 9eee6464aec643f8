"""Transactions at a broker's desk: parked, decided once, asked about, given up; and what survives a restart."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.delay.deliveries import DeliveryKind
from broker.transactions import service as service_module
from broker.transactions.copies import TransactionCopies
from broker.transactions.halves import half_of
from broker.transactions.service import HALF_KEY, OP_KEY
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskReadError
from store.log.drafts import QueuedDraft
from store.message_reader import MessageReader
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    log_state,
    make_topic,
    send,
    send_fields,
    small_config,
)

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
NOT_OPEN = 604  # ILLEGAL_OPERATION
RESUME = RequestCode.RESUME_CHECK_HALF_MESSAGE
QUICK: dict[str, Any] = {
    "transaction_check_interval_ms": 50,
    "transaction_timeout_ms": 0,
    "transaction_check_max": 2,
    "transaction_op_interval_ms": 10,
}


async def send_half(
    client: MemoryClient, key: str = "K", body: bytes = b"half", topic: str = "T", **properties: object
) -> Command:
    more = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    born = time.time_ns() // 1_000_000
    fields = {"g": str(born), "i": f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02{more}"}
    return await send(client, body, topic=topic, queue=1, **fields)


def end_fields(sent: Command, decision: int, **changes: object) -> dict[str, str]:
    fields: dict[str, object] = {
        "topic": "T",
        "producerGroup": "g",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": int(sent.ext["msgId"][16:], 16),
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": sent.ext["transactionId"],
        "transactionId": sent.ext["transactionId"],
        **changes,
    }
    return {name: str(value) for name, value in fields.items()}


async def end(client: MemoryClient, sent: Command, decision: int, **changes: object) -> Command:
    return await client.ask(RequestCode.END_TRANSACTION, end_fields(sent, decision, **changes))


def of(desk: Desk, topic: str) -> list[Record]:
    return [record for record in desk.records() if record.topic == topic]


async def beat(client: MemoryClient) -> None:
    """Be a producer of group g."""
    body = orjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []})
    assert (await client.ask(RequestCode.HEART_BEAT, body=body)).code == 0


async def asked(client: MemoryClient) -> Command:
    """The next question about a half message."""

    def arrived() -> bool:
        client.take()
        return any(command.code == RequestCode.CHECK_TRANSACTION_STATE for command in client.requests)

    await eventually(arrived, "a question")
    question = next(one for one in client.requests if one.code == RequestCode.CHECK_TRANSACTION_STATE)
    client.requests.remove(question)
    return question


async def test_a_half_message_waits_in_the_half_topic_and_is_answered_as_sent(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    answer = await send_half(client, p="v")
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["transactionId"]) == ("1", "0", "K")
    (half,) = of(desk, HALF_TOPIC)
    properties = half.property_map
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["__transactionId__"]) == ("T", "1", "K")
    assert (half.queue_id, half.sys_flag & 12, of(desk, "T")) == (0, 0, [])


async def test_a_commit_stores_the_message_then_the_op_record(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, **QUICK | {"transaction_timeout_ms": 60_000}))  # it is not asked about
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    sent = await send_half(client, TAGS="A")
    assert (await end(client, sent, COMMIT)).code == 0
    (record,) = of(desk, "T")
    (half,) = of(desk, HALF_TOPIC)
    assert (record.body, record.queue_id, record.sys_flag & 12) == (b"half", 1, COMMIT)
    assert (record.prepared_transaction_offset, record.tags) == (half.physical_offset, "A")
    await eventually(lambda: bool(of(desk, OP_TOPIC)), "an op record")
    (op,) = of(desk, OP_TOPIC)
    assert (op.body, op.properties, op.queue_id) == (b"0,", b"WAIT\x01true\x02TAGS\x01d\x02", 0)
    offsets = desk.parts.context.state.offsets  # a round may record the one before the other
    await eventually(lambda: offsets.get(HALF_KEY) == offsets.get(OP_KEY) == {0: 1}, "progress")
    await desk.stop()


async def test_a_decision_about_one_topics_message_never_meets_anothers_with_the_same_key(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, **QUICK | {"transaction_timeout_ms": 60_000}))
    await desk.start()
    client = desk.client()
    for topic in ("T", "U"):
        await make_topic(client, topic, 2)
    mine = await send_half(client)
    assert (await end(client, mine, ROLLBACK)).code == 0
    theirs = await send_half(client, topic="U")
    assert (await end(client, mine, ROLLBACK)).code == 0
    assert (await end(client, theirs, COMMIT, topic="U")).code == 0
    assert [record.body for record in of(desk, "U")] == [b"half"]
    await desk.stop()


async def test_a_rollback_stores_an_op_record_only(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, **QUICK))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    assert (await end(client, await send_half(client), ROLLBACK)).code == 0
    await eventually(lambda: bool(of(desk, OP_TOPIC)), "an op record")
    assert of(desk, "T") == []
    await desk.stop()


async def test_ends_of_transactions_are_gathered_into_one_op_record(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    for number in range(3):
        await end(client, await send_half(client, f"K{number}"), COMMIT)
    assert of(desk, OP_TOPIC) == []
    desk.parts.stop()
    await desk.parts.delay.deliveries.drain()
    await eventually(lambda: bool(of(desk, OP_TOPIC)), "an op record")
    assert [op.body for op in of(desk, OP_TOPIC)] == [b"0,1,2,"]


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
async def test_a_transaction_is_decided_once(desk: Desk, client: MemoryClient, second: int) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    assert (await end(client, sent, COMMIT)).code == 0
    assert (await end(client, sent, second)).code == 0
    assert len(of(desk, "T")) == 1


async def test_no_decision_gets_no_answer_and_changes_nothing(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    opaque = client.start(RequestCode.END_TRANSACTION, end_fields(sent, UNKNOWN))
    assert (await end(client, sent, COMMIT)).code == 0
    assert opaque not in client.answers
    assert len(of(desk, "T")) == 1


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"producerGroup": "other"}, 1, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, 1, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1 << 40}, 1, "Find prepared transaction message failed"),
        ({"commitLogOffset": "x"}, 1, "commitLogOffset"),
        ({"commitOrRollback": 4}, 1, "field commitOrRollback is 4"),
    ],
)
async def test_a_decision_about_another_message_is_refused_as_java_does(
    desk: Desk, client: MemoryClient, changes: dict[str, object], code: int, remark: str
) -> None:
    await make_topic(client, "T", 2)
    answer = await end(client, await send_half(client), COMMIT, **changes)
    assert (answer.code, remark in (answer.remark or "")) == (code, True), answer
    assert of(desk, "T") == []


async def test_a_message_that_is_no_half_cannot_be_committed(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    sent = await send(client, b"x", i="UNIQ_KEY\x01K\x02PGROUP\x01g\x02")
    answer = await end(client, sent, COMMIT)
    assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")
    assert len(of(desk, "T")) == 1


@pytest.mark.parametrize("desk", [{"transaction_timeout_ms": 0}], indirect=True)
async def test_a_late_decision_of_a_message_with_an_immunity_is_refused_unless_asked_for(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=0)
    assert (await end(client, sent, COMMIT)).code == 604
    assert (await end(client, sent, COMMIT, fromTransactionCheck="true")).code == 0
    assert len(of(desk, "T")) == 1


@pytest.mark.parametrize("desk", [{"reject_transactions": True}], indirect=True)
async def test_a_broker_that_takes_no_transactions_says_so(client: MemoryClient) -> None:
    await make_topic(client)
    fields = send_fields(i="UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02")
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert (answer.code, "sending transaction message is forbidden" in (answer.remark or "")) == (16, True)


async def test_a_committed_message_may_be_a_timer(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client, TIMER_DELAY_MS=300)
    await end(client, sent, COMMIT)
    assert [record.property_map["REAL_TOPIC"] for record in of(desk, "rmq_sys_wheel_timer")] == ["T"]
    await eventually(lambda: len(of(desk, "T")) == 1, "the timer's time")


# ---- asking


@pytest.mark.parametrize("desk", [QUICK | {"transaction_check_max": 15}], indirect=True)
async def test_a_producer_is_asked_and_its_answer_decides(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await beat(client)
    sent = await send_half(client, p="v")
    question = await asked(client)
    record = decode_record(bytes(question.body))
    assert (question.is_oneway, question.ext["bname"], question.ext["topic"]) == (True, "b", HALF_TOPIC)
    assert (question.ext["msgId"], question.ext["transactionId"]) == ("K", "K")
    assert (record.topic, record.queue_id, record.body) == ("T", 1, b"half")
    assert (str(record.physical_offset), str(record.queue_offset)) == (
        question.ext["commitLogOffset"],
        question.ext["tranStateTableOffset"],
    )
    assert record.property_map["TRANSACTION_CHECK_TIMES"] == "1"
    changes = {name: question.ext[name] for name in ("commitLogOffset", "tranStateTableOffset")}
    assert (await end(client, sent, COMMIT, fromTransactionCheck="true", **changes)).code == 0
    assert [record.body for record in of(desk, "T")] == [b"half"]
    checks = desk.parts.transactions.service.checks
    await eventually(lambda: desk.parts.context.state.offsets.get(HALF_KEY, {}).get(0, 0) >= 2, "progress")
    assert (desk.parts.transactions.service.open_count, checks) == (0, desk.parts.transactions.service.checks)


@pytest.mark.parametrize("desk", [QUICK], indirect=True)
async def test_a_late_decision_of_the_producers_own_counts_for_the_copy_that_was_put_back(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await beat(client)
    sent = await send_half(client)
    await asked(client)
    await end(client, sent, COMMIT)
    await eventually(lambda: desk.parts.transactions.service.open_count == 0, "none is open")
    assert len(of(desk, "T")) == 1
    assert of(desk, GIVEN_UP_TOPIC) == []


@pytest.mark.parametrize("desk", [{"transaction_timeout_ms": 0}], indirect=True)
@pytest.mark.parametrize(("decision", "stored"), [(COMMIT, 1), (ROLLBACK, 0)])
async def test_a_decision_that_comes_while_its_message_is_put_back_counts(
    desk: Desk, client: MemoryClient, decision: int, stored: int
) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    service = desk.parts.transactions.service
    service._check(service._run)
    opaque = client.start(RequestCode.END_TRANSACTION, end_fields(sent, decision))
    assert len(of(desk, HALF_TOPIC)) == 1, "the copy is on its way"
    assert (await client.answer_to(opaque)).code == 0
    assert (len(of(desk, HALF_TOPIC)), len(of(desk, "T")), service.open_count) == (2, stored, 0)


@pytest.mark.parametrize("desk", [{"transaction_timeout_ms": 0}], indirect=True)
async def test_messages_of_two_topics_with_one_key_are_both_open_when_one_is_put_back(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await make_topic(client, "U", 2)
    sent = [await send_half(client)]
    born = str(time.time_ns() // 1_000_000)
    sent.append(
        await send(client, b"other", topic="U", g=born, i="UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02")
    )
    service = desk.parts.transactions.service
    service._check(service._run)
    await eventually(lambda: len(of(desk, HALF_TOPIC)) == 4, "two copies")
    for one in sent:
        assert (await end(client, one, COMMIT)).code == 0
    assert ([record.body for record in of(desk, "T")], [record.body for record in of(desk, "U")]) == (
        [b"half"],
        [b"other"],
    )


async def test_a_message_that_was_sent_twice_is_decided_twice(tmp_path: Path) -> None:
    """A producer without an answer sends it again; what is decided about the first must not decide the second."""
    desk = Desk(small_config(tmp_path, transaction_timeout_ms=0))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    await beat(client)
    first = await send_half(client)
    service = desk.parts.transactions.service
    service._check(service._run)
    question = await asked(client)
    second = await send_half(client)
    service._check(service._run)
    await eventually(lambda: len(of(desk, HALF_TOPIC)) == 5, "a second copy of the first, a copy of the second")
    assert service.open_count == 2
    copy = {name: question.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    for _ in range(2):
        assert (await end(client, first, ROLLBACK, fromTransactionCheck="true", **copy)).code == 0
    await desk.stop(save_tables=False)
    await desk.start()
    await eventually(lambda: desk.parts.transactions.service._is_ready)
    assert desk.parts.transactions.service.open_count == 1
    assert (await end(desk.client(), second, COMMIT)).code == 0
    assert [record.body for record in of(desk, "T")] == [b"half"]
    await desk.stop()


class Nameless(QueuedDraft):
    """A draft that cannot be told the first record of its message."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, 0 if name == "prepared_transaction_offset" else value)


@contextlib.contextmanager
def nameless_copies(monkeypatch: pytest.MonkeyPatch, *, is_immune: bool = False) -> Iterator[None]:
    """Copies name no first record; with `is_immune` they are those that RocketMQ makes within the immunity."""
    copy = TransactionCopies._copy

    def nameless(copies: TransactionCopies, record: Record, topic: str, properties: dict[str, str]) -> Any:
        if is_immune:
            properties.pop("TRANSACTION_CHECK_TIMES")
            properties["TRAN_PREPARED_QUEUE_OFFSET"] = "1"
        draft = copy(copies, record, topic, properties)
        assert draft is not None
        draft.__class__ = Nameless
        return draft

    with monkeypatch.context() as patch:
        patch.setattr(TransactionCopies, "_copy", nameless)
        yield


@pytest.mark.parametrize("is_immune", [False, True], ids=["of an earlier release", "of RocketMQ within the immunity"])
async def test_a_message_with_a_copy_that_does_not_name_it_is_decided_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_immune: bool
) -> None:
    desk = Desk(small_config(tmp_path, transaction_timeout_ms=0))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    await send_half(client, "A", CHECK_IMMUNITY_TIME_IN_SECONDS=3600)  # open: a start reads all that follows
    sent = await send_half(client, "B", b"B")
    service = desk.parts.transactions.service
    with nameless_copies(monkeypatch, is_immune=is_immune):
        service._check(service._run)
        await eventually(lambda: len(of(desk, HALF_TOPIC)) == 3, "a copy")
    assert of(desk, HALF_TOPIC)[2].prepared_transaction_offset == 0
    await desk.stop(save_tables=False)
    await desk.start()
    await eventually(lambda: desk.parts.transactions.service._is_ready)
    assert desk.parts.transactions.service.open_count == 2
    assert (await end(desk.client(), sent, COMMIT)).code == 0
    assert desk.parts.transactions.service.open_count == 1
    assert [record.body for record in of(desk, "T")] == [b"B"]
    await desk.stop()


@pytest.mark.parametrize("is_nameless", [False, True], ids=["", "by an earlier release"])
@pytest.mark.parametrize("number", [0, 1], ids=["the first record", "the copy that was asked about"])
@pytest.mark.parametrize("desk", [QUICK | {"transaction_check_max": 1}], indirect=True)
async def test_a_decision_that_comes_when_its_message_was_given_up_and_put_back_counts(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, number: int, is_nameless: bool
) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    await eventually(lambda: bool(of(desk, GIVEN_UP_TOPIC)), "given up")
    desk.config.transaction_check_max = 1000
    (given_up,) = of(desk, GIVEN_UP_TOPIC)
    with nameless_copies(monkeypatch) if is_nameless else contextlib.nullcontext():
        assert (await client.ask(RESUME, {"msgId": given_up.offset_message_id})).code == 0
        await eventually(lambda: desk.parts.transactions.service.open_count == 1, "put back")
    if not is_nameless:
        assert (await client.ask(RESUME, {"msgId": given_up.offset_message_id})).code == 0
        assert desk.parts.transactions.service.open_count == 1, "once"
    half = of(desk, HALF_TOPIC)[number]
    place = {"tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical_offset}
    assert (await end(client, sent, COMMIT, **place)).code == 0
    assert [record.body for record in of(desk, "T")] == [b"half"]
    await eventually(lambda: desk.parts.transactions.service.open_count == 0, "decided")


@pytest.mark.parametrize("desk", [QUICK | {"transaction_check_max": 1}], indirect=True)
async def test_a_message_that_was_given_up_is_put_back_beside_another_at_its_queue_offset(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await send_half(client, "A", CHECK_IMMUNITY_TIME_IN_SECONDS=3600)
    await send_half(client, "B", b"B")
    await eventually(lambda: bool(of(desk, GIVEN_UP_TOPIC)), "given up")
    desk.config.transaction_check_max = 1000
    (record,) = of(desk, GIVEN_UP_TOPIC)
    assert (record.body, record.queue_offset) == (b"B", 0)
    assert (await client.ask(RESUME, {"msgId": record.offset_message_id})).code == 0
    await eventually(lambda: desk.parts.transactions.service.open_count == 2)


async def test_a_half_message_that_cannot_be_read_holds_up_nothing_but_itself(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it count as decided: it is committed as soon as it can be read."""
    await make_topic(client, "T", 2)
    log, read, bad = desk.store.log, desk.store.log.read, desk.store.log.max_offset

    def unreadable(physical_offset: int, size_bytes: int) -> memoryview:
        if physical_offset == bad:
            raise DiskReadError(log.directory, bad, "damaged")
        return read(physical_offset, size_bytes)

    monkeypatch.setattr(log, "read", unreadable)
    first = await send_half(client, "A")
    sent = await send_half(client, "B", b"B")
    assert (await end(client, sent, COMMIT)).code == 0
    assert (await end(client, first, COMMIT)).code not in (0, NOT_OPEN)
    await eventually(lambda: desk.store.queues.get(OP_TOPIC, 0).max_offset == 1, "decided")
    table = desk.parts.transactions.service._topics.table
    assert (len(table), table.progress()[0]) == (0, 0)
    monkeypatch.setattr(log, "read", read)
    assert (await end(client, first, COMMIT)).code == 0
    assert [record.body for record in of(desk, "T")] == [b"B", b"half"]
    assert table.progress()[0] == 2


async def test_records_behind_some_that_stay_unreadable_are_taken_when_they_can_be_read(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.topics._RETRY_SECONDS", 0.0)
    monkeypatch.setattr("broker.transactions.topics._FAILURES_MAX", 1)
    await make_topic(client, "T", 2)
    sent = [await send_half(client, key) for key in "ABCG"]
    for number in (1, 2):
        assert (await end(client, sent[number], ROLLBACK)).code == 0
        await eventually(lambda: len(of(desk, OP_TOPIC)) == number, "decided")  # noqa: B023
    halves, ops = of(desk, HALF_TOPIC), of(desk, OP_TOPIC)
    bad, look_up = {record.physical_offset for record in (*halves, *ops)}, MessageReader.look_up
    failed: list[int] = []

    def fails(reader: MessageReader, physical_offset: int) -> memoryview | None:
        if physical_offset in bad:
            failed.append(physical_offset)
            raise DiskReadError(Path("commitlog"), physical_offset, "bad sector")
        return look_up(reader, physical_offset)

    monkeypatch.setattr(MessageReader, "look_up", fails)
    await desk.stop()
    await desk.start()
    client, topics = desk.client(), desk.parts.transactions.service._topics
    table = topics.table
    await eventually(lambda: (len(table.unread), len(table.unread_ops)) == (4, 2), "none can be read")
    failed.clear()
    topics.follow(None)
    assert len(failed) == 2, "a half message and an op record, since the loop waits for each"
    bad -= {record.physical_offset for record in (*halves[2:], ops[1])}
    for key in "DEF":
        await send_half(client, key)
    assert (sorted(table.unread.values()), table.unread_ops) == ([0, 1], [0])
    assert sorted(half.unique_key for half in table.halves()) == ["D", "E", "F", "G"]


async def test_a_copy_stands_for_a_half_message_that_cannot_be_read(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client, "T", 2)
    await send_half(client, "A")
    table, (record,) = desk.parts.transactions.service._topics.table, of(desk, HALF_TOPIC)
    half = half_of(record, 0)
    table.end(half)
    table.unread[half.physical_offset] = half.queue_offset
    copy = replace(half, queue_offset=5, physical_offset=half.physical_offset + 1000, check_times=1, is_copy=True)
    assert table.add(copy) is None
    assert (table.unread, table.progress()[0]) == ({}, 5)
    assert desk.parts.transactions.service.look_up(half.physical_offset) == record
    assert table.halves() == [copy]


async def test_a_half_message_that_is_read_late_takes_the_place_of_no_later_copy(
    given_up: tuple[Desk, Command],
) -> None:
    """Else the op record would name the earlier copy, and the later one be open again after a restart."""
    desk, _ = given_up
    service, (_, earlier, later) = desk.parts.transactions.service, (half_of(half, 0) for half in of(desk, HALF_TOPIC))
    table = service._topics.table
    table.add(later)
    table.unread[earlier.physical_offset] = earlier.queue_offset
    assert service.look_up(earlier.physical_offset) is not None
    assert (table.halves(), table.unread) == ([later], {})


@pytest.mark.parametrize("by_this_leader", [True, False])
async def test_a_half_message_that_is_read_late_is_not_committed_again(
    desk: Desk, client: MemoryClient, by_this_leader: bool
) -> None:
    """It could not be read when this leader began, and a copy of it was committed, or it by an earlier leader."""
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    assert (await end(client, sent, COMMIT)).code == 0
    service, (half,) = desk.parts.transactions.service, of(desk, HALF_TOPIC)
    if not by_this_leader:
        service._committed.clear()
        desk.parts.delay.deliveries.committed.add(half.physical_offset)
    service._topics.table.unread[half.physical_offset] = half.queue_offset
    assert (await end(client, sent, COMMIT)).code == 0
    assert (len(of(desk, "T")), service.open_count, service.counts.counts) == (1, 0, {"T": 0})


async def test_an_op_record_that_cannot_be_read_holds_up_no_later_one(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.topics._RETRY_SECONDS", 0.0)
    await make_topic(client, "T", 2)
    sent = [await send_half(client, key) for key in "ABC"]  # the first one stays open
    for number in (1, 2):
        assert (await end(client, sent[number], ROLLBACK)).code == 0
        await eventually(lambda: len(of(desk, OP_TOPIC)) == number, "decided")  # noqa: B023
    bad = of(desk, OP_TOPIC)[0].physical_offset
    is_bad, look_up = True, MessageReader.look_up

    def fails(reader: MessageReader, physical_offset: int) -> memoryview | None:
        if physical_offset == bad and is_bad:
            raise DiskReadError(Path("commitlog"), physical_offset, "bad sector")
        return look_up(reader, physical_offset)

    monkeypatch.setattr(MessageReader, "look_up", fails)
    await desk.stop()
    await desk.start()  # as a leader that reads both topics from the first open message on
    client = desk.client()
    service = desk.parts.transactions.service
    await eventually(lambda: service.open_count == 2, "B's record cannot be read, C's can")
    assert service._topics.table.progress() == (0, 0)
    is_bad = False
    await send_half(client, "D")
    await eventually(lambda: service.open_count == 2, "A and D are open")
    assert [half.unique_key for half in service._topics.table.halves()] == ["A", "D"]
    assert service._topics.table.unread_ops == []


@pytest.mark.parametrize("desk", [QUICK], indirect=True)
async def test_a_producer_is_asked_about_a_message_whose_properties_have_no_room_for_the_count(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await beat(client)
    await send_half(client, "A", p="v")
    room = PROPERTIES_LENGTH_MAX - len(of(desk, HALF_TOPIC)[0].properties)
    sent = await send_half(client, "B", b"full", p="v" * (room + 1))
    full = [one for one in of(desk, HALF_TOPIC) if one.body == b"full"]  # behind it there may be a copy of A by now
    assert len(full[0].properties) > PROPERTIES_LENGTH_MAX - 10

    def is_asked() -> bool:
        client.take()
        return any(one.ext["msgId"] == sent.ext["transactionId"] for one in client.requests)

    await eventually(is_asked, "the question")


@pytest.mark.parametrize("desk", [QUICK], indirect=True)
async def test_a_transaction_that_nobody_decides_is_given_up(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await send_half(client)
    await eventually(lambda: bool(of(desk, GIVEN_UP_TOPIC)), "given up")
    (record,) = of(desk, GIVEN_UP_TOPIC)
    assert (record.property_map["TRANSACTION_CHECK_TIMES"], record.body) == ("2", b"half")
    assert len(of(desk, HALF_TOPIC)) == 3
    await eventually(lambda: desk.parts.transactions.service.open_count == 0)
    assert of(desk, "T") == []


async def test_a_message_that_was_given_up_may_still_be_committed_once(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path, **QUICK))
    await desk.start()
    client = desk.client()
    service = desk.parts.transactions.service
    await make_topic(client, "T", 2)
    sent = [await send_half(client, f"K{number}", b"%d" % number) for number in range(3)]
    await eventually(lambda: len(of(desk, GIVEN_UP_TOPIC)) == 3 and service.open_count == 0, "given up")
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await end(client, sent[0], COMMIT)).code == 17  # TOPIC_NOT_EXIST
    await make_topic(client, "T", 2)
    assert (await end(client, sent[0], COMMIT)).code == 0
    assert (await end(client, sent[0], COMMIT)).code == 0
    assert (await end(client, sent[1], ROLLBACK)).code == 0
    assert (await end(client, sent[1], COMMIT)).code == NOT_OPEN
    assert service.counts.counts == {"T": 0}
    await desk.stop()
    await desk.start()
    client = desk.client()
    assert (await end(client, sent[2], COMMIT)).code == NOT_OPEN  # nobody knows any more that it is not committed
    assert [record.body for record in of(desk, "T")] == [b"0"]
    await desk.stop()


@pytest.fixture
async def given_up(tmp_path: Path) -> AsyncIterator[tuple[Desk, Command]]:
    """A desk, and the answer to a half message that it has given up."""
    desk = Desk(small_config(tmp_path, **QUICK))
    await desk.start()
    await make_topic(desk.client(), "T", 2)
    sent = await send_half(desk.client())
    await eventually(lambda: bool(of(desk, GIVEN_UP_TOPIC)), "given up")
    await eventually(lambda: desk.parts.transactions.service.open_count == 0)
    desk.config.transaction_check_max = 1000
    yield desk, sent
    await desk.stop()


async def resume(desk: Desk) -> int:
    """Ask that the message that was given up is asked about again; return the code of the answer."""
    (record,) = of(desk, GIVEN_UP_TOPIC)
    return (await desk.client().ask(RESUME, {"msgId": record.offset_message_id})).code


async def test_a_producer_that_asks_again_while_its_late_commit_is_stored_is_told_that_it_is(
    given_up: tuple[Desk, Command],
) -> None:
    desk, sent = given_up
    answers = await asyncio.gather(*(end(desk.client(), sent, COMMIT) for _ in range(2)))
    assert [answer.code for answer in answers] == [0, 0]
    assert len(of(desk, "T")) == 1


@pytest.mark.parametrize("waits", [True, False])
async def test_a_message_that_was_committed_after_it_was_given_up_is_not_asked_about_again(
    given_up: tuple[Desk, Command], waits: bool
) -> None:
    """Its producer would commit it a second time."""
    desk, sent = given_up
    commit = asyncio.create_task(end(desk.client(), sent, COMMIT))
    await (commit if waits else asyncio.sleep(0))
    assert await resume(desk) == 1
    assert (await commit).code == 0
    service = desk.parts.transactions.service
    assert (service.open_count, len(of(desk, HALF_TOPIC)), len(of(desk, "T"))) == (0, 3, 1)


@pytest.mark.parametrize("is_put_back", [False, True])
async def test_after_a_restart_the_log_tells_that_a_message_was_committed_after_it_was_given_up(
    given_up: tuple[Desk, Command], is_put_back: bool
) -> None:
    """The commit of one that was put back names a later copy."""
    desk, sent = given_up
    if is_put_back:
        assert await resume(desk) == 0
        await eventually(lambda: desk.parts.transactions.service.open_count == 1)
    assert (await end(desk.client(), sent, COMMIT)).code == 0
    for number in range(2):
        await send(desk.client(), b"later %d" % number)
    for _ in range(2):
        await desk.stop()
        await desk.start()
        halves = len(of(desk, HALF_TOPIC))
        assert await resume(desk) == 1
        assert len(of(desk, HALF_TOPIC)) == halves
    assert [record.body for record in of(desk, "T") if record.body == b"half"] == [b"half"]


async def test_after_a_restart_a_message_that_was_given_up_is_put_back_once(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.turns.FILTER_SLICE_S", 0.0)
    desk, _ = given_up
    other = await send_half(desk.client(), "other")
    assert (await end(desk.client(), other, COMMIT)).code == 0
    await desk.stop()
    await desk.start()
    assert sorted(await asyncio.gather(resume(desk), resume(desk))) == [0, 2]  # one search at a time
    await eventually(lambda: desk.parts.transactions.service.open_count == 1)
    assert await resume(desk) == 0
    assert desk.parts.transactions.service.open_count == 1


@pytest.fixture
async def looking(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch
) -> tuple[Desk, Command, MemoryClient, Iterator[None]]:
    """Besides, a client that has asked for a check again, and the rest of the search for a commit."""
    desk, sent = given_up
    for _ in range(40):
        await send(desk.client(), bytes(90_000))
    await desk.stop()
    await desk.start()
    client, (record,), searches = desk.client(), of(desk, GIVEN_UP_TOPIC), list[Iterator[None]]()
    with monkeypatch.context() as patch:
        patch.setattr(desk.parts.context.turns, "run_steps", searches.append)
        client.start(RESUME, {"msgId": record.offset_message_id})
    (search,) = searches
    next(search)
    return desk, sent, client, search


async def test_a_search_begins_again_if_others_led_meanwhile_and_finds_what_they_committed(
    looking: tuple[Desk, Command, MemoryClient, Iterator[None]],
) -> None:
    desk, sent, client, search = looking
    service, (record,), outcomes = desk.parts.transactions.service, of(desk, GIVEN_UP_TOPIC), list[object]()

    async def lead(generation: int) -> None:
        desk.parts.on_role_change(log_state(writable=False, generation=generation))
        desk.parts.on_role_change(log_state(writable=True, generation=generation + 1))
        ready = asyncio.Event()
        service.when_ready(ready.set)
        await ready.wait()

    await lead(7)
    assert service.ask_again(record, outcomes.append)
    await eventually(lambda: bool(outcomes) and service.open_count == 1)
    ops = len(of(desk, OP_TOPIC))
    assert (await end(desk.client(), sent, COMMIT)).code == 0
    await eventually(lambda: len(of(desk, OP_TOPIC)) > ops)
    await lead(9)
    assert service.open_count == 0
    assert len(list(search)) > 1
    assert ((await client.answer_to(1)).code, service.open_count) == (1, 0)


async def test_a_search_ends_when_this_node_leads_no_more(
    looking: tuple[Desk, Command, MemoryClient, Iterator[None]],
) -> None:
    desk, _, client, search = looking
    desk.parts.on_role_change(log_state(writable=False, generation=7))
    assert not list(search)
    assert (await client.answer_to(1)).code == 14


async def test_a_search_ends_with_an_answer_when_the_log_is_cleaned_meanwhile(
    looking: tuple[Desk, Command, MemoryClient, Iterator[None]],
) -> None:
    desk, _, client, search = looking
    desk.store.log.trim(desk.store.log.confirm_offset)
    await eventually(lambda: desk.store.log.min_offset > 0)
    assert len(list(search)) == 1
    assert "There is nothing at offset" in str((await client.answer_to(1)).remark)


async def test_a_search_for_a_client_that_has_gone_makes_way_for_another_one(
    looking: tuple[Desk, Command, MemoryClient, Iterator[None]],
) -> None:
    desk, _, client, search = looking
    assert await resume(desk) == 2
    client.close()
    assert not list(search)
    assert await resume(desk) == 0


async def test_a_message_is_not_put_back_while_the_log_cannot_tell_whether_it_was_committed(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _ = given_up
    await desk.stop()
    await desk.start()

    def fail(*_: object) -> Iterator[tuple[int, memoryview]]:
        raise DiskReadError(Path("log"), 0, "bad sector")

    (record,) = of(desk, GIVEN_UP_TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(type(desk.store.log), "walk", fail)
        assert (await desk.client().ask(RESUME, {"msgId": record.offset_message_id})).code == 14
    assert desk.parts.transactions.service.open_count == 0
    assert await resume(desk) == 0


async def test_a_message_whose_commit_was_not_stored_can_be_committed_again(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=3600)

    def refuse(_: QueuedDraft, done: Callable[[Refusal], None]) -> None:
        asyncio.get_running_loop().call_soon(done, Refusal(Cause.MESSAGE_ILLEGAL, "no"))

    with monkeypatch.context() as patch:
        patch.setattr(desk.parts.context.appender, "add", refuse)
        assert (await end(client, sent, COMMIT)).code == 1
    assert desk.parts.transactions.service._deliveries.tokens(DeliveryKind.TRANSACTION) == [], "the mark may go on"
    assert (await end(client, sent, COMMIT)).code == 0
    assert len(of(desk, "T")) == 1


async def test_the_node_that_gave_a_message_up_puts_it_back_without_a_search_of_the_log(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, _ = given_up
    monkeypatch.setattr(desk.parts.transactions.service, "look_for_commit", None)
    assert await resume(desk) == 0


async def test_a_message_that_could_not_be_put_back_may_still_be_committed(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, sent = given_up

    def refuse(_: QueuedDraft, done: Callable[[Refusal], None]) -> None:
        asyncio.get_running_loop().call_soon(done, Refusal(Cause.DISK_FULL, "full"))

    with monkeypatch.context() as patch:
        patch.setattr(desk.parts.context.appender, "add", refuse)
        assert await resume(desk) == 14
    assert (await end(desk.client(), sent, COMMIT)).code == 0
    assert len(of(desk, "T")) == 1


async def test_a_commit_that_comes_while_a_message_that_was_given_up_is_put_back_does_not_store_it_beside_the_copy(
    given_up: tuple[Desk, Command],
) -> None:
    desk, sent = given_up
    resumed = asyncio.create_task(resume(desk))
    await asyncio.sleep(0)
    assert (await end(desk.client(), sent, COMMIT)).code == NOT_OPEN
    assert await resumed == 0
    await eventually(lambda: desk.parts.transactions.service.open_count == 1)
    assert of(desk, "T") == []


async def test_a_node_that_leads_again_decides_nothing_by_what_it_knew_before(given_up: tuple[Desk, Command]) -> None:
    """Another leader may have decided it since."""
    desk, sent = given_up
    committed = await send_half(desk.client(), "other", CHECK_IMMUNITY_TIME_IN_SECONDS=3600)
    assert (await end(desk.client(), committed, COMMIT)).code == 0
    await eventually(lambda: desk.parts.context.state.offsets.get(HALF_KEY) == {0: 4}, "the op records")
    desk.parts.transactions.service.resume()
    for one in (sent, committed):
        assert (await end(desk.client(), one, COMMIT)).code == NOT_OPEN
    assert len(of(desk, "T")) == 1


@pytest.mark.parametrize("is_later_run", [False, True])
async def test_a_message_is_not_given_up_any_more_if_it_may_be_put_back_or_decided_elsewhere(
    given_up: tuple[Desk, Command], monkeypatch: pytest.MonkeyPatch, is_later_run: bool
) -> None:
    """A commit of it might be the second one."""
    desk, sent = given_up
    await eventually(lambda: desk.parts.context.state.offsets.get(HALF_KEY) == {0: 3}, "the op record")
    dones: list[Callable[[Refusal], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(desk.parts.context.appender, "add", lambda _, done: dones.append(done))
        resumed = asyncio.create_task(resume(desk))
        await eventually(lambda: bool(dones))
    if is_later_run:
        desk.parts.transactions.service.resume()
    dones[0](Refusal(Cause.DISK_FULL if is_later_run else Cause.NO_QUORUM, "no"))
    assert await resumed != 0
    assert (await end(desk.client(), sent, COMMIT)).code == NOT_OPEN
    assert of(desk, "T") == []


async def test_a_producer_is_not_told_that_a_message_is_committed_which_an_earlier_leader_had_deleted(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of the earlier leader was trimmed below the undecided message, and its progress lies behind it.
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    service = desk.parts.transactions.service
    monkeypatch.setitem(desk.parts.context.state.offsets, HALF_KEY, {0: 1})
    service.resume()
    assert (await end(client, sent, COMMIT, fromTransactionCheck="true")).code == NOT_OPEN
    assert of(desk, "T") == []


async def test_the_latest_commits_are_remembered_for_producers_that_ask_again(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_REMEMBERED_MAX", 2)
    await make_topic(client, "T", 2)
    sent = [await send_half(client, f"K{number}") for number in range(3)]
    for one in sent:
        assert (await end(client, one, COMMIT)).code == 0
    assert [(await end(client, one, COMMIT)).code for one in sent] == [NOT_OPEN, 0, 0]
    assert len(of(desk, "T")) == 3


@pytest.mark.parametrize("desk", [QUICK], indirect=True)
async def test_a_message_that_was_given_up_can_be_asked_about_again(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    await eventually(lambda: bool(of(desk, GIVEN_UP_TOPIC)), "given up")
    await eventually(lambda: desk.parts.transactions.service.open_count == 0)
    desk.config.transaction_check_max = 1000
    (record,) = of(desk, GIVEN_UP_TOPIC)
    assert (await client.ask(RESUME, {"msgId": record.offset_message_id, "topic": "T"})).code == 0
    await eventually(lambda: desk.parts.transactions.service.open_count == 1)
    assert of(desk, HALF_TOPIC)[3].property_map["TRANSACTION_CHECK_TIMES"] == "0"
    assert (await client.ask(RESUME, {"msgId": record.offset_message_id})).code == 0  # once is enough
    assert desk.parts.transactions.service.open_count == 1
    await beat(client)
    question = await asked(client)
    fields = {name: question.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    assert (await end(client, sent, COMMIT, fromTransactionCheck="true", **fields)).code == 0
    await eventually(lambda: [message.body for message in of(desk, "T")] == [b"half"])


@pytest.mark.parametrize(
    "message_id", ["", "7F00", "7F00000100002A9F000000000000FFFF", "7F00000100002A9F0000000000000000"]
)
async def test_only_a_message_that_was_given_up_can_be_asked_about_again(client: MemoryClient, message_id: str) -> None:
    await make_topic(client, "T", 2)
    answer = await client.ask(RESUME, {"msgId": message_id})
    assert answer.code in (1, 29)
    assert answer.remark


@pytest.mark.parametrize("desk", [QUICK | {"transaction_timeout_ms": 60_000}], indirect=True)
async def test_a_fresh_half_message_is_left_alone(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await beat(client)
    await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=3600)
    seen = 0

    def rounds_have_passed() -> bool:
        nonlocal seen
        seen += 1
        return seen > 40

    await eventually(rounds_have_passed)
    service = desk.parts.transactions.service
    assert (service.checks, service.open_count, len(of(desk, HALF_TOPIC))) == (0, 1, 1)


# ---- what survives


@pytest.mark.parametrize("save_tables", [True, False])
async def test_open_and_decided_transactions_are_known_after_a_restart(tmp_path: Path, save_tables: bool) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    sent = [await send_half(client, f"K{number}", b"%d" % number) for number in range(4)]
    await end(client, sent[0], COMMIT)
    await end(client, sent[2], ROLLBACK)
    await desk.stop(save_tables=save_tables)
    await desk.start()
    client = desk.client()
    assert (await end(client, sent[0], COMMIT)).code == 0
    assert (await end(client, sent[1], COMMIT)).code == 0
    assert (await end(client, sent[2], COMMIT)).code == NOT_OPEN
    assert (await end(client, sent[2], ROLLBACK)).code == 0
    assert sorted(record.body for record in of(desk, "T")) == [b"0", b"1"]
    assert desk.parts.transactions.service.open_count == 1
    assert desk.parts.transactions.service.counts.counts == {"T": 1}
    await desk.stop()
    counts = orjson.loads((tmp_path / "config" / "transactionMetrics").read_bytes())
    assert counts["transactionCount"]["T"]["count"] == 1


async def test_a_transaction_begun_after_all_earlier_ones_are_deleted_with_their_log_is_seen(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    await send_half(client, "deleted")
    await end(client, await send_half(client, "decided"), ROLLBACK)
    desk.parts.transactions.service._ops.flush()
    await eventually(lambda: bool(of(desk, OP_TOPIC)), "an op record")
    for _ in range(12):
        await send(client, bytes(90_000))
    await eventually(lambda: desk.store.log.trim(1 << 20) == 1 << 20, "its file is deleted")
    await desk.stop()
    await desk.start()
    client = desk.client()
    sent = [await send_half(client, f"K{number}", b"K%d" % number) for number in range(3)]
    await end(client, sent[0], COMMIT)
    assert [record.body for record in of(desk, "T") if record.body[:1] == b"K"] == [b"K0"]
    await end(client, sent[2], ROLLBACK)
    await desk.stop()
    await desk.start()
    await eventually(lambda: desk.parts.transactions.service._is_ready)
    assert desk.parts.transactions.service.open_count == 1
    await desk.stop()


async def test_a_commit_whose_op_record_is_lost_with_its_leader_is_not_stored_again(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 2)
    sent = await send_half(client)
    await end(client, sent, COMMIT)
    desk.parts.transactions.service._ops.forget()
    await desk.stop(save_tables=False)
    await desk.start()
    assert of(desk, OP_TOPIC) == []
    await eventually(lambda: desk.parts.transactions.service._is_ready)
    assert desk.parts.transactions.service.open_count == 0
    assert (await end(desk.client(), sent, COMMIT)).code == 0
    assert len(of(desk, "T")) == 1
    await desk.stop()
