"""Transactions on a real broker: decided by the block, by what the producer remembers, by the checker of another."""

import asyncio

import pytest

from broker.transactions.copies import check_command
from ledgermq.client import Admin, Consumer, Decision, Message, Producer
from ledgermq.client.errors import (
    AnswerTimeoutError,
    ClosedError,
    DeadlineExceededError,
    HalfMessageError,
    InvalidArgumentError,
    TransactionUndecidedError,
)
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.client.fake import FakeCluster, eventually, hang_up, store_with_status
from tests.client.reading import read
from tests.limits import WAIT_S


class PlannedError(Exception):
    """Raised by a block."""


async def quiet(namesrv: str, topic: str) -> None:
    """Fail if there is anything to read."""
    async with Consumer(namesrv, "nobody", topic) as consumer:
        assert await consumer.get_many(1, wait_s=0.5) == []


async def test_a_block_that_ends_commits_and_one_that_raises_rolls_back(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv, "shop") as producer:
        await admin.create_topic("T", queue_count=1)
        with pytest.raises(PlannedError):
            async with producer.transaction("T", b"lost"):
                raise PlannedError
        async with producer.transaction("T", b"kept", tags="a", keys="k", properties={"p": "v"}) as tx:
            await quiet(namesrv, "T")
        assert tx.decision is Decision.COMMIT
    (message,) = await read(namesrv, "T", 1)
    assert (message.body, message.tags, message.keys, message.properties["p"]) == (b"kept", "a", ["k"], "v")
    assert message.message_id == tx.message_id


async def test_a_block_decides_for_itself_once(namesrv: str) -> None:
    async with Producer(namesrv, "shop") as producer:
        async with producer.transaction("T", b"lost") as tx:
            await tx.rollback()
        assert tx.decision is Decision.ROLLBACK
        with pytest.raises(PlannedError):
            async with producer.transaction("T", b"kept") as tx:
                await tx.commit()
                with pytest.raises(ClosedError, match="COMMIT"):
                    await tx.rollback()
                raise PlannedError
    assert [message.body for message in await read(namesrv, "T", 1)] == [b"kept"]
    with pytest.raises(ClosedError):
        await tx.commit()


async def test_the_checker_of_another_producer_of_the_group_decides(namesrv: str) -> None:
    asked: list[Message] = []

    async def check(message: Message) -> Decision:
        asked.append(message)
        is_first = len(asked) == 1
        await asyncio.sleep(0)
        if is_first:
            return Decision.UNKNOWN
        return Decision.COMMIT if message.body == b"kept" else Decision.ROLLBACK

    async with Producer(namesrv, "shop") as first:
        for body in (b"kept", b"lost"):
            async with first.transaction("T", body, keys="order-1") as tx:
                tx.defer()
    async with Producer(namesrv, "shop", checker=check) as second, asyncio.timeout(WAIT_S):
        await second.queues("T")  # known to its brokers from now on
        while {message.body for message in asked[1:]} != {b"kept", b"lost"}:
            await asyncio.sleep(0.02)
        messages = await read(namesrv, "T", 1)
    assert [message.body for message in messages] == [b"kept"]
    assert (asked[0].topic, asked[0].keys, asked[0].message_id != "") == ("T", ["order-1"], True)


async def test_a_checker_that_fails_or_says_nonsense_is_asked_again(
    namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = [PlannedError("no"), "commit"]

    def check(message: Message) -> Decision:
        if not said:
            return Decision.COMMIT
        answer = said.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]  # the point

    async with Producer(namesrv, "shop", checker=check) as producer:
        async with producer.transaction("T", b"kept") as tx:
            tx.defer()
        await read(namesrv, "T", 1)
    assert not said
    assert caplog.text.count("the checker of group shop failed") == 2


async def test_a_producer_that_has_sent_nothing_yet_is_asked_too(namesrv: str) -> None:
    async with Producer(namesrv, "shop") as producer, producer.transaction("T", b"kept") as tx:
        tx.defer()
    async with Producer(namesrv, "shop", checker=lambda message: Decision.COMMIT):
        assert [message.body for message in await read(namesrv, "T", 1)] == [b"kept"]


async def test_a_block_that_still_runs_is_left_alone(namesrv: str) -> None:
    def check(message: Message) -> Decision:
        raise AssertionError(message)

    async with Producer(namesrv, "shop", checker=check) as producer:
        async with producer.transaction("T", b"kept"):
            await asyncio.sleep(1.5)  # the broker asks after half a second
        await read(namesrv, "T", 1)


async def test_a_decision_that_did_not_arrive_stands_and_is_told_when_asked(namesrv: str) -> None:
    async with Producer(namesrv, "shop", deadline_s=0.5) as producer:
        with pytest.raises(TransactionUndecidedError) as caught:
            async with producer.transaction("T", b"kept"):
                calls = producer._session.calls
                real, calls._try = calls._try, unanswered  # type: ignore[method-assign]
        calls._try = real  # type: ignore[method-assign]
        assert not caught.value.outcome_known
        assert [message.body for message in await read(namesrv, "T", 1)] == [b"kept"]


async def unanswered(*_: object, **__: object) -> AnswerTimeoutError:
    """A try that gets no answer."""
    await asyncio.sleep(0.05)
    return AnswerTimeoutError("127.0.0.1:1", 0.05)


async def test_a_half_message_that_is_not_safe_is_rolled_back_and_no_block_runs(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(RequestCode.SEND_MESSAGE_V2, store_with_status(12))
    async with Producer(cluster.namesrv) as producer:
        with pytest.raises(HalfMessageError, match="FLUSH_SLAVE_TIMEOUT"):
            async with producer.transaction("T", b"x"):
                raise AssertionError("no block")
    assert [command.ext["commitOrRollback"] for command in broker.ended] == ["12"]


async def test_the_decision_is_tried_until_it_is_taken(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(RequestCode.END_TRANSACTION, hang_up, hang_up)
    async with Producer(cluster.namesrv) as producer, producer.transaction("T", b"x") as tx:
        pass
    (command,) = broker.ended
    assert command.ext["commitOrRollback"] == "8"
    assert (command.ext["msgId"], command.ext["fromTransactionCheck"]) == (tx.message_id, "false")
    assert broker.count(RequestCode.END_TRANSACTION) == 3


async def test_a_half_message_of_unknown_fate_is_rolled_back_when_asked(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, attempt_timeout_s=0.1, deadline_s=0.3) as producer:
        await producer.queues("T")
        broker.silent = True
        with pytest.raises(DeadlineExceededError):
            async with producer.transaction("T", b"x"):
                raise AssertionError("no block")
        broker.silent = False
        await producer.send("T", b"connected again")
        sent = next(command for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2)
        broker.tell_all(check_command(broker.store(sent), broker.name))
        await eventually(lambda: len(broker.ended) == 1)
    assert broker.ended[0].ext["commitOrRollback"] == "12"
    assert broker.ended[0].ext["fromTransactionCheck"] == "true"


async def test_a_question_that_cannot_be_read_or_is_another_groups_changes_nothing(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, checker=lambda _: Decision.COMMIT) as producer:
        await producer.send("T", b"x")
        broker.tell_all(Command(RequestCode.CHECK_TRANSACTION_STATE, ext={}, body=b"nonsense"))
        broker.tell_all(Command(RequestCode.CHECK_TRANSACTION_STATE, ext={"commitLogOffset": "-"}, body=b""))
        record = broker.ledger.append("T", 0, b"theirs", b"UNIQ_KEY\x01A\x02PGROUP\x01others\x02")
        broker.tell_all(check_command(record, broker.name))
        mine = broker.ledger.append("T", 0, b"ours", b"UNIQ_KEY\x01B\x02PGROUP\x01ledgermq-producers\x02")
        broker.tell_all(check_command(mine, broker.name))
        await eventually(lambda: len(broker.ended) == 1)
    assert [command.ext["msgId"] for command in broker.ended] == ["B"]


async def test_a_cancelled_block_is_rolled_back(namesrv: str) -> None:
    async with Producer(namesrv, "shop") as producer:

        async def block() -> None:
            async with producer.transaction("T", b"lost"):
                await asyncio.sleep(WAIT_S)

        task = asyncio.ensure_future(block())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction("T", b"kept"):
            pass
    assert [message.body for message in await read(namesrv, "T", 1)] == [b"kept"]


async def test_what_cannot_be_sent_is_refused_before_the_block(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        with pytest.raises(InvalidArgumentError, match="TRAN_MSG"):
            async with producer.transaction("T", b"x", properties={"TRAN_MSG": "false"}):
                raise AssertionError("no block")
        await eventually(lambda: not producer._in_flight.count)
