"""What a broker knows beyond messages, after a stop, after a crash, and handed to another node."""

from pathlib import Path

import orjson
import pytest

from broker.log_follower import replay
from broker.state import names
from broker.state.files import OFFSETS_FILE, STATE_FILE, TOPICS_FILE, StateWriter, load_state
from broker.state.tables import ReplicatedState, StateFormatError
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from store.errors import StoreFormatError
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send, small_config
from tests.broker.groups.test_offsets import key, make_group


async def fill(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client, "T", 2)
    await make_topic(client, "gone")
    await make_group(client)
    await send(client, b"one")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
    await desk.parts.context.offsets.drain()


def picture(desk: Desk) -> tuple[object, ...]:
    state = desk.parts.context.state
    versions = state.topic_version, state.group_version
    return state.topics, state.groups, state.offsets, versions, state.applied_offset


@pytest.mark.parametrize("save_tables", [True, False], ids=["tables saved", "log only"])
async def test_topics_groups_and_offsets_are_there_after_a_restart(desk: Desk, save_tables: bool) -> None:
    await fill(desk)
    before = picture(desk)
    await desk.stop(save_tables=save_tables)
    await desk.start()
    assert picture(desk) == before
    client = desk.client()
    assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, key())).ext == {"offset": "1"}
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields())).code == 0
    assert (await send(client, b"two")).ext["queueOffset"] == "1"


async def test_a_restart_replays_only_what_the_tables_do_not_have(desk: Desk) -> None:
    await fill(desk)
    await desk.stop()
    await desk.start()
    assert replay(desk.store, desk.parts.context.state) == 0
    await make_topic(desk.client(), "late")
    await desk.stop(save_tables=False)
    await desk.start()
    assert "late" in desk.parts.context.state.topics
    queue = desk.store.queues.get(names.STATE_TOPIC, 0)
    saved = load_state(desk.config.store.root / "config").applied_offset
    assert len(list(desk.store.reader.records_from(queue, saved))) == 1


@pytest.mark.parametrize("fresh", [0, 1, 5])
async def test_when_the_log_is_dispatched_again_a_removed_topic_stays_removed(
    desk: Desk, client: MemoryClient, fresh: int
) -> None:
    for topic in ("T", "gone"):
        await make_topic(client, topic)
        for _ in range(3):
            await send(client, b"old", topic=topic)
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    await make_topic(client)
    for _ in range(fresh):
        await send(client, b"new")
    await desk.stop()
    for path in (desk.config.store.root / "checkpoint", *(desk.config.store.root / "consumequeue").rglob("0" * 20)):
        path.unlink()  # as if a crash had lost the queues: all of the log is dispatched again
    await desk.start()
    queue = desk.store.queues.get("T", 0)
    assert (queue.min_offset, queue.max_offset) == (0, fresh)
    assert desk.store.queues.of_topic("gone") == []
    answer = await desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields())
    assert [record.body for record in decode_records(answer.body)] == [b"new"] * fresh
    assert (await send(desk.client(), b"next")).ext["queueOffset"] == str(fresh)


async def test_a_snapshot_makes_another_node_know_the_same(desk: Desk, tmp_path: Path) -> None:
    await fill(desk)
    other = Desk(small_config(tmp_path / "other", broker_name="other"))
    await other.start()
    await make_topic(other.client(), "own")
    other.follower.restore(desk.follower.snapshot())
    assert load_state(other.config.store.root / "config").offsets == desk.parts.context.state.offsets
    assert picture(other) == picture(desk)
    answer = await other.client().ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = orjson.loads(answer.body)["topicConfigTable"]
    assert "T" in table
    assert "own" not in table
    await other.stop()


@pytest.mark.parametrize("snapshot", [b"", b"{}", b'{"queueStarts":[],"tables":{}}', b'{"queueStarts":{},"tables":{}}'])
async def test_what_is_no_snapshot_changes_nothing(desk: Desk, snapshot: bytes) -> None:
    await fill(desk)
    before = picture(desk)
    with pytest.raises(StateFormatError):
        desk.follower.restore(snapshot)
    assert picture(desk) == before


async def test_a_state_record_that_cannot_be_read_is_skipped_and_counted(desk: Desk, client: MemoryClient) -> None:
    context = desk.parts.context
    context.appender.add(context.drafts.state(b'{"topics":{"T":{"perm":"six"}}}'))
    await eventually(lambda: desk.parts.context.state.skipped == 1)
    await make_topic(client)
    assert "T" in desk.parts.context.state.topics


# ---- files


def test_files_read_back_as_they_were_written(tmp_path: Path) -> None:
    state = ReplicatedState()
    state.offsets = {"T@g": {0: 5}}
    state.applied_offset = 77
    StateWriter(tmp_path).write(state)
    loaded = load_state(tmp_path)
    assert (loaded.offsets, loaded.applied_offset) == ({"T@g": {0: 5}}, 77)


def test_a_missing_main_file_is_taken_from_its_backup_and_the_whole_log_replayed(tmp_path: Path) -> None:
    state = ReplicatedState()
    state.offsets = {"T@g": {0: 5}}
    state.applied_offset = 77
    StateWriter(tmp_path).write(state)
    StateWriter(tmp_path).write(state)
    (tmp_path / OFFSETS_FILE).unlink()
    loaded = load_state(tmp_path)
    assert (loaded.offsets, loaded.applied_offset) == ({"T@g": {0: 5}}, 0)


def test_behind_a_broken_main_file_the_whole_log_is_replayed(tmp_path: Path) -> None:
    state = ReplicatedState()
    state.applied_offset = 77
    StateWriter(tmp_path).write(state)
    StateWriter(tmp_path).write(state)
    (tmp_path / TOPICS_FILE).write_bytes(b'{"topicConfigTa')
    assert load_state(tmp_path).applied_offset == 0


def test_tables_of_a_java_broker_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / TOPICS_FILE).write_text(
        '{\n\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},\n\t"topicConfigTable":{"TopicTest":'
        '{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8}}}'
    )
    (tmp_path / OFFSETS_FILE).write_text(
        '{"groupTopicMap":{"G":["TopicTest"]},"offsetTable":{"TopicTest@G":{0:123,1:45}}}'
    )
    state = load_state(tmp_path)
    assert state.topics["TopicTest"].read_queues == 8
    assert state.offsets == {"TopicTest@G": {0: 123, 1: 45}}
    assert (state.topic_version.counter, state.applied_offset) == (2, 0)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        (STATE_FILE, '{"format":2,"appliedOffset":5}', "format"),
        (STATE_FILE, '{"format":1,"appliedOffset":"x"}', "appliedOffset"),
        (TOPICS_FILE, "not json", "topics.json"),
        (TOPICS_FILE, "[]", "topics.json"),
        (TOPICS_FILE, '{"topicConfigTable":{"T":{"topicName":"T","perm":"six"}}}', "perm"),
    ],
)
def test_a_file_that_is_not_ours_to_read_is_refused_by_name(tmp_path: Path, name: str, content: str, part: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(StoreFormatError, match=part):
        load_state(tmp_path)
