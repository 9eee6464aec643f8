"""The replicated tables: changes applied, written, and read again."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import ReplicatedState, StateChange, StateFormatError

NAMES = st.sampled_from(["A", "B", "C"])
TOPICS = st.builds(TopicConfig, name=NAMES, read_queues=st.integers(0, 9), write_queues=st.integers(0, 9))
OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 1000), max_size=3)
CHANGES = st.builds(
    StateChange,
    topics=st.dictionaries(NAMES, st.none() | TOPICS, max_size=2),
    groups=st.dictionaries(NAMES, st.none() | st.builds(GroupConfig, name=NAMES), max_size=2),
    offsets=st.dictionaries(st.sampled_from(["A@g", "B@g", "C@h"]), st.none() | OFFSETS, max_size=2),
)


def tables(state: ReplicatedState) -> tuple[object, ...]:
    return state.topics, state.groups, state.offsets


@given(CHANGES)
def test_a_change_reads_back_as_it_was_written(change: StateChange) -> None:
    assert StateChange.decode(change.encode(), "here") == change


@given(st.lists(CHANGES, max_size=8), st.integers(0, 8))
def test_replaying_a_tail_again_ends_in_the_same_tables(changes: list[StateChange], start: int) -> None:
    state = ReplicatedState()
    for change in changes:
        state.apply(change, 1)
    before = orjson.dumps(orjson.loads(state.snapshot()))
    again = ReplicatedState()
    again.restore(before)
    for change in changes[start:]:
        again.apply(change, 1)
    assert tables(again) == tables(state)


@given(st.lists(CHANGES, max_size=8))
def test_a_snapshot_restores_tables_versions_and_position(changes: list[StateChange]) -> None:
    state = ReplicatedState()
    for number, change in enumerate(changes):
        state.apply(change, number)
    state.applied_offset = 4711
    other = ReplicatedState()
    other.restore(state.snapshot())
    assert tables(other) == tables(state)
    assert (other.topic_version, other.group_version) == (state.topic_version, state.group_version)
    assert other.applied_offset == 4711


def test_removing_a_topic_removes_its_offsets_only() -> None:
    state = ReplicatedState()
    state.apply(StateChange(topics={"T": TopicConfig(name="T", read_queues=1, write_queues=1)}), 1)
    state.apply(StateChange(offsets={"T@g": {0: 5}, "T2@g": {0: 6}}), 2)
    state.apply(StateChange(topics={"T": None}), 3)
    assert state.topics == {}
    assert state.offsets == {"T2@g": {0: 6}}
    assert state.topic_version.counter == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"topics":{"T":{"perm":"six"}}}', b'{"offsets":{"T@g":{"x":1}}}', b'{"topics":[]}'],
)
def test_a_body_that_is_no_change_is_refused_with_its_place(body: bytes) -> None:
    with pytest.raises(StateFormatError, match="record at 4711"):
        StateChange.decode(body, "record at 4711")


def test_a_snapshot_of_a_newer_format_changes_nothing() -> None:
    state = ReplicatedState()
    state.apply(StateChange(groups={"g": GroupConfig(name="g")}), 1)
    with pytest.raises(StateFormatError, match="format 2"):
        state.restore(b'{"format":2,"appliedOffset":0}')
    assert list(state.groups) == ["g"]


def test_members_of_a_group_that_have_no_meaning_here_are_handed_back() -> None:
    given_ = {"groupName": "g", "retryQueueNums": 2, "consumeTimeoutMinute": 3, "future": {"x": [1]}}
    shown = GroupConfig.from_json(given_).to_json()
    assert shown["future"] == {"x": [1]}
    assert shown["consumeTimeoutMinute"] == 3
    assert shown["retryQueueNums"] == 2
    assert shown["retryMaxTimes"] == 16
