"""The tables' files between a Java broker and this one: taken over, written back, and written by Java in between."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.state.files import (
    DELAY_FILE,
    GROUPS_FILE,
    MODES_FILE,
    OFFSETS_FILE,
    POP_FILE,
    STATE_FILE,
    TOPICS_FILE,
    StateWriter,
    load_state,
)
from broker.state.tables import ReplicatedState
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.java_json import file_json, load_json
from store.directory.config_file import write_config
from store.errors import StoreFormatError
from tests.broker.conftest import Desk, make_topic
from tests.broker.groups.test_offsets import key, make_group

GOLDEN = Path(__file__).parents[2] / "golden"
TREES = [path.parent for path in sorted(GOLDEN.glob("store-*/**/files/config"))]
TABLES = (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAY_FILE, MODES_FILE)


def java_copy(directory: Path, tree: Path = GOLDEN / "store-classic/clean/files") -> Path:
    shutil.copytree(tree / "config", directory, dirs_exist_ok=True)
    return directory


def as_java_writes(path: Path, change: dict[str, Any]) -> None:
    """Java reads the file, changes something, and writes what it knows."""
    value = load_json(path.read_bytes())
    del value["writtenBy"]
    path.write_bytes(file_json(value | change))


def _sets(topics_of: dict[str, list[str]]) -> dict[str, set[str]]:
    return {group: set(topics) for group, topics in topics_of.items()}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: "-".join(tree.parts[-4:-1]))
def test_what_a_java_broker_knew_is_written_back_as_it_was(tree: Path, tmp_path: Path) -> None:
    java = {
        name: load_json((tree / "config" / name).read_bytes()) for name in TABLES if (tree / "config" / name).exists()
    }
    StateWriter(java_copy(tmp_path, tree)).write(load_state(tmp_path))
    assert len(java) >= len(TABLES) - 1
    for name, before in java.items():
        after = load_json((tmp_path / name).read_bytes())
        assert after.pop("writtenBy") == "ledgermq"
        topics_of = [
            {group: sorted(topics) for group, topics in v.pop("groupTopicMap", {}).items()} for v in (before, after)
        ]
        assert topics_of[0] == topics_of[1]
        assert after == before, name


def test_the_files_have_the_form_that_java_gives_them(tmp_path: Path) -> None:
    state = load_state(java_copy(tmp_path))
    StateWriter(tmp_path).write(state)
    files = {name: (tmp_path / name).read_bytes() for name in (OFFSETS_FILE, DELAY_FILE, TOPICS_FILE)}
    assert b'"GoldenOrder@GoldenOrderGroup":{0:8,1:4\n\t\t},' in files[OFFSETS_FILE]
    assert b'"offsetTable":{1:3,2:2,3:1,17:0,18:0\n\t},' in files[DELAY_FILE]
    java_topic = (
        (GOLDEN / "store-classic/clean/files/config" / TOPICS_FILE).read_bytes().partition(b'"GoldenOrder":')[2]
    )
    assert java_topic[: java_topic.index(b"}")] in files[TOPICS_FILE]


def test_members_that_nobody_here_knows_survive_a_rewrite(tmp_path: Path) -> None:
    java_copy(tmp_path)
    for name, table, row in (
        (TOPICS_FILE, "topicConfigTable", "GoldenOrder"),
        (GROUPS_FILE, "subscriptionGroupTable", "GoldenGroup"),
    ):
        value = load_json((tmp_path / name).read_bytes())
        value["futureTable"] = {"a": [1, {"b": None}]}
        value[table][row]["futureField"] = {"x": True}
        (tmp_path / name).write_bytes(file_json(value))
    value = load_json((tmp_path / GROUPS_FILE).read_bytes())
    value["forbiddenTable"] = {"GoldenGroup": {"GoldenOrder": 1}}
    (tmp_path / GROUPS_FILE).write_bytes(file_json(value))
    StateWriter(tmp_path).write(load_state(tmp_path))
    topics, groups = load_json((tmp_path / TOPICS_FILE).read_bytes()), load_json((tmp_path / GROUPS_FILE).read_bytes())
    assert topics["futureTable"] == groups["futureTable"] == {"a": [1, {"b": None}]}
    assert topics["topicConfigTable"]["GoldenOrder"]["futureField"] == {"x": True}
    assert groups["subscriptionGroupTable"]["GoldenGroup"]["futureField"] == {"x": True}
    assert groups["forbiddenTable"] == {"GoldenGroup": {"GoldenOrder": 1}}


def test_files_that_belong_to_others_are_left_alone(tmp_path: Path) -> None:
    java_copy(tmp_path)
    others = ("consumerFilter.json", "consumerOrderInfo.json", "timercheck")
    before = {name: (tmp_path / name).read_bytes() for name in others}
    StateWriter(tmp_path).write(load_state(tmp_path))
    assert {name: (tmp_path / name).read_bytes() for name in others} == before


@pytest.mark.parametrize("name", [*TABLES, STATE_FILE])
def test_a_table_and_its_backup_both_damaged_stop_the_broker_by_name(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        StateWriter(tmp_path).write(ReplicatedState())
    for path in (tmp_path / name, tmp_path / f"{name}.bak"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StoreFormatError, match=rf"{name}.*line \d+ column \d+"):
        load_state(tmp_path)


def test_a_table_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    state = load_state(java_copy(tmp_path))
    writer = StateWriter(tmp_path)
    writer.write(state)
    written = {name: (tmp_path / name).stat().st_ino for name in (*TABLES, STATE_FILE)}
    state.applied_offset += 10
    state.offsets = {**state.offsets, "T@g": {0: 1}}
    writer.write(state.copy())
    changed = {name for name, inode in written.items() if (tmp_path / name).stat().st_ino != inode}
    assert changed == {OFFSETS_FILE, STATE_FILE}


async def test_what_java_wrote_in_between_counts_and_what_only_the_log_knows_is_added(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client, "T", 2)
    await make_group(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
    await desk.parts.context.offsets.drain()
    await desk.stop()
    config = desk.config.store.root / "config"
    saved = {path.name: path.read_bytes() for path in config.iterdir()}
    await desk.start()
    client = desk.client()
    await make_topic(client, "late")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="5"))
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="6", queueId="1"))
    await desk.stop(save_tables=False)  # killed; Java goes on with the tables of before
    for name, content in saved.items():
        (config / name).write_bytes(content)
    as_java_writes(config / OFFSETS_FILE, {"offsetTable": {"T@g": {0: 9}}})
    as_java_writes(config / TOPICS_FILE, {})
    await desk.start()
    state = desk.parts.context.state
    assert state.offsets["T@g"] == {0: 9, 1: 6}
    assert {"T", "late"} <= state.topics.keys()
    assert load_json((config / OFFSETS_FILE).read_bytes())["writtenBy"] == "ledgermq"
    await desk.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="4"))
    await desk.stop(save_tables=False)
    await desk.start()
    assert desk.parts.context.state.offsets["T@g"] == {0: 4, 1: 6}


async def test_what_java_wrote_counts_though_we_were_killed_in_our_first_save(desk: Desk) -> None:
    """Killed before the mark was ever written: the tables say nothing of how much of the log they hold."""
    client = desk.client()
    await make_topic(client, "T", 2)
    await make_group(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="3"))
    await desk.stop()
    config = desk.config.store.root / "config"
    (config / STATE_FILE).unlink()
    as_java_writes(config / OFFSETS_FILE, {"offsetTable": {"T@g": {0: 9}}})
    await desk.start()
    assert desk.parts.context.state.offsets["T@g"] == {0: 9}
    await desk.client().ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="4"))
    await desk.stop(save_tables=False)
    await desk.start()
    assert desk.parts.context.state.offsets["T@g"] == {0: 4}


@pytest.mark.parametrize("last", [STATE_FILE, TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAY_FILE, MODES_FILE, POP_FILE])
async def test_java_s_tables_count_though_we_were_killed_while_taking_them_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    client = desk.client()
    await make_topic(client, "T", 2)
    await make_group(client)
    await desk.stop()
    config = desk.config.store.root / "config"
    saved = {path.name: path.read_bytes() for path in config.iterdir()}
    await desk.start()
    client = desk.client()
    await make_topic(client, "late")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="5"))
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="6", queueId="1"))
    await desk.stop(save_tables=False)
    for name, content in saved.items():
        (config / name).write_bytes(content)
    as_java_writes(config / OFFSETS_FILE, {"offsetTable": {"T@g": {0: 9}}})
    left: dict[str, bytes] = {}

    def write(path: Path, content: bytes) -> None:
        write_config(path, content)
        if path.name == last:
            left.update({file.name: file.read_bytes() for file in config.iterdir()})
            monkeypatch.undo()

    monkeypatch.setattr("broker.state.files.write_config", write)
    await desk.start()
    await desk.stop(save_tables=False)
    shutil.rmtree(config)
    config.mkdir()
    for name, content in left.items():
        (config / name).write_bytes(content)
    await desk.start()
    state = desk.parts.context.state
    assert state.offsets["T@g"] == {0: 9, 1: 6}
    assert {"T", "late"} <= state.topics.keys()


def test_delayed_messages_go_on_where_java_was(tmp_path: Path) -> None:
    state = load_state(java_copy(tmp_path))
    progress = state.offsets["SCHEDULE_TOPIC_XXXX@CID_RMQ_SYS_LEDGERMQ_DELAY"]
    assert progress == {0: 3, 1: 2, 2: 1, 16: 0, 17: 0}
    progress[0] = 7
    StateWriter(tmp_path).write(state)
    assert load_json((tmp_path / DELAY_FILE).read_bytes())["offsetTable"] == {"1": 7, "2": 2, "3": 1, "17": 0, "18": 0}
    assert b"LEDGERMQ_DELAY" not in (tmp_path / OFFSETS_FILE).read_bytes()
    assert load_state(tmp_path).offsets == state.offsets
