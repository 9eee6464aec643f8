"""Members of a Java group copy tables by polling, so each has others: a group of ours agrees on its leader's."""

import json
from pathlib import Path

import pytest

from broker.state.files import StateWriter, load_state
from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import ReplicatedState
from tests.broker.test_raft_brokers import Group, group

__all__ = ["group"]

OFFSETS = {"n0": 5, "n1": 7, "n2": 9}


@pytest.fixture(autouse=True)
def java_tables(tmp_path: Path) -> None:
    """As Java writes them: no member of ours; in each directory another offset, and a topic the others lack."""
    for node, offset in OFFSETS.items():
        config = tmp_path / node / "config"
        config.mkdir(parents=True)
        topic = {"topicName": f"Of-{node}", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        topics = {"topicConfigTable": {f"Of-{node}": topic}, "dataVersion": {"counter": 1, "timestamp": 1}}
        (config / "topics.json").write_text(json.dumps(topics))
        (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"T@g": {"0": offset}}}))


async def test_all_members_have_the_leader_s_tables(group: Group) -> None:
    leader = group.leader
    node = leader.parts.context.store.log.state.leader
    assert node is not None
    offset = OFFSETS[node.node_id]
    await group.everywhere(lambda broker: broker.parts.context.state.offsets.get("T@g") == {0: offset})
    await group.everywhere(lambda broker: f"Of-{node.node_id}" in broker.parts.context.state.topics)


def test_java_s_tables_are_known_as_such_until_a_leader_has_replicated_them(tmp_path: Path) -> None:
    config = tmp_path / "n0" / "config"
    state = load_state(config)
    assert state.is_foreign
    StateWriter(config).write(state.copy())
    assert load_state(config).is_foreign  # ours by now, and still no leader has replicated them
    state.is_foreign = False
    StateWriter(config).write(state)
    assert not load_state(config).is_foreign
    assert not load_state(tmp_path / "empty").is_foreign


def test_whole_tables_say_everything_in_records_of_some_hundred_names() -> None:
    state, copy = ReplicatedState(), ReplicatedState()
    state.topics = {
        f"T{number}": TopicConfig(name=f"T{number}", read_queues=1, write_queues=1) for number in range(1201)
    }
    state.groups = {"g": GroupConfig(name="g")}
    state.offsets = {"T1@g": {0: 3, 1: 4}}
    changes = list(state.whole())
    assert len(changes) == 5
    for change in changes:
        copy.apply(change, 1)
    assert (copy.topics, copy.groups, copy.offsets) == (state.topics, state.groups, state.offsets)
