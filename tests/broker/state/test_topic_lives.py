"""Topics removed and made again: what belongs to the life before stays with it, on every node."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.log_follower import drop_stale_units
from broker.state.tables import StateChange
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.commit_log import CommitLog
from store.queues.queue_file import QueueFile
from store.queues.queue_table import QueueTable
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    make_topic,
    pull_fields,
    send,
    send_fields,
    small_config,
    topic_fields,
)
from tests.broker.delay.test_timer_messages import now_ms, send_timer
from tests.broker.groups.test_offsets import key, make_group
from tests.broker.pop.support import bodies, pop

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER


@contextlib.contextmanager
def nothing_commits(desk: Desk) -> Iterator[None]:
    """As while the log's quorum is slow: what is placed meanwhile is confirmed at the end."""
    log = desk.store.log
    assert isinstance(log, CommitLog)
    settle: Any = log.settle
    log.settle = lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del log.settle
        settle()


async def placed(desk: Desk, position: int) -> None:
    await eventually(lambda: desk.store.log.max_offset > position, "the log has more")


async def read_all(desk: Desk) -> list[tuple[int, bytes]]:
    answer = await desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields())
    return [(record.queue_offset, record.body) for record in decode_records(answer.body)] if answer.code == 0 else []


async def test_nothing_makes_a_topic_while_its_removal_is_undecided(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    for _ in range(3):
        await send(client, b"old")
    clients = [desk.client() for _ in range(5)]
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        removal = client.start(DELETE, {"topic": "T"})
        await placed(desk, end)
        answers = [
            await clients[0].ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T")),
            await clients[1].ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"refused"),
            await clients[2].ask(DELETE, {"topic": "T"}),
            await clients[3].ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3")),
        ]
    assert (await client.answer_to(removal)).code == 0
    busy, gone = ResponseCode.SYSTEM_BUSY, ResponseCode.TOPIC_NOT_EXIST
    assert [answer.code for answer in answers] == [busy, gone, busy, gone]
    await make_topic(client)
    await send(client, b"new")
    assert await read_all(desk) == [(0, b"new")]


async def test_a_retry_topic_is_not_made_while_its_removal_is_undecided(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    offset = int((await send(client, b"m")).ext["msgId"][16:], 16)
    fields = {"group": "g", "offset": str(offset), "delayLevel": "-1", "originMsgId": "x", "originTopic": "T"}
    fields |= {"unitMode": "false", "maxReconsumeTimes": "16"}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        removal = client.start(DELETE, {"topic": "%DLQ%g"})
        await placed(desk, end)
        assert (await desk.client().ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == ResponseCode.SYSTEM_BUSY
    assert (await client.answer_to(removal)).code == 0
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    assert [(queue.min_offset, queue.max_offset) for queue in desk.store.queues.of_topic("%DLQ%g")] == [(0, 1)]


@pytest.mark.parametrize(("cause", "is_undecided"), [(Cause.REPLICA_TIMEOUT, True), (Cause.DISK_FULL, False)])
async def test_a_removal_that_may_be_in_the_log_stays_undecided(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, cause: Cause, is_undecided: bool
) -> None:
    await make_topic(client)
    metadata = desk.parts.context.metadata
    monkeypatch.setattr(metadata, "_propose", lambda _, done: done(Refusal(cause, "slow")))
    metadata.remove_topics(["T"])
    assert (metadata.is_undecided("T"), metadata.topic("T") is None) == (is_undecided, is_undecided)
    metadata.applied(StateChange(topics={"T": None}))
    assert not metadata.is_undecided("T")


async def test_offsets_and_checkpoints_do_not_outlive_the_removal(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    for _ in range(5):
        await send(client, b"old")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
    taken = await pop(client, invisibleTime=60_000)
    assert taken.code == 0
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        report = desk.client()
        reported = report.start(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="5"))  # in the removal's turn
        removal = client.start(DELETE, {"topic": "T"})
        await placed(desk, end)
        desk.parts.context.offsets.commit("T", "g", 0, 4)  # one-way, as a pull brings it
        desk.parts.pop.progress.checkpoints.send_again(list(desk.parts.pop.progress.checkpoints._open))
        desk.parts.context.offsets.send()
    assert (await report.answer_to(reported)).code == 0
    assert (await client.answer_to(removal)).code == 0
    await desk.parts.context.offsets.drain()
    state = desk.parts.context.state
    assert ({name for name in state.offsets if name.startswith("T@")}, state.pop.checkpoints) == (set(), {})
    await make_topic(client)
    await send(client, b"new")
    assert bodies(await pop(client)) == [b"new"]


async def test_a_timer_that_was_made_ready_waits_until_the_removal_is_decided(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    for _ in range(3):
        await send(client, b"old")
    due = now_ms() + 1300
    await send_timer(client, b"timer", "K", TIMER_DELIVER_MS=due)
    await eventually(lambda: bool(desk.parts.delay.timer._due), "the timer is made ready")
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        removal = client.start(DELETE, {"topic": "T"})
        await placed(desk, end)
        end = desk.store.log.max_offset
        await eventually(lambda: now_ms() > due + 50)
        assert not desk.parts.delay.timer.delivered
    await client.answer_to(removal)
    await make_topic(client)
    await eventually(lambda: desk.parts.delay.timer.delivered == 1, "the timer comes")
    assert await read_all(desk) == [(0, b"timer")]


async def test_records_behind_a_removal_enter_the_queue_that_other_nodes_put_them_into(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    for _ in range(3):
        await send(client, b"old")
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        late = desk.client().start(RequestCode.SEND_MESSAGE_V2, send_fields(), b"late")
        await placed(desk, end)
        desk.store.queues.delete_topic("T")  # as the removal in front of it, were it dispatched now
        desk.parts.context.targets.forget()
    assert late
    (queue,) = desk.store.queues.of_topic("T")
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (3, 4, 4)
    assert (await send(client, b"next")).ext["queueOffset"] == "4"


@pytest.mark.parametrize("fresh", [0, 2])
async def test_stale_units_of_a_trimmed_queue_do_not_move_the_new_lifes_numbers(
    desk: Desk, client: MemoryClient, fresh: int
) -> None:
    await make_topic(client)
    for _ in range(3):
        await send(client, b"old")
    old = [record.physical_offset for record in desk.records() if record.topic == "T"]
    await client.ask(DELETE, {"topic": "T"})
    await make_topic(client)
    for _ in range(fresh):
        await send(client, b"new")
    new = [(record.physical_offset, record.size) for record in desk.records() if record.body == b"new"]
    queue = desk.store.queues.get("T", 0)
    queue.restart(30)  # as a trimmed log dispatches it again
    for number, position in enumerate(old, 30):
        queue.put(position, 100, 0, number)
    for number, (position, size) in enumerate(new):
        queue.put(position, size, 0, number)
    drop_stale_units(desk.store.queues, desk.parts.context.state)
    assert (queue.min_offset, queue.max_offset) == (0, fresh)
    queue.next_offset = queue.max_offset
    assert (await send(client, b"next")).ext["queueOffset"] == str(fresh)


async def test_an_install_ends_the_life_before_of_a_topic_made_again(desk: Desk, tmp_path: Path) -> None:
    other = Desk(small_config(tmp_path / "other"))
    await other.start()
    for each in (desk, other):
        await make_topic(each.client(), queues=2)
        for _ in range(3):
            await send(each.client(), b"old")
    deleted: list[str] = []
    client = desk.client()
    await client.ask(DELETE, {"topic": "T"})
    await make_topic(client, queues=2)
    await send(client, b"new", queue=1)
    other.store.queues.on_deleted.append(deleted.append)
    other.follower.restore(desk.follower.snapshot())
    queues = other.store.queues
    assert deleted == ["T"]
    assert [(queue.queue_id, queue.max_offset) for queue in queues.of_topic("T")] in ([(1, 0)], [(0, 0), (1, 0)])
    await other.stop()


def test_an_install_starts_queues_at_0_that_the_snapshot_does_not_name(desk: Desk) -> None:
    queue = desk.store.queues.get("T", 0)
    queue.put(0, 100, 0, 0)
    desk.store.queues.restart({"other": {0: 7}})
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    assert desk.store.queues.get("other", 0).max_offset == 7


@pytest.mark.parametrize("is_at_file_start", [False, True])
async def test_where_queues_go_on_after_an_install_is_durable(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, is_at_file_start: bool
) -> None:
    await make_topic(desk.client(), queues=2)
    synced: set[Path] = set()
    sync = QueueFile.sync

    def noting(file: QueueFile) -> None:
        sync(file)
        synced.add(file.path)

    monkeypatch.setattr(QueueFile, "sync", noting)
    queue = desk.store.queues.get("T", 0)
    start = queue.file_end(0) if is_at_file_start else 7
    snapshot = orjson.loads(desk.follower.snapshot()) | {"queueStarts": {"T": {"0": start}}}
    desk.follower.restore(orjson.dumps(snapshot))
    files = {path for path in (desk.config.store.root / "consumequeue" / "T").rglob("*") if path.is_file()}
    assert files
    assert files <= synced
    again = QueueTable(desk.config.store.root / "consumequeue", queue.file_end(0) * 20)
    again.load()
    queue = again.get("T", 0)
    queue.recover(desk.store.log.confirm_offset, scan=True)
    assert queue.max_offset == start
    again.close()
