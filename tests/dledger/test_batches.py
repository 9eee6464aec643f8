"""Batches in a Raft log: an entry for each message, as if it had come alone."""

from pathlib import Path

from ledgermq.message.batch import cut_batch, encode_batch
from ledgermq.message.record import decode_record, record_size
from store.log.drafts import BatchDraft
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import until
from tests.dledger.test_raft_log import Make
from tests.store.support import Outcomes


def batch_of(queue: ConsumeQueue, *bodies: bytes) -> BatchDraft:
    body = encode_batch([(number, body, b"K\x01v\x02") for number, body in enumerate(bodies)])
    cuts, texts = cut_batch(body)
    sizes = [record_size(len(body), len(queue.topic_bytes), 4, 0, v2=False) for body in bodies]
    draft = BatchDraft(body, cuts, texts, [0] * len(bodies), sizes)
    draft.topic, draft.queue_id, draft.queue, draft.tally = queue.topic_bytes, queue.queue_id, queue, None
    draft.sys_flag, draft.born_timestamp, draft.born_host = 0, 1_700_000_000_000, bytes(8)
    draft.reconsume_times, draft.queue_offset = 0, 7
    return draft


async def test_a_batch_has_an_entry_for_each_message_on_every_member(raft_cluster: Make, tmp_path: Path) -> None:
    cluster = raft_cluster()
    await cluster.start()
    leader = await cluster.elected()
    batch = batch_of(ConsumeQueue("Topic", 0, tmp_path / "queue", 10), b"a", b"", b"ccc")
    outcomes = Outcomes()
    log = cluster.logs[leader]
    log.append([batch], outcomes)
    await until(lambda: bool(outcomes.all), "an outcome")
    assert isinstance(outcomes.all[0], AppendReceipt)
    await cluster.caught_up()
    offsets = batch.physical_offsets()
    records = [decode_record(log.read(at, size)) for at, size in zip(offsets, batch.sizes, strict=True)]
    assert [(record.queue_offset, record.flag) for record in records] == [(7, 0), (8, 1), (9, 2)]
    assert {record.properties for record in records} == {b"K\x01v\x02"}
    for node_id in cluster.logs:
        assert cluster.bodies(node_id) == [b"a", b"", b"ccc"]
