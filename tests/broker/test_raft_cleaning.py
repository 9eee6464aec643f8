"""A Raft group that cleans its logs while a member is away: tables, queue numbers and messages are whole again."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.admin.transfer import TRANSFER_LEADERSHIP
from broker.passing.kept_messages import KeptFetch
from broker.state.files import load_state
from broker.state.saver import StateSaver
from dledger.config import PeerAddress
from ledgermq.message.batch import encode_batch
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from node.broker_assembly import Broker
from store.log.flusher import FlushMode
from store.queues.batch_queue import BatchQueue
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_offsets import key
from tests.broker.test_broker import ask, broker_config
from tests.broker.test_raft_brokers import Group
from tests.limits import WAIT_S
from tests.ports import free_ports

BATCH = encode_batch([(0, b"in", b""), (0, b"side", b"")])
FILE_SIZE = 32_768


COMPACTED: dict[str, Any] = {
    "enableCompaction": True,
    "compactionMappedFileSize": 5 * 4600,
    "compactionCqMappedFileSize": 4600,
}


def config_of(root: Path, node_id: str, peers: tuple[PeerAddress, ...], **more: Any) -> Any:
    return broker_config(
        root / node_id,
        enableDLegerCommitLog=True,
        flushDiskType=FlushMode.SYNC,
        dLegerGroup="b",
        dLegerSelfId=node_id,
        dLegerPeers=peers,
        raftElectionTimeout=1500,
        slaveTimeout=60_000,
        mappedFileSizeCommitLog=FILE_SIZE,
        max_message_size_bytes=8000,
        mappedFileSizeConsumeQueue=200,
        flushConsumeQueueThoroughInterval=100,
        cleanResourceInterval=100,
        deleteCommitLogFilesInterval=0,
        deleteConsumeQueueFilesInterval=0,
        consumer_offset_persist_interval_ms=50,
        **{"enableCompaction": False, **more},
    )


def configs_of_three(root: Path, **more: Any) -> dict[str, Any]:
    """The configurations of a group's members, by id."""
    peers = tuple(PeerAddress(f"n{n}", "127.0.0.1", port) for n, port in enumerate(free_ports(3)))
    return {peer.node_id: config_of(root, peer.node_id, peers, **more) for peer in peers}


async def send_keyed(group: Group, key_: str, body: bytes) -> None:
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields("C", i=f"KEYS\x01{key_}\x02"), body)


async def compact_all(group: Group) -> None:
    """Copy and compact topic C on each node."""

    def is_copied(broker: Broker) -> bool:
        store = broker.parts.context.store
        assert store.compaction is not None
        found = store.compaction.log_of("C", 0)
        return found is not None and found.end_offset == store.queues.get("C", 0).max_offset

    await group.everywhere(is_copied)
    for broker in group.brokers:
        assert broker.parts.context.store.compaction is not None
        await broker.parts.context.store.compaction.compact()


async def newest_of_keys(group: Group, broker: Broker) -> dict[str, bytes]:
    """What a consumer has who begins with the first message of topic C."""
    answer = await ask(group.client, broker, RequestCode.GET_MIN_OFFSET, {"topic": "C", "queueId": "0"})
    newest: dict[str, bytes] = {}
    offset = int(answer.ext["offset"])
    while (
        answer := await ask(group.client, broker, RequestCode.PULL_MESSAGE, pull_fields("C", offset=offset))
    ).code == 0:
        newest |= {record.keys[0]: bytes(record.body)[:4] for record in decode_records(answer.body)}
        offset = int(answer.ext["nextBeginOffset"])
    assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
    return newest


async def hand_over(group: Group, to: Broker, node_id: str) -> None:
    """Let a member lead; it is asked for again while it recovers, or its log is not level yet."""
    async with asyncio.timeout(WAIT_S):
        while not to.parts.context.role.writable:
            if any(broker.parts.context.role.writable for broker in group.brokers):
                answer = await ask(group.client, group.leader, TRANSFER_LEADERSHIP, {"target": node_id})
                assert answer.code == 0 or answer.ext["cause"] in ("busy", "not-leader", "recovering"), answer
            await asyncio.sleep(0.05)


async def fill(group: Group, count: int) -> None:
    for number in range(count):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"%04d" % number + bytes(4000))


async def clean(group: Group, broker: Broker) -> int:
    """Let a node drop all old files it may; the log's new beginning."""
    log = broker.parts.context.store.log
    for path, _ in log.sealed_files():
        os.utime(path, (0, 0))
    assert (await ask(group.client, broker, RequestCode.DELETE_EXPIRED_COMMITLOG, {})).code == 0
    await eventually(lambda: not log.sealed_files(), "old files gone")
    queue = broker.parts.context.store.queues.get("T", 0)
    await eventually(lambda: _first_place(broker) >= log.min_offset, f"{queue!r} corrected")
    return log.min_offset


def _first_place(broker: Broker) -> int:
    queue = broker.parts.context.store.queues.get("T", 0)
    unit = queue.unit(queue.min_offset)
    return unit[0] if unit is not None else broker.parts.context.store.log.min_offset


@pytest.mark.parametrize("wiped", [False, True])
async def test_a_member_that_was_away_while_logs_were_cleaned_is_given_what_is_left(
    tmp_path: Path, wiped: bool
) -> None:
    configs = configs_of_three(tmp_path)
    brokers = {node_id: Broker(config) for node_id, config in configs.items()}
    group = Group(list(brokers.values()), RemotingClient())
    try:
        for broker in group.brokers:
            await broker.start()
        await group.led()
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
        batch_topic = topic_fields("B", attributes="+queue.type=BatchCQ")
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, batch_topic)
        batch_fields = send_fields("B", m="true", i="UNIQ_KEY\x01K\x02")
        await group.ask_leader(RequestCode.SEND_BATCH_MESSAGE, batch_fields, BATCH)
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
        await fill(group, 3)
        await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
        await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 3)

        away = group.followers[0]
        away_id = next(node_id for node_id, broker in brokers.items() if broker is away)
        group.brokers.remove(away)
        await away.close()
        await fill(group, 60)
        begin = {broker: await clean(group, broker) for broker in group.brokers}
        leader = group.leader
        assert begin[leader] >= 4 * FILE_SIZE
        moved = await ask(group.client, leader, RequestCode.PULL_MESSAGE, pull_fields(offset=3))
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(moved.ext["nextBeginOffset"]) == leader.parts.context.store.queues.get("T", 0).min_offset > 3

        if wiped:
            for path in sorted((tmp_path / away_id).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        back = Broker(configs[away_id])
        group.brokers.append(back)
        await back.start()
        await eventually(lambda: back.parts.context.store.queues.get("T", 0).max_offset == 63, "caught up")
        assert back.parts.context.store.log.min_offset == begin[leader]
        assert back.parts.context.state.offsets.get("T@g") == {0: 3}
        assert "T" in back.parts.context.state.topics
        queues = [broker.parts.context.store.queues.get("T", 0) for broker in (leader, back)]
        assert queues[0].min_offset == queues[1].min_offset
        batches = back.parts.context.store.queues.get("B", 0)
        assert isinstance(batches, BatchQueue)
        assert (batches.min_offset, batches.max_offset) == (2, 2)
        answer = await ask(group.client, back, RequestCode.PULL_MESSAGE, pull_fields(offset=queues[1].min_offset))
        first = next(iter(decode_records(answer.body)))
        assert bytes(first.body)[:4] == b"%04d" % (queues[1].min_offset - 3)
        sent = await group.ask_leader(RequestCode.SEND_BATCH_MESSAGE, batch_fields, BATCH)
        assert sent.ext["queueOffset"] == "2"
        await group.everywhere(lambda broker: broker.parts.context.store.queues.get("B", 0).max_offset == 4)
    finally:
        await group.client.close()
        for broker in group.brokers:
            await broker.close()


@pytest.mark.parametrize("wiped", [False, True])
async def test_an_installed_member_that_leads_serves_what_the_others_kept_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wiped: bool
) -> None:
    configs = configs_of_three(tmp_path, **COMPACTED)
    brokers = {node_id: Broker(config) for node_id, config in configs.items()}
    group = Group(list(brokers.values()), RemotingClient())
    try:
        for broker in group.brokers:
            await broker.start()
        await group.led()
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
        attributes = "+cleanup.policy=COMPACTION"
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("C", attributes=attributes))
        await send_keyed(group, "removed", b"0000" + bytes(3000))
        await send_keyed(group, "old", b"once" + bytes(3000))
        await compact_all(group)

        away = group.followers[0]
        away_id = next(node_id for node_id, broker in brokers.items() if broker is away)
        group.brokers.remove(away)
        await away.close()
        await send_keyed(group, "removed", b"")
        for number in range(40):
            await send_keyed(group, f"k{number % 3}", b"%04d" % number + bytes(3000))
        await compact_all(group)
        await fill(group, 20)
        end = group.leader.parts.context.store.log.max_offset
        await group.everywhere(lambda broker: broker.parts.context.store.durable_offset == end)  # no file fills later
        for broker in group.brokers:
            await clean(group, broker)
            queue = broker.parts.context.store.queues.get("C", 0)
            assert queue.unit(queue.min_offset) is None, "all messages of C have left the log"
        expected = {"old": b"once", "k0": b"0039", "k1": b"0037", "k2": b"0038"}
        assert await newest_of_keys(group, group.leader) == expected

        if wiped:
            shutil.rmtree(tmp_path / away_id)
        may_fetch, run = asyncio.Event(), KeptFetch.run
        monkeypatch.setattr(KeptFetch, "run", lambda kept: run(kept) if may_fetch.is_set() else None)
        back = Broker(configs[away_id])
        group.brokers.append(back)
        await back.start()
        await eventually(lambda: back.parts.context.store.queues.get("T", 0).max_offset == 20, "caught up")
        store = back.parts.context.store
        assert store.compaction is not None
        await hand_over(group, back, away_id)
        assert store.compaction.missing == [("C", 0)]
        refused = await ask(group.client, back, RequestCode.PULL_MESSAGE, pull_fields("C"))
        assert (refused.code, refused.ext["cause"]) == (14, "recovering")
        first = await ask(group.client, back, RequestCode.GET_MIN_OFFSET, {"topic": "C", "queueId": "0"})
        assert first.ext["offset"] == "0"
        async with aiohttp.ClientSession(f"http://127.0.0.1:{back.health_port}") as http, http.get("/readyz") as page:
            assert (page.status, "lacks the kept messages" in await page.text()) == (503, True)
        may_fetch.set()
        await eventually(lambda: store.compaction is not None and not store.compaction.missing, "all is fetched")
        served = [broker for broker in group.brokers if broker is not back]
        await eventually(lambda: not any(broker.parts.passing._requests.members for broker in served), "they are left")
        await send_keyed(group, "new", b"last")
        assert await newest_of_keys(group, back) == {**expected, "new": b"last"}
    finally:
        await group.client.close()
        for broker in group.brokers:
            await broker.close()


@pytest.mark.parametrize("are_written", [False, True], ids=["tables-not-written", "tables-written"])
async def test_a_member_that_dies_inside_an_install_gets_the_leaders_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_written: bool
) -> None:
    configs = configs_of_three(tmp_path)
    brokers = {node_id: Broker(config) for node_id, config in configs.items()}
    group = Group(list(brokers.values()), RemotingClient())
    image, install = tmp_path / "image", StateSaver.install
    try:
        for broker in group.brokers:
            await broker.start()
        await group.led()
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
        await fill(group, 3)
        await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
        await group.everywhere(lambda broker: broker.parts.context.state.offsets.get("T@g") == {0: 1})
        away = group.followers[0]
        away_id = next(node_id for node_id, broker in brokers.items() if broker is away)
        group.brokers.remove(away)
        await away.close()
        await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("LATER"))
        await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
        await fill(group, 60)
        for broker in group.brokers:
            await clean(group, broker)

        def copied(saver: StateSaver) -> None:
            if are_written:
                install(saver)
            if not image.exists():
                shutil.copytree(tmp_path / away_id, image)  # what a kill leaves here
            install(saver)

        with monkeypatch.context() as patch:
            patch.setattr(StateSaver, "install", copied)
            back = Broker(configs[away_id])
            await back.start()
            await eventually(lambda: back.parts.context.store.queues.get("T", 0).max_offset == 63, "caught up")
            await back.close()
        assert load_state(tmp_path / away_id / "config").offsets.get("T@g") == {0: 3}
        shutil.rmtree(tmp_path / away_id)
        (image / "lock").unlink(missing_ok=True)
        image.rename(tmp_path / away_id)
        back = Broker(configs[away_id])
        group.brokers.append(back)
        await back.start()
        leader = group.leader
        ends = [broker.parts.context.store for broker in (leader, back)]
        await eventually(lambda: ends[0].dispatched_offset == ends[1].dispatched_offset, "caught up again")
        state = back.parts.context.state
        assert state.offsets.get("T@g") == {0: 3}
        assert "LATER" in state.topics
        queues = [store.queues.get("T", 0) for store in ends]
        assert [(queue.min_offset, queue.max_offset) for queue in queues[:1]] == [
            (queue.min_offset, queue.max_offset) for queue in queues[1:]
        ]
    finally:
        await group.client.close()
        for broker in group.brokers:
            await broker.close()
