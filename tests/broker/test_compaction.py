"""A compacted topic as clients see it: what may be sent there, what is pulled before and after compaction."""

import pytest

from ledgermq.message.batch import encode_batch
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from store.log.flusher import FlushMode
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
from tests.broker.pop.support import bodies, pop

small_files = pytest.mark.parametrize(
    "desk",
    [{"compactionMappedFileSize": 1, "compactionCqMappedFileSize": 46 * 8, "flushDiskType": FlushMode.SYNC}],
    indirect=True,
)


async def make_compacted(client: MemoryClient) -> None:
    ext = topic_fields("T", 1, attributes="+cleanup.policy=COMPACTION")
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


async def send_rounds(client: MemoryClient, count: int) -> dict[str, bytes]:
    for number in range(count):
        await send(client, b"%d" % number, i=f"KEYS\x01k{number % 5}\x02")
    return {f"k{number % 5}": b"%d" % number for number in range(count)}


async def pull_all(client: MemoryClient) -> list[tuple[str, bytes]]:
    """Key and body of all that a consumer gets who begins at 0."""
    found: list[tuple[str, bytes]] = []
    offset = "0"
    while True:
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=offset))
        if answer.code != 0:
            return found
        found += [(" ".join(record.keys), record.body) for record in decode_records(answer.body)]
        offset = answer.ext["nextBeginOffset"]


async def compact(desk: Desk) -> None:
    compaction = desk.store.compaction
    assert compaction is not None
    queue = desk.store.queues.get("T", 0)

    def is_copied() -> bool:
        found = compaction.log_of("T", 0)
        return found is not None and found.end_offset == queue.max_offset

    await eventually(is_copied, "all messages being copied")
    await compaction.compact()


@small_files
async def test_a_consumer_gets_the_last_message_of_each_key(desk: Desk) -> None:
    client = desk.client()
    await make_compacted(client)
    expected = await send_rounds(client, 60)
    assert len(await pull_all(client)) == 60
    await compact(desk)
    found = await pull_all(client)
    assert len(found) < 20
    assert dict(found) == expected
    await send(client, b"live", i="KEYS\x01k0\x02")
    assert (await pull_all(client))[-1] == ("k0", b"live")
    answer = await client.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"})
    assert int(answer.ext["offset"]) > 0


@small_files
@pytest.mark.parametrize("save_tables", [True, False])
async def test_it_is_compacted_still_after_a_restart(desk: Desk, save_tables: bool) -> None:
    client = desk.client()
    await make_compacted(client)
    expected = await send_rounds(client, 60)
    await compact(desk)
    before = await pull_all(client)
    await desk.stop(save_tables=save_tables)
    await desk.start()
    assert await pull_all(desk.client()) == before
    assert dict(before) == expected


@small_files
async def test_a_topic_made_again_begins_empty(desk: Desk) -> None:
    client = desk.client()
    await make_compacted(client)
    await send_rounds(client, 30)
    await compact(desk)
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await make_compacted(client)
    assert await pull_all(client) == []
    await send(client, b"new", i="KEYS\x01n\x02")
    await compact(desk)
    assert await pull_all(client) == [("n", b"new")]


@pytest.mark.parametrize("properties", ["", "TAGS\x01t\x02", "KEYS\x01 \x02"])
async def test_a_message_without_a_key_is_refused_by_a_compacted_topic(
    desk: Desk, client: MemoryClient, properties: str
) -> None:
    await make_compacted(client)
    before = desk.store.log.max_offset
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(i=properties), b"x")
    assert (answer.code, answer.remark) == (13, "Required message key is missing")
    body = encode_batch([(0, b"x", b"KEYS\x01k\x02"), (0, b"y", properties.encode())])
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), body)
    assert (answer.code, answer.remark) == (13, "Required message key is missing")
    assert desk.store.log.max_offset == before


@small_files
async def test_a_message_without_a_body_removes_its_key(desk: Desk) -> None:
    client = desk.client()
    await make_compacted(client)
    await send(client, b"x", i="KEYS\x01gone\x02")
    await send(client, b"", i="KEYS\x01gone\x02")
    await send_rounds(client, 20)
    await compact(desk)
    assert "gone" not in dict(await pull_all(client))


async def test_other_topics_take_messages_without_a_key(client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, b"x")


@pytest.mark.parametrize("desk", [{"enableCompaction": False}], indirect=True)
async def test_switched_off_a_compacted_topic_is_served_as_others_are(desk: Desk) -> None:
    client = desk.client()
    await make_compacted(client)
    await send_rounds(client, 10)
    assert desk.store.compaction is None
    assert len(await pull_all(client)) == 10


@small_files
async def test_pop_takes_from_the_other_queues_while_one_lacks_its_kept_messages(desk: Desk) -> None:
    client = desk.client()
    ext = topic_fields("T", 2, attributes="+cleanup.policy=COMPACTION")
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    for queue_id in (0, 1):
        await send(client, b"in %d" % queue_id, e=queue_id, i="KEYS\x01k\x02")
    compaction = desk.store.compaction
    assert compaction is not None
    compaction.begin_anew({"T": {0: 1}})
    for number in range(8):  # queues are taken from in an order drawn at random
        answer = await pop(client, consumerGroup=f"g{number}", initMode=0)
        assert bodies(answer) == [b"in 1"]
    refused = await pop(client, consumerGroup="g", queueId=0)
    assert refused.code != 0
    assert "lacks the kept messages of T/0" in (refused.remark or "")
