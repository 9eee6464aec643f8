"""What a send puts on the wire, and what its result says."""

import asyncio

import pytest

from ledgermq.client import Outgoing, Producer, SendStatus
from ledgermq.client.errors import ClosedError, InvalidArgumentError
from ledgermq.message.properties import decode_properties
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.fake import FakeCluster, eventually, store_with_status


async def test_a_sent_message_is_stored_with_its_properties_and_the_result_says_where(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, group="p") as producer:
        result = await producer.send("T", b"body", tags="a", keys=["k1", "k2"], properties={"x": "y"})
    (record,) = broker.ledger.queues["T", 0]
    assert record.body == b"body"
    assert decode_properties(record.properties) == {
        "UNIQ_KEY": result.message_id,
        "TAGS": "a",
        "KEYS": "k1 k2",
        "x": "y",
    }
    assert (result.topic, result.broker, result.queue_id, result.queue_offset) == ("T", "b", 0, 0)
    assert (result.status, result.attempts) == (SendStatus.OK, 1)
    assert (result.term, result.copies, result.durable_copies) == (2, 3, 2)
    assert result.offset_message_id == record.offset_message_id


async def test_sends_go_round_the_queues_of_all_brokers(cluster: FakeCluster) -> None:
    await cluster.add("b1", topics={"T": 2})
    await cluster.add("b2", topics={"T": 2})
    async with Producer(cluster.namesrv) as producer:
        results = [await producer.send("T", b"x") for _ in range(8)]
    places = [(result.queue_id, result.broker) for result in results]
    assert places == [(0, "b1"), (0, "b2"), (1, "b1"), (1, "b2")] * 2


async def test_a_batch_is_one_request_to_one_queue_and_every_message_has_its_own_id(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    async with Producer(cluster.namesrv) as producer:
        results = await producer.send_batch("T", [b"1", Outgoing(b"2", tags="t"), b"3"])
    assert broker.count(RequestCode.SEND_BATCH_MESSAGE) == 1
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert len({result.queue for result in results}) == 1
    records = broker.ledger.queues["T", results[0].queue_id]
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in records] == [
        result.message_id for result in results
    ]
    assert records[1].tags == "t"
    assert [result.offset_message_id for result in results] == [record.offset_message_id for record in records]


async def test_one_way_sends_are_not_answered(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        for _ in range(10):
            await producer.send_oneway("T", b"x")
        await eventually(lambda: len(broker.ledger.bodies("T")) == 10)
    sends = [command for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2]
    assert all(command.is_oneway for command in sends)


async def test_one_way_sends_in_a_tight_loop_let_the_loop_turn(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        for _ in range(500):
            await producer.send_oneway("T", bytes(4096))
        assert broker.ledger.bodies("T"), "some have arrived before the last was sent"
        await eventually(lambda: len(broker.ledger.bodies("T")) == 500)


async def test_sends_under_way_together_arrive_in_the_order_of_the_calls(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"first")
        results = await asyncio.gather(*(producer.send("T", b"%d" % i) for i in range(500)))
    assert sorted(result.queue_offset for result in results) == list(range(1, 501))
    assert broker.ledger.bodies("T") == [b"first", *[b"%d" % i for i in range(500)]]


async def test_a_status_other_than_ok_is_a_result_and_not_an_error(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(RequestCode.SEND_MESSAGE_V2, store_with_status(10), store_with_status(12))
    async with Producer(cluster.namesrv) as producer:
        assert (await producer.send("T", b"x")).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert (await producer.send("T", b"x")).status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(broker.ledger.bodies("T")) == 2


async def test_an_unknown_topic_is_created_where_the_template_topic_is(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"TBW102": 8})
    async with Producer(cluster.namesrv) as producer:
        results = [await producer.send("New", b"x") for _ in range(4)]
    assert {result.queue_id for result in results} == {0, 1, 2, 3}
    assert {command.ext["c"] for command in broker.seen if command.code == RequestCode.SEND_MESSAGE_V2} == {"TBW102"}


async def test_queues_are_those_of_all_brokers_in_order(cluster: FakeCluster) -> None:
    await cluster.add("b2", topics={"T": 1})
    await cluster.add("b1", topics={"T": 2})
    async with Producer(cluster.namesrv) as producer:
        queues = await producer.queues("T")
        assert [(queue.broker, queue.queue_id) for queue in queues] == [("b1", 0), ("b1", 1), ("b2", 0)]
        assert (await producer.send("T", b"x", queue=queues[2])).queue == queues[2]
        assert (await producer.send("T", b"x", queue=1)).queue == queues[1]
        with pytest.raises(InvalidArgumentError, match="queue 3 of topic 'T': it has queues 0 to 2"):
            await producer.send("T", b"x", queue=3)


async def test_bad_messages_are_refused_before_anything_is_sent(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        for arguments, said in [
            ({"topic": "T", "body": b""}, "0 bytes"),
            ({"topic": "T", "body": "text"}, "str, not bytes"),
            ({"topic": "T", "body": bytes(4 * 1024 * 1024 + 1)}, "4194305 bytes"),
            ({"topic": "T T", "body": b"x"}, "topic 'T T'"),
            ({"topic": "T" * 128, "body": b"x"}, "128 characters"),
            ({"topic": "T", "body": b"x", "properties": {"UNIQ_KEY": "1"}}, "reserved by RocketMQ"),
            ({"topic": "T", "body": b"x", "properties": {"a": ""}}, "must not be empty"),
            ({"topic": "T", "body": b"x", "properties": {"a": "\x02"}}, "control character"),
            ({"topic": "T", "body": b"x", "properties": {"a": "x" * 32768}}, "at most 32767"),
            ({"topic": "T", "body": b"x", "queue": 0, "order_key": "k"}, "either names the queue"),
        ]:
            with pytest.raises(InvalidArgumentError, match=said):
                await producer.send(**arguments)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(InvalidArgumentError, match="no messages"):
            await producer.send_batch("T", [])
    assert not broker.count(RequestCode.SEND_MESSAGE_V2)


@pytest.mark.parametrize("namesrv", ["", "host", "host:", ":9876", "host:0", "host:99999", "host:9876;other"])
def test_a_malformed_nameserver_address_is_refused(namesrv: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Producer(namesrv)


async def test_a_producer_that_is_not_open_says_so(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    producer = Producer(cluster.namesrv)
    with pytest.raises(ClosedError):
        await producer.send("T", b"x")
    await producer.start()
    await producer.send("T", b"x")
    await producer.close()
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.send("T", b"x")


async def test_closing_lets_sends_under_way_finish(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        sends = [asyncio.ensure_future(producer.send("T", b"x")) for _ in range(50)]
        await asyncio.sleep(0)
    assert all(send.done() and send.exception() is None for send in sends)
    assert len(broker.ledger.bodies("T")) == 50


async def test_brokers_learn_of_the_producers_group_and_of_its_leaving(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, group="p") as producer:
        await producer.send("T", b"x")
        await eventually(lambda: bool(broker.beats))
    assert broker.beats[0]["producerDataSet"] == [{"groupName": "p"}]
    left = [command for command in broker.seen if command.code == RequestCode.UNREGISTER_CLIENT]
    assert left[0].ext == {"clientID": broker.beats[0]["clientID"], "producerGroup": "p"}
