"""Batches of messages: stored as if each had come alone, answered with the place of each, refused whole."""

import pytest

from broker.send.batches import plain_batch
from ledgermq.message.batch import cut_batch, encode_batch
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import BINARY_HEADER, Command
from store.log.drafts import BatchDraft
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, send_fields

GOOD = (0, b"good", b"UNIQ_KEY\x01G\x02WAIT\x01true")
WHOLE = "UNIQ_KEY\x01WHOLE\x02"


async def send_batch(client: MemoryClient, *messages: tuple[int, bytes, bytes], header_type: int = 0) -> Command:
    fields = send_fields(m="true", i=WHOLE)
    body = encode_batch(messages)
    return await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body, header_type=header_type)


@pytest.mark.parametrize(
    "properties",
    [
        b"UNIQ_KEY\x01K\x02WAIT\x01true\x02",
        b"UNIQ_KEY\x01K\x02WAIT\x01true",
        b"UNIQ_KEY\x01K\x02TAGS\x01old\x02TAGS\x01new",
        b"TAGS\x01\x02UNIQ_KEY\x01K\x02XTAGS\x01no\x02",
        b"UNIQ_KEY\x01K\x02CLUSTER\x01elsewhere\x02",
        b"UNIQ_KEY\x01K\x02POP_CK\x010 1 2\x02",
        b"UNIQ_KEY\x01K\x02DELAY\x010\x02",
        b"UNIQ_KEY\x01K\x02__SHARDINGKEY\x01s\x02",
    ],
)
async def test_a_message_of_a_batch_is_stored_as_if_it_had_come_alone(
    desk: Desk, client: MemoryClient, properties: bytes
) -> None:
    await make_topic(client)
    queue = desk.store.queues.get("T", 0)
    await send(client, b"body", h="5", i=properties.decode())
    await send_batch(client, (5, b"body", properties), GOOD)
    await eventually(lambda: queue.max_offset == 3)
    alone, batched = desk.records()[-3:-1]
    assert (batched.body, batched.flag, batched.properties) == (b"body", 5, alone.properties)
    assert (batched.size, batched.body_crc, batched.sys_flag) == (alone.size, alone.body_crc, alone.sys_flag)
    assert (batched.born_host, batched.store_host) == (alone.born_host, alone.store_host)
    assert (batched.queue_offset, batched.physical_offset) == (1, alone.physical_offset + alone.size)
    units = [queue.unit(offset) for offset in range(2)]
    assert [unit[2] for unit in units if unit] == [units[0][2]] * 2 if units[0] else False


@pytest.mark.parametrize("header_type", [0, BINARY_HEADER])
async def test_a_batch_is_answered_with_the_place_of_each_message(
    desk: Desk, client: MemoryClient, header_type: int
) -> None:
    await make_topic(client)
    await send_batch(client, GOOD)
    answer = await send_batch(client, GOOD, GOOD, GOOD, header_type=header_type)
    places = [parse_offset_message_id(text)[1] for text in answer.ext["msgId"].split(",")]
    assert places == [record.physical_offset for record in desk.records()[-3:]]
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "1")
    assert (answer.ext["transactionId"], answer.ext["copies"], answer.ext["TRACE_ON"]) == ("WHOLE", "1", "true")


async def test_batches_and_single_messages_of_one_turn_lie_in_the_order_in_which_they_came(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    batch = send_fields(m="true", i=WHOLE)
    client.give(
        Command(310, 101, ext=send_fields(), body=b"a"),
        Command(320, 102, ext=batch, body=encode_batch([(0, b"b", b""), (0, b"c", b"")])),
        Command(310, 103, ext=send_fields(), body=b"d"),
        Command(320, 104, ext=batch, body=encode_batch([(0, b"e", b"DELAY\x010\x02")])),
    )
    offsets = [(await client.answer_to(opaque)).ext["queueOffset"] for opaque in (101, 102, 103, 104)]
    assert offsets == ["0", "1", "3", "4"]
    assert [record.body for record in desk.records()[-5:]] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        ((0, b"x", b"DELAY\x013\x02"), "property DELAY"),
        ((0, b"x", b"A\x01b\x02TRAN_MSG\x01true"), "property TRAN_MSG"),
        ((0, b"x", b"TIMER_DELIVER_MS\x0199\x02"), "property TIMER_DELIVER_MS"),
        ((0, b"x", b"p\x01" + b"x" * 32760 + b"\x02"), "Properties have 32"),
    ],
)
async def test_one_bad_message_among_good_ones_refuses_the_whole_batch(
    desk: Desk, client: MemoryClient, bad: tuple[int, bytes, bytes], part: str
) -> None:
    await make_topic(client)
    before = desk.store.log.max_offset
    answer = await send_batch(client, GOOD, GOOD, bad, GOOD)
    assert answer.code == 13
    assert part in (answer.remark or "")
    assert desk.store.log.max_offset == before
    assert (await send_batch(client, GOOD)).ext["queueOffset"] == "0"


async def test_every_message_of_a_batch_is_counted(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    counting = desk.parts.context.counting
    counting.calls.settle()
    before = sum(counting.calls.appends.spread().values())
    await send_batch(client, *[GOOD] * 5)
    await send(client)
    counting.calls.settle()
    assert counting.arrivals.messages == 6
    assert counting.arrivals.size_bytes == sum(record.size for record in desk.records()[-6:])
    assert sum(counting.calls.appends.spread().values()) == before + 6


def test_a_plain_batch_is_one_draft_and_any_other_is_looked_at_message_by_message(desk: Desk) -> None:
    target = desk.parts.context.targets.target("T", 0)

    def made(*messages: tuple[int, bytes, bytes], record_max: int = 1000) -> BatchDraft | None:
        body = encode_batch(messages)
        return plain_batch(target, body, *cut_batch(body), b"MARK\x01m\x02", target.overhead, record_max)

    batch = made(GOOD, (7, b"", b""))
    assert batch is not None
    assert batch.texts == [GOOD[2] + b"\x02MARK\x01m\x02", b"MARK\x01m\x02"]
    assert batch.sizes == [target.overhead + 4 + len(batch.texts[0]), target.overhead + 7]
    assert batch.size == sum(batch.sizes)
    for own in (b"DELAY\x011", b"WAIT\x01true\x02CLUSTER\x01c\x02", b"TRAN_MSG\x01true", b"__SHARDINGKEY\x01s"):
        assert made(GOOD, (0, b"x", own)) is None
    assert made(GOOD) is None
    assert made(GOOD, GOOD, record_max=batch.sizes[0]) is not None
    assert made(GOOD, GOOD, record_max=batch.sizes[0] - 1) is None
