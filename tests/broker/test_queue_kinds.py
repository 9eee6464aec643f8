"""Topics with batch queues, and light queues, as clients meet them."""

import shutil

import pytest

from cli.main import main
from ledgermq.message.batch import encode_batch
from ledgermq.message.flags import INNER_BATCH, NEED_UNWRAP
from ledgermq.message.properties import decode_properties
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from store.queues.batch_queue import BatchQueue
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    make_topic,
    pull_fields,
    send,
    send_fields,
    topic_fields,
)

BODY = encode_batch([(0, b"one", b"TAGS\x01a\x02"), (0, b"two", b""), (0, b"three", b"")])
BATCH_TOPIC = topic_fields("T", attributes="+queue.type=BatchCQ")


async def make_batch_topic(client: MemoryClient) -> None:
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, BATCH_TOPIC)).code == 0


async def send_batch(client: MemoryClient, **changes: str) -> dict[str, str]:
    fields = send_fields(m="true", i="UNIQ_KEY\x01K1\x02", **changes)
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, BODY)
    assert answer.code == 0, answer
    return dict(answer.ext)


async def test_a_batch_to_a_batch_topic_stays_one_record_and_takes_an_offset_a_message(
    desk: Desk, client: MemoryClient
) -> None:
    await make_batch_topic(client)
    first = await send_batch(client)
    await send(client, b"single")
    second = await send_batch(client)
    assert isinstance(desk.store.queues.get("T", 0), BatchQueue)
    assert (first["queueOffset"], second["queueOffset"], first["batchUniqId"]) == ("0", "4", "K1")
    answer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=1))
    assert answer.code == 0
    records = list(decode_records(memoryview(answer.body)))
    assert [record.queue_offset for record in records] == [0, 3, 4]
    assert [bytes(record.body) for record in records] == [BODY, b"single", BODY]
    assert records[0].sys_flag & (INNER_BATCH | NEED_UNWRAP) == INNER_BATCH | NEED_UNWRAP
    assert decode_properties(records[0].properties)["INNER_NUM"] == "3"
    assert decode_properties(records[2].properties)["INNER_BASE"] == "4"
    assert answer.ext["nextBeginOffset"] == "7"
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})).ext["offset"] == "7"


@pytest.mark.parametrize("save_tables", [True, False])
async def test_batch_queues_survive_a_restart(desk: Desk, client: MemoryClient, save_tables: bool) -> None:
    await make_batch_topic(client)
    await send_batch(client)
    await desk.stop(save_tables=save_tables)
    (desk.config.store.root / "checkpoint").unlink()
    await desk.start()
    queue = desk.store.queues.get("T", 0)
    assert isinstance(queue, BatchQueue)
    assert (queue.min_offset, queue.max_offset) == (0, 3)
    assert (await send_batch(desk.client()))["queueOffset"] == "3"


async def test_batch_queues_whose_files_were_lost_are_made_again_before_their_tables_are_read(
    desk: Desk, client: MemoryClient
) -> None:
    """Their messages were dispatched while it was not known what kind of queue the topic has."""
    await make_batch_topic(client)
    await send_batch(client)
    await desk.stop(save_tables=False)
    root = desk.config.store.root
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "batchconsumequeue")
    await desk.start()
    queue = desk.store.queues.get("T", 0)
    assert isinstance(queue, BatchQueue)
    assert (queue.min_offset, queue.max_offset) == (0, 3)
    assert (await send_batch(desk.client()))["queueOffset"] == "3"


async def test_other_topics_take_no_records_with_messages_inside(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    fields = send_fields(f=str(INNER_BATCH), i="UNIQ_KEY\x01K1\x02INNER_NUM\x013\x02")
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, BODY)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    await send_batch(client)
    assert desk.store.queues.get("T", 0).max_offset == 3


@pytest.mark.parametrize("desk", [{"enableMultiDispatch": True, "enableLmq": True}], indirect=True)
async def test_a_message_is_pulled_from_every_light_queue_that_it_names(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, b"both", i="UNIQ_KEY\x01K\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02")
    await send(client, b"one", i="UNIQ_KEY\x01K\x02INNER_MULTI_DISPATCH\x01%LMQ%b\x02")
    for topic, bodies in (("T", [b"both", b"one"]), ("%LMQ%a", [b"both"]), ("%LMQ%b", [b"both", b"one"])):
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(topic))
        assert answer.code == 0, topic
        assert [bytes(record.body) for record in decode_records(memoryview(answer.body))] == bodies
    assert (await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert desk.store.queues.get("%LMQ%b", 0).max_offset == 2


@pytest.mark.parametrize("desk", [{"enableMultiDispatch": True, "enableLmq": True}, {}], indirect=True)
@pytest.mark.parametrize("level", ["", "TIMER_DELAY_SEC\x0150\x02", "DELAY\x013\x02"])
async def test_a_sender_chooses_no_offset_in_a_light_queue(
    desk: Desk, client: MemoryClient, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_topic(client)
    properties = f"UNIQ_KEY\x01K\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x017\x02{level}"
    await send(client, b"one", i=properties)
    if not level:
        batch = encode_batch([(0, b"x", properties.encode()), (0, b"y", b"UNIQ_KEY\x01L\x02")])
        assert (await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(), batch)).code == 0
    queue = desk.store.queues.find("%LMQ%a", 0)
    assert (queue.max_offset if queue is not None else 0) == (2 if desk.config.store.kinds.light and not level else 0)
    await desk.stop()
    assert main(["store", "check", str(desk.config.store.root)]) == 0, capsys.readouterr().out
    await desk.start()


@pytest.mark.parametrize("desk", [{"enableMultiDispatch": True, "enableLmq": True}], indirect=True)
async def test_a_light_queue_has_a_transactions_message_once_and_only_when_it_is_committed(
    desk: Desk, client: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_topic(client)
    for key, decision in (("rolled back", 12), ("committed", 8)):
        half = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        sent = await send(client, key.encode(), i=half)
        assert desk.store.queues.find("%LMQ%a", 0) is None
        fields = {
            "topic": "T",
            "producerGroup": "g",
            "msgId": key,
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
            "commitOrRollback": str(decision),
        }
        assert (await client.ask(RequestCode.END_TRANSACTION, fields)).code == 0

    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
    (record,) = [record for record in desk.records() if record.topic == "T"]
    fields = {"group": "g", "offset": str(record.physical_offset), "delayLevel": "-1", "originTopic": "T"}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    (dead,) = [record for record in desk.records() if record.topic == "%DLQ%g"]
    assert "INNER_MULTI_QUEUE_OFFSET" not in dead.property_map
    await desk.stop()
    root = desk.config.store.root
    assert main(["store", "check", str(root)]) == 0, capsys.readouterr().out
    shutil.rmtree(root / "consumequeue")
    await desk.start()
    answer = await desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields("%LMQ%a"))
    assert [bytes(record.body) for record in decode_records(memoryview(answer.body))] == [b"committed"]


LONG = ",".join(f"%LMQ%{number:04}" + "n" * 15 for number in range(1300))
"""With offsets in these the properties are too long."""


@pytest.mark.parametrize(
    "desk",
    [{"enableMultiDispatch": True, "enableLmq": True, "maxLmqConsumeQueueNum": most} for most in (0, 2000)],
    indirect=True,
)
@pytest.mark.parametrize(
    "delay", ["DELAY\x011\x02", "TIMER_DELAY_MS\x01500\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02"]
)
async def test_a_message_that_cannot_enter_its_light_queues_any_more_is_delivered_all_the_same(
    desk: Desk, client: MemoryClient, delay: str
) -> None:
    """Otherwise no later message of its delay level would ever be delivered, nor a transaction be committed."""
    await make_topic(client)
    names = LONG if desk.config.store.kinds.light_max else "%LMQ%a"
    sent = await send(client, b"first", i=f"UNIQ_KEY\x01k\x02{delay}INNER_MULTI_DISPATCH\x01{names}\x02")
    if "TRAN" in delay:
        fields = {
            "topic": "T",
            "producerGroup": "g",
            "msgId": "k",
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
            "commitOrRollback": "8",
        }
        assert (await client.ask(RequestCode.END_TRANSACTION, fields)).code == 0
    else:
        await send(client, b"second", i=f"UNIQ_KEY\x01l\x02{delay}")
    bodies = {b"first"} if "TRAN" in delay else {b"first", b"second"}
    await eventually(lambda: {bytes(record.body) for record in desk.records() if record.topic == "T"} == bodies)
    assert all("INNER_MULTI_QUEUE_OFFSET" not in record.property_map for record in desk.records())
    assert all(queue.next_offset == 0 for queue in desk.store.queues if queue.topic.startswith("%LMQ%"))


@pytest.mark.parametrize("desk", [{"enableMultiDispatch": True, "enableLmq": True}], indirect=True)
@pytest.mark.parametrize(
    "delay", ["", "DELAY\x011\x02", "TIMER_DELAY_MS\x01500\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02"]
)
@pytest.mark.parametrize("name", ["%LMQ%a/b", "%LMQ%" + "x" * 400])
async def test_no_message_is_taken_that_names_an_impossible_light_queue(
    desk: Desk, client: MemoryClient, delay: str, name: str
) -> None:
    await make_topic(client)
    fields = send_fields(i=f"UNIQ_KEY\x01k\x02{delay}INNER_MULTI_DISPATCH\x01{name}\x02")
    assert (await client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("desk", [{"enableMultiDispatch": True, "enableLmq": True}], indirect=True)
@pytest.mark.parametrize("name", ["theirs", "SCHEDULE_TOPIC_XXXX", "rmq_sys_ledgermq_state", "%RETRY%g", "%LMQ"])
async def test_a_message_enters_no_queue_of_another_topic_whatever_it_names(
    desk: Desk, client: MemoryClient, name: str
) -> None:
    await make_topic(client)
    before = len([record for record in desk.records() if record.topic == name])
    for names in (name, f"%LMQ%a,{name}"):
        properties = f"INNER_MULTI_DISPATCH\x01{names}\x02UNIQ_KEY\x01K\x02"
        answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(i=properties), b"x")
        assert (answer.code, name in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
        batch = encode_batch([(0, b"x", properties.encode())])
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(), batch)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    queue = desk.store.queues.find(name, 0)
    assert (queue.max_offset if queue is not None else 0) == before
    assert desk.store.queues.get("T", 0).max_offset == 0


async def test_without_the_keys_nothing_is_dispatched_further(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, b"one", i="UNIQ_KEY\x01K\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
    assert desk.store.queues.find("%LMQ%a", 0) is None
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields("%LMQ%a"))).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("count", ["9" * 5000, "999999"])
async def test_a_record_that_says_oddly_how_many_messages_it_has_is_one_to_the_doctor_as_to_the_queue(
    desk: Desk, client: MemoryClient, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_batch_topic(client)
    odd = {"i": f"UNIQ_KEY\x01K\x02INNER_NUM\x01{count}\x02", "f": str(INNER_BATCH)}
    assert (await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(**odd), b"x")).code == 0
    await make_topic(client, "D")
    await send(client, b"parked", topic="D", i=f"UNIQ_KEY\x01L\x02DELAY\x01{'9' * 5000}\x02")
    await desk.stop()
    main(["store", "check", str(desk.config.store.root)])
    said = capsys.readouterr().out
    assert ": no faults" in said, said
    await desk.start()


async def test_the_smallest_offset_of_an_empty_batch_queue_is_minus_1(client: MemoryClient) -> None:
    await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, BATCH_TOPIC)
    await make_topic(client, "plain")
    smallest = [
        (await client.ask(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": "0"})).ext["offset"]
        for topic in ("T", "plain")
    ]
    pulled = await client.ask(RequestCode.PULL_MESSAGE, pull_fields())
    assert (smallest, pulled.ext["minOffset"]) == (["-1", "0"], "-1")
