"""What brokers ask of a consumer, and what becomes of what cannot be sent back or locked."""

import asyncio
import json

import pytest

from ledgermq.client import Consumer, DeadLetter, Message
from ledgermq.client.consumer import assigned, queue_reader
from ledgermq.message.record import encode_record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from tests.client.consumer.test_consumer import fill
from tests.client.consumer.test_handling import handled
from tests.client.fake import FakeBroker, FakeCluster, eventually, refuse
from tests.limits import WAIT_S

GROUP = {"group": "g", "topic": "T"}


async def asked(broker: FakeBroker, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """What the only member of the group answers to its broker."""
    await eventually(lambda: bool(broker.members["g"]))
    connection: Connection = next(iter(broker.members["g"].values()))
    return await connection.request(Command(code, ext=ext, body=body), WAIT_S)


async def test_a_reset_moves_queues_and_is_committed_at_once(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 10)
    async with Consumer(cluster.namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        assert [(await anext(consumer)).queue_offset for _ in range(5)] == [0, 1, 2, 3, 4]
        table = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:2}}'
        answer = await asked(broker, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, GROUP, table)
        assert answer.code == 0
        assert broker.ledger.offsets["T", "g", 0] == 2
        assert (await anext(consumer)).queue_offset == 2


async def test_offsets_are_told_by_queue(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 3)
    async with Consumer(cluster.namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        await anext(consumer)
        await anext(consumer)
        answer = await asked(broker, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GROUP)
        ((queue, offset),) = loads(answer.body)["messageQueueTable"].items()
        assert (json.loads(queue), offset) == ({"brokerName": "b", "queueId": 0, "topic": "T"}, 1)


@pytest.mark.parametrize(
    ("code", "ext", "body", "answered", "remark"),
    [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "other"}, b"", 1, "<other> not exist"),
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {}, b"", 1, "<None> not exist"),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, GROUP, b"{", 29, "offsetTable"),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, GROUP, b'{"offsetTable":{"x":1}}', 29, "offsetTable"),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, b"nonsense", 29, "not a message"),
        (RequestCode.CHECK_TRANSACTION_STATE, {}, b"", 3, "39"),
    ],
)
async def test_what_is_wrong_is_refused_with_a_remark(
    cluster: FakeCluster, code: int, ext: dict[str, str], body: bytes, answered: int, remark: str
) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Consumer(cluster.namesrv, "g", "T"):
        answer = await asked(broker, code, ext, body)
    assert answer.code == answered
    assert remark in (answer.remark or "")


async def test_a_program_that_iterates_has_no_handler_to_give_a_message_to(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 1)
    body = encode_record(broker.ledger.queues["T", 0][0])
    async with Consumer(cluster.namesrv, "g", "T"):
        answer = await asked(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, body)
    assert (answer.code, "no handler" in (answer.remark or "")) == (1, True)


async def test_what_a_broker_does_not_take_back_is_sent_to_the_retry_topic(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1, "%RETRY%g": 1})
    properties = b"TAGS\x01a\x02UNIQ_KEY\x01ID\x02"
    broker.ledger.append("T", 0, b"again", properties)
    broker.ledger.append("T", 0, b"never", properties)
    seen: list[tuple[bytes, str]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.queue.topic))
        if message.queue.topic == "T":
            raise DeadLetter if message.body == b"never" else ValueError("not now")

    async with handled(Consumer(cluster.namesrv, "g", "T"), handle, concurrency=1, tries_max=4):
        await eventually(lambda: len(seen) == 4, "both came again: this broker knows no delays")
    again, never = broker.ledger.queues["%RETRY%g", 0]
    assert again.property_map == {
        "TAGS": "a",
        "UNIQ_KEY": "ID",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": again.property_map["ORIGIN_MESSAGE_ID"],
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "4",
        "DELAY": "3",
    }
    sends = [command.ext for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2]
    assert [(ext["j"], ext["l"]) for ext in sends] == [("1", "4"), ("5", "4")], "the second beyond its tries"
    assert never.property_map["RECONSUME_TIME"] == "5"
    assert broker.ledger.offsets["T", "g", 0] == 2


async def test_one_slow_message_bounds_how_far_ahead_is_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "SPAN_MAX", 300)
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 3000)
    go_on = asyncio.Event()
    seen: set[int] = set()

    async def handle(message: Message) -> None:
        if message.queue_offset == 0:
            await go_on.wait()
        seen.add(message.queue_offset)

    async with handled(Consumer(cluster.namesrv, "g", "T"), handle, concurrency=4):
        await eventually(lambda: len(seen) > 300)
        pulls = broker.count(RequestCode.PULL_MESSAGE)
        await eventually(lambda: max(seen) == len(seen), "all but the slow one that was read")
        assert len(seen) < 300 + 2 * 256
        assert broker.count(RequestCode.PULL_MESSAGE) - pulls <= 1
        go_on.set()
        await eventually(lambda: len(seen) == 3000)


async def test_a_lock_that_another_member_has_is_waited_for(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 3)
    queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
    granted = json.dumps({"lockOKMQSet": [queue]}).encode()
    answers = [b'{"lockOKMQSet":[]}', granted]
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    broker.handlers[lock] = lambda connection, command: connection.respond(
        command, 0, body=answers.pop(0) if answers else granted
    )
    broker.handlers[unlock] = lambda connection, command: connection.respond(command, 0)
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    async with handled(Consumer(cluster.namesrv, "g", "T"), handle, order="queue"):
        await eventually(lambda: seen == [0, 1, 2])
    (request,) = [command for command in broker.seen if command.code == lock][:1]
    body = json.loads(bytes(request.body))
    assert (body["consumerGroup"], body["mqSet"]) == ("g", [queue])
    assert broker.count(lock) >= 2
    assert broker.count(unlock) == 1


async def test_a_lock_that_went_to_another_member_is_waited_for_anew(cluster: FakeCluster) -> None:
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    fill(old, 3)
    none = b'{"lockOKMQSet":[]}'
    granted = b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}'
    answers = [granted]
    for broker in (old, new):
        broker.handlers[RequestCode.LOCK_BATCH_MQ] = lambda connection, command: connection.respond(
            command, 0, body=answers[0]
        )
        broker.handlers[RequestCode.UNLOCK_BATCH_MQ] = lambda connection, command: connection.respond(command, 0)
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    consumer = Consumer(cluster.namesrv, "g", "T", auto_commit_s=0.05)
    async with handled(consumer, handle, order="queue"):
        await eventually(lambda: seen == [0, 1, 2])
        answers[0] = none
        cluster.lead(new)
        await eventually(lambda: new.count(RequestCode.LOCK_BATCH_MQ) >= 2, "asked at once, and again")
        fill(new, 2)
        await asyncio.sleep(0)
        assert seen == [0, 1, 2]
        answers[0] = granted
        await eventually(lambda: seen == [0, 1, 2, 3, 4])


async def test_waiting_for_the_handlers_of_a_lock_that_was_lost_is_logged(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assigned, "FIRST_LOG_S", 0.01)
    old, new = await cluster.add(nodes=2, topics={"T": 1})
    fill(old, 1)
    answers = [b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}', b'{"lockOKMQSet":[]}']
    for broker in (old, new):
        broker.handlers[RequestCode.LOCK_BATCH_MQ] = lambda connection, command: connection.respond(
            command, 0, body=answers[0]
        )
        broker.handlers[RequestCode.UNLOCK_BATCH_MQ] = lambda connection, command: connection.respond(command, 0)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await go_on.wait()

    async with handled(Consumer(cluster.namesrv, "g", "T"), handle, order="queue"):
        await began.wait()
        answers.reverse()
        cluster.lead(new)
        await eventually(lambda: "T/b/0 has waited for its former handlers" in caplog.text)
        answers.reverse()
        asked = new.count(RequestCode.LOCK_BATCH_MQ)
        go_on.set()
        await eventually(lambda: new.count(RequestCode.LOCK_BATCH_MQ) > asked, "its lock is asked for then")


async def test_a_broker_that_is_busy_is_asked_again_soon(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 1)
    broker.plan(RequestCode.PULL_MESSAGE, refuse(215, "flow control"), refuse(2, "busy"), refuse(215))
    async with Consumer(cluster.namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        assert (await anext(consumer)).body == b"0"


async def test_a_group_that_the_broker_does_not_know_yet_begins_by_reading(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 1)
    broker.plan(RequestCode.UPDATE_CONSUMER_OFFSET, refuse(26, "Group g not exist!"))
    async with Consumer(cluster.namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        assert (await anext(consumer)).body == b"0"
        await consumer.commit()
    assert broker.ledger.offsets["T", "g", 0] == 1
