"""Cleaning by an administrator's word (306, 316, 329), and what clients see of a log that has been cleaned."""

import asyncio
import os
from pathlib import Path

import pytest

from broker.admin.live_config import LiveConfig
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from node.broker_assembly import Broker
from node.keys import BROKER_KEYS
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    make_topic,
    pull_fields,
    send,
    send_fields,
    small_config,
)
from tests.broker.groups.test_offsets import make_group

SMALL_FILES = {
    "mappedFileSizeCommitLog": 8192,
    "max_message_size_bytes": 4000,
    "mappedFileSizeConsumeQueue": 200,
    "flushConsumeQueueThoroughInterval": 100,
    "cleanResourceInterval": 100,
    "deleteCommitLogFilesInterval": 0,
    "flushIntervalCommitLog": 10,
}
small_files = pytest.mark.parametrize("desk", [SMALL_FILES], indirect=True)


async def fill(desk: Desk, client: MemoryClient, count: int = 30) -> None:
    """Messages of about an eighth of a file of the log, durable."""
    for number in range(count):
        await send(client, b"%04d" % number + bytes(900))
    log = desk.store.log
    await eventually(lambda: len(log.sealed_files()) >= log.max_offset // 8192, "what is full is durable")


def age(desk: Desk, count: int) -> None:
    """Make the oldest files of the log old."""
    for path, _ in desk.store.log.sealed_files()[:count]:
        os.utime(path, (0, 0))


@small_files
async def test_expired_files_of_the_log_go_at_once_when_asked_for(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await fill(desk, client)
    age(desk, 2)
    answer = await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    assert answer.code == 0
    await eventually(lambda: desk.store.log.min_offset == 2 * 8192)
    queue = desk.store.queues.get("T", 0)
    await eventually(lambda: queue.min_offset > 10)


@small_files
async def test_the_cleaner_keeps_to_a_reserved_time_that_was_changed_while_the_broker_runs(
    desk: Desk, client: MemoryClient
) -> None:
    desk.config.insecure_settings = True
    live = LiveConfig(desk.config, BROKER_KEYS, lambda _: None, lambda _: None)
    desk.parts.handler.serve({RequestCode.UPDATE_BROKER_CONFIG: live.update})
    await make_topic(client)
    await fill(desk, client)
    assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    assert desk.store.log.min_offset == 0, "no file is as old as the default, 72 hours"
    assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=0")).code == 0
    assert (await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    await eventually(lambda: desk.store.log.min_offset > 0)


@small_files
async def test_a_pull_below_the_new_start_is_sent_there(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await fill(desk, client)
    age(desk, 2)
    await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    queue = desk.store.queues.get("T", 0)
    await eventually(lambda: queue.min_offset > 10)
    answer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=3))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext["nextBeginOffset"] == answer.ext["minOffset"] == str(queue.min_offset)
    answer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=queue.min_offset))
    assert answer.code == 0
    assert (await client.ask(RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": "0"})).ext["offset"] == str(
        queue.min_offset
    )


@small_files
async def test_topics_survive_the_loss_of_the_records_that_made_them(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await fill(desk, client)
    age(desk, 2)
    await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await eventually(lambda: desk.store.log.min_offset == 2 * 8192)
    await desk.stop()
    await desk.start()
    assert desk.store.log.min_offset == 2 * 8192
    client = desk.client()
    await send(client, b"after")
    queue = desk.store.queues.get("T", 0)
    assert queue.max_offset == 31


async def test_queues_of_topics_that_are_gone_are_removed(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    foreign = desk.store.queues.get("Foreign", 0)
    foreign.put(0, 100, 0, 0)
    answer = await client.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert answer.code == 0
    assert desk.store.queues.find("Foreign", 0) is None
    assert not (desk.store.queues.directory / "Foreign").exists()
    assert desk.store.queues.get("T", 0).max_offset == 1
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields())).code == 0


@small_files
async def test_expired_queues_of_topics_that_are_gone_are_removed(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    desk.store.queues.get("Foreign", 0).put(0, 100, 0, 0)
    await fill(desk, client)
    age(desk, 1)
    await client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await eventually(lambda: desk.store.log.min_offset == 8192)
    answer = await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert answer.code == 0
    assert desk.store.queues.find("Foreign", 0) is None
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})).ext["offset"] == "30"


async def test_a_full_disk_is_said_with_the_code_that_rocketmq_gives(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    desk.store.disk_full = "the broker's disk is 95 % full, more than 90 %"
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"hello")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark is not None
    assert "95 % full" in answer.remark
    await make_topic(client, "Another")  # topics are still made
    desk.store.disk_full = None
    await send(client)


async def test_a_broker_keeps_state_records_that_are_not_on_disk_yet(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    broker = Broker(config)
    await broker.start()
    try:
        assert broker._follower is not None
        needed = broker._follower.needed_of_log()
        assert needed <= broker.parts.context.store.dispatched_offset
        broker.parts.context.state.applied_offset += 1
        assert broker._saver is not None
        assert broker._follower.needed_of_log() == broker._saver.saved_offset
        broker.parts.context.state.applied_offset -= 1
    finally:
        await broker.close()


async def test_consumers_go_on_though_senders_never_rest_while_the_disk_is_full(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await make_group(client)
    await send(client)
    desk.store.disk_full = "the broker's disk is 95 % full, more than 90 %"
    report = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    client.give(Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=report, flag=ONEWAY_FLAG))
    asked: list[int] = []
    while desk.parts.context.state.offsets.get("T@g") != {0: 1} and len(asked) < 20_000:
        asked.append(client.start(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x"))
        await asyncio.sleep(0)
    assert desk.parts.context.state.offsets.get("T@g") == {0: 1}
    answers = [await client.answer_to(opaque) for opaque in asked]
    assert len({(answer.code, answer.remark) for answer in answers}) == 1
    desk.store.disk_full = None
    assert (await send(client)).code == 0
