"""Any tables, written and read, are the same; any damage is told or healed from the backup, never silently empty."""

import json
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state.files import (
    DELAY_FILE,
    GROUPS_FILE,
    MODES_FILE,
    OFFSETS_FILE,
    TOPICS_FILE,
    StateWriter,
    load_state,
)
from broker.state.pop_tables import PopChange, RequestMode
from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import NewerNames, ReplicatedState, StateChange
from ledgermq.remoting.codec.data_version import DataVersion
from store.errors import StoreFormatError


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Hundreds of damaged files are no news; other tests want to read the notice."""
    logger = logging.getLogger("store.directory.config_file")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


NAMES = st.text("abcXYZ%_-|09", min_size=1, max_size=12)
EXTRA = st.dictionaries(st.sampled_from(["future", "more"]), st.integers() | st.text(max_size=5), max_size=2)
SMALL = st.integers(0, 2**31 - 1)
TOPICS = st.builds(
    TopicConfig,
    name=NAMES,
    read_queues=st.integers(0, 65536),
    write_queues=st.integers(0, 65536),
    perm=st.integers(0, 7),
    sys_flag=SMALL,
    order=st.booleans(),
    attributes=st.dictionaries(st.sampled_from(["message.type", "cleanup.policy"]), NAMES),
    extra=EXTRA.map(lambda members: {k: v for k, v in members.items() if not isinstance(v, int) or abs(v) < 2**63}),
)
GROUPS = st.builds(GroupConfig, name=NAMES, retry_max_times=SMALL, consume_enable=st.booleans(), sys_flag=SMALL)
KEYS = st.builds(lambda topic, group: f"{topic}@{group}", NAMES, NAMES)
OFFSETS = st.dictionaries(st.integers(0, 65535), st.integers(0, 2**63 - 1), min_size=1, max_size=4)
DELAYS = st.dictionaries(st.integers(0, 17), SMALL, min_size=1, max_size=4)


@st.composite
def states(draw: st.DrawFn) -> ReplicatedState:
    state = ReplicatedState()
    state.topics = {topic.name: topic for topic in draw(st.lists(TOPICS, max_size=4))}
    state.groups = {group.name: group for group in draw(st.lists(GROUPS, max_size=3))}
    state.offsets = draw(st.dictionaries(KEYS, OFFSETS, max_size=4))
    if draw(st.booleans()):
        state.offsets["SCHEDULE_TOPIC_XXXX@CID_RMQ_SYS_LEDGERMQ_DELAY"] = draw(DELAYS)
    state.removed = draw(st.dictionaries(NAMES, SMALL, max_size=2))
    state.topic_version = DataVersion(draw(SMALL), draw(SMALL))
    state.applied_offset = draw(st.integers(1, 2**62))
    return state


def picture(state: ReplicatedState) -> tuple[object, ...]:
    return state.topics, state.groups, state.offsets, state.removed, state.topic_version, state.applied_offset


@settings(deadline=None, max_examples=60)
@given(states())
def test_any_tables_are_read_back_as_they_were_written(state: ReplicatedState) -> None:
    with tempfile.TemporaryDirectory() as name:
        StateWriter(Path(name)).write(state)
        loaded = load_state(Path(name))
    assert picture(loaded) == picture(state)
    assert not loaded.newer


@settings(deadline=None, max_examples=60)
@given(
    states(),
    st.sampled_from([TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, DELAY_FILE]),
    st.integers(0, 10_000),
    st.integers(1, 255),
    st.booleans(),
)
def test_a_damaged_file_is_refused_or_taken_from_its_backup(
    state: ReplicatedState, name: str, at: int, flip: int, has_backup: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        for _ in range(1 + has_backup):
            StateWriter(path.parent).write(state)
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= flip
        del content[max(len(content) - at % 7, 1) :]
        path.write_bytes(content)
        try:
            loaded = load_state(path.parent)
        except StoreFormatError as error:
            assert not has_backup
            assert error.file == path
            return
    if name == TOPICS_FILE:
        assert len(loaded.topics) >= min(len(state.topics), 1)
    if loaded.applied_offset == 0 and has_backup:
        assert (loaded.topics, loaded.groups, loaded.offsets) == (state.topics, state.groups, state.offsets)


@given(states(), states())
def test_what_another_program_wrote_since_is_never_taken_back(found: ReplicatedState, told: ReplicatedState) -> None:
    pairs = {(key, queue_id) for key, queues in found.offsets.items() for queue_id in queues}
    newer = NewerNames(found.topics.keys(), found.groups.keys(), pairs)
    change = StateChange(
        topics={**told.topics, **dict.fromkeys(found.topics)},
        groups=told.groups,
        offsets={**told.offsets, **dict.fromkeys(list(found.offsets)[:1])},
    )
    before = {**found.topics}, {**found.groups}, {key: dict(queues) for key, queues in found.offsets.items()}
    found.apply(newer.without(change), 1)
    assert before[0].items() <= found.topics.items()
    assert before[1].items() <= found.groups.items()
    for key, queues in before[2].items():
        assert queues.items() <= found.offsets[key].items()
    assert told.topics.keys() <= found.topics.keys()


def test_a_java_broker_s_modes_and_offsets_are_newer_than_the_log_s_modes_and_moves(tmp_path: Path) -> None:
    """Else a group would be moved back at its next pull, and be served in the mode that it had before."""
    state, pair = ReplicatedState(), "T@g"
    pull = StateChange(pop=PopChange(modes={pair: RequestMode("PULL", 0), "U@g": RequestMode("PULL", 0)}))
    state.apply(pull, 1)
    state.offsets, state.resets = {pair: {0: 7, 1: 7}, "U@g": {0: 1}}, {pair: {0: 3}}
    StateWriter(tmp_path).write(state)
    row = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
    by_java = {  # without `writtenBy`
        OFFSETS_FILE: {"offsetTable": {pair: {"0": 9}}},
        MODES_FILE: {"messageRequestModeMap": {"T": {"g": row}}},
    }
    for name, members in by_java.items():
        (tmp_path / name).write_text(json.dumps(members))
    loaded = load_state(tmp_path)
    assert (loaded.resets, loaded.pop.modes[pair].mode) == ({}, "POP")
    old = StateChange(offsets={pair: {0: 7}}, resets={pair: {0: 3, 1: 4}, "U@g": {0: 1}}, pop=pull.pop)
    loaded.apply(loaded.newer.without(old), 1)
    assert (loaded.offsets[pair], loaded.resets) == ({0: 9}, {pair: {1: 4}, "U@g": {0: 1}})
    assert [loaded.pop.modes[key].mode for key in (pair, "U@g")] == ["POP", "PULL"]
