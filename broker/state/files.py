"""The replicated tables on disk, so that a restart replays only the log's tail.

    config/topics.json, subscriptionGroup.json, consumerOffset.json, delayOffset.json    RocketMQ's files and shapes
    config/messageRequestMode.json                                    likewise: which groups read by POP
    config/ledgermqPop.json                                           POP's open checkpoints and orders
    config/ledgermqAuth.json                                          users and policies, once there are any
    config/ledgermqLanes.json                                         lanes of numbered messages, once there are any
    config/ledgermqState.json                                         the mark: the offset up to which the log is
                                                                      applied (written last)

The tables may be newer than the mark, never older: changes are absolute, so applying some of them again is harmless.
Each file is replaced whole (`store.directory.config_file`); its `.bak` is read when it is missing or broken.

A Java broker drops our member `writtenBy` when it writes these files. A table without it was therefore changed by Java
later: older records of the log may add to it, but do not replace its values. Such tables are taken over before the
broker serves: the mark is written with its member `takingOver`, then the tables with what the log added, then the mark
without it. A start that finds `takingOver` begins again, and treats every table as one of Java's.

Members that this release does not know are written back as they were, and other files of `config/` are left alone.

Source: apache/rocketmq `broker/.../topic/TopicConfigManager.java`, `broker/.../offset/ConsumerOffsetManager.java`,
`broker/.../schedule/DelayOffsetSerializeWrapper.java`, `broker/.../subscription/SubscriptionGroupManager.java`.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from broker.state import names
from broker.state.lanes import Lane
from broker.state.pop_tables import PopChange, modes_from_json, modes_to_json
from broker.state.settings import GroupConfig, TopicConfig, data_version
from broker.state.tables import OFFSET_KEY_SEPARATOR, NewerNames, ReplicatedState, forbidden_bits, offset_key
from broker.state.users import Acl, User
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.java_json import file_json
from ledgermq.remoting.refusal import Refusal
from store.directory.config_file import read_config, write_config
from store.errors import StoreFormatError

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
DELAY_FILE: Final = "delayOffset.json"
MODES_FILE: Final = "messageRequestMode.json"
POP_FILE: Final = "ledgermqPop.json"
AUTH_FILE: Final = "ledgermqAuth.json"
LANES_FILE: Final = "ledgermqLanes.json"
STATE_FILE: Final = "ledgermqState.json"

_FORMAT: Final = 1
_MARK: Final = "writtenBy"
_US: Final = "ledgermq"
_DELAY_KEY: Final = offset_key(names.SCHEDULE_TOPIC, names.DELAY_PROGRESS_GROUP)

_Json = Mapping[str, Any]
_C = TypeVar("_C")


class StateWriter:
    """Writes the files, except for those whose table has not changed since. Used by one thread at a time.

    Each file is durable before the next is written, which blocks. Every method raises OSError or StoreError if the disk
    refuses; files already replaced stay so, which is harmless.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions: dict[str, object] = {}

    def write(self, state: ReplicatedState) -> None:
        """Write the tables of `state`, which must not change meanwhile."""
        for name, (encode, version) in _FILES.items():
            present = version(state)
            if not _is_needed(name, state):
                continue
            if name not in self._versions or self._versions[name] != present:
                write_config(self._directory / name, encode(state))
                self._versions[name] = present

    def write_mark(self, state: ReplicatedState) -> None:
        """Write the mark only; the tables on disk may be newer."""
        write_config(self._directory / STATE_FILE, _state_file(state))

    def rewrite(self, state: ReplicatedState) -> None:
        """Write all files, also those that have not changed."""
        self._versions.clear()
        self.write(state)


def load_state(directory: Path) -> ReplicatedState:
    """Load the tables from disk; empty ones when there are no files.

    Without a usable mark, because it is missing or one of the tables is an older copy, `applied_offset` is 0: all of
    the log is to be replayed.

    Raises:
        StoreFormatError: a file and its `.bak` cannot be read, by name and place.
    """
    state = ReplicatedState()
    mark = read_config(directory / STATE_FILE, _Mark)
    if mark is not None:
        if mark.value.format != _FORMAT:  # of a newer release, and so is its `.bak`
            raise StoreFormatError(
                directory / STATE_FILE, f"has format {mark.value.format!r}; this program knows {_FORMAT}"
            )
        state.applied_offset, state.removed = mark.value.applied_offset, mark.value.removed
        state.resets, state.ahead_to = mark.value.resets, mark.value.ahead_to
        state.is_foreign = mark.value.is_foreign
    newer: dict[str, set[Any]] = {name: set() for name in _TABLES}
    is_older = mark is not None and mark.is_older
    is_taking_over = mark is not None and mark.value.is_taking_over
    for name, decode in _TABLES.items():
        found = read_config(directory / name, decode)
        if found is None:
            continue
        table = found.value
        table.fill(state)
        state.file_extras[name] = {member: kept for member, kept in table.members.items() if member not in _MADE_HERE}
        is_by_java = (mark is None or mark.value.is_marking) and table.members.get(_MARK) != _US
        state.is_foreign |= is_by_java
        if is_by_java or is_taking_over:
            newer[name].update(table.keys)
        is_older |= found.is_older
    if is_older:
        state.applied_offset = 0
    offsets = newer[OFFSETS_FILE] | newer[DELAY_FILE]
    state.newer = NewerNames(newer[TOPICS_FILE], newer[GROUPS_FILE], offsets, newer[MODES_FILE])
    resets = {key: state.newer.resets_without(key, queues) for key, queues in state.resets.items()}
    state.resets = {key: queues for key, queues in resets.items() if queues}
    return state


# ---- out


def _topics_file(state: ReplicatedState) -> bytes:
    table = {name: state.topics[name].to_json() for name in sorted(state.topics)}
    return _file(state, TOPICS_FILE, dataVersion=state.topic_version.to_json(), topicConfigTable=table)


def _groups_file(state: ReplicatedState) -> bytes:
    table = {name: state.groups[name].to_json() for name in sorted(state.groups)}
    forbidden = {name: state.forbidden[name] for name in sorted(state.forbidden)}
    version = state.group_version.to_json()
    return _file(state, GROUPS_FILE, dataVersion=version, forbiddenTable=forbidden, subscriptionGroupTable=table)


def _offsets_file(state: ReplicatedState) -> bytes:
    table = {key: _sorted(state.offsets[key]) for key in sorted(state.offsets) if key != _DELAY_KEY}
    topics_of: dict[str, list[str]] = {}
    for key in table:
        topic, _, group = key.rpartition(OFFSET_KEY_SEPARATOR)
        topics_of.setdefault(group, []).append(topic)
    return _file(state, OFFSETS_FILE, groupTopicMap=topics_of, offsetTable=table)


def _delay_file(state: ReplicatedState) -> bytes:
    """Return the offsets by delay level, which is the queue id plus one."""
    levels = {queue_id + 1: offset for queue_id, offset in _sorted(state.offsets.get(_DELAY_KEY, {})).items()}
    return _file(state, DELAY_FILE, offsetTable=levels)


def _modes_file(state: ReplicatedState) -> bytes:
    return file_json({**state.file_extras.get(MODES_FILE, {}), **modes_to_json(state.pop.modes), _MARK: _US})


def _pop_file(state: ReplicatedState) -> bytes:
    """Return compact standard JSON, since the file may be large and no other program reads it."""
    pop = PopChange(state.pop.checkpoints, state.pop.orders).to_json()
    whole = {**state.file_extras.get(POP_FILE, {}), **pop, _MARK: _US}
    return orjson.dumps(whole, option=orjson.OPT_NON_STR_KEYS)


def _auth_file(state: ReplicatedState) -> bytes:
    users = {name: state.users[name].to_json() for name in sorted(state.users)}
    acls = {name: state.acls[name].to_json() for name in sorted(state.acls)}
    return _file(state, AUTH_FILE, aclTable=acls, dataVersion=state.auth_version.to_json(), userTable=users)


def _lanes_file(state: ReplicatedState) -> bytes:
    lanes = {key: lane.to_json() for key, lane in state.lanes.items()}
    return orjson.dumps({**state.file_extras.get(LANES_FILE, {}), "lanes": lanes, _MARK: _US})


def _is_needed(name: str, state: ReplicatedState) -> bool:
    """Return whether the file must be written: those of users and of lanes only once there are any."""
    if name == LANES_FILE:
        return state.lane_version > 0
    return name != AUTH_FILE or state.auth_version != DataVersion()


def _state_file(state: ReplicatedState) -> bytes:
    mark = {"format": _FORMAT, "marks": True, "appliedOffset": state.applied_offset, "removed": state.removed}
    rare = {"foreign": state.is_foreign, "takingOver": bool(state.newer), "aheadTo": state.ahead_to}
    return file_json({**mark, "resets": state.resets, **{name: value for name, value in rare.items() if value}})


_Encode = Callable[[ReplicatedState], bytes]
_Version = Callable[[ReplicatedState], object]
_FILES: Final[Mapping[str, tuple[_Encode, _Version]]] = {
    TOPICS_FILE: (_topics_file, lambda state: state.topic_version),
    GROUPS_FILE: (_groups_file, lambda state: state.group_version),
    OFFSETS_FILE: (_offsets_file, lambda state: state.applied_offset),
    DELAY_FILE: (_delay_file, lambda state: dict(state.offsets.get(_DELAY_KEY, {}))),
    MODES_FILE: (_modes_file, lambda state: dict(state.pop.modes)),
    POP_FILE: (_pop_file, lambda state: state.pop.version),
    AUTH_FILE: (_auth_file, lambda state: state.auth_version),
    LANES_FILE: (_lanes_file, lambda state: state.lane_version),
    STATE_FILE: (_state_file, lambda state: state.applied_offset),
}
"""By file name: how it is made, and the value whose change makes a new one necessary. The mark comes last."""


def _file(state: ReplicatedState, name: str, **members: Any) -> bytes:
    """Return the file of these members in alphabetical order, as RocketMQ writes them, with unknown ones."""
    whole = {"dataVersion": DataVersion().to_json(), **state.file_extras.get(name, {}), **members, _MARK: _US}
    return file_json({member: whole[member] for member in sorted(whole)})


def _sorted(queues: Mapping[int, int]) -> dict[int, int]:
    return {queue_id: queues[queue_id] for queue_id in sorted(queues)}


# ---- in


@dataclass(frozen=True, slots=True)
class _Table:
    """The checked contents of one file.

    Attributes:
        members: all members of the file.
        keys: names of its values, as in `NewerNames`.
        fill: puts the values into an empty state.
    """

    members: _Json
    keys: Set[Any]
    fill: Callable[[ReplicatedState], None]


def _topics(members: _Json) -> _Table:
    topics = _configs(members, "topicConfigTable", TopicConfig.from_json)
    version = _version(members)

    def fill(state: ReplicatedState) -> None:
        state.topics, state.topic_version = topics, version

    return _Table(members, topics.keys(), fill)


def _groups(members: _Json) -> _Table:
    groups = _configs(members, "subscriptionGroupTable", GroupConfig.from_json)
    forbidden = {str(name): forbidden_bits(bits) for name, bits in (members.get("forbiddenTable") or {}).items()}
    version = _version(members)

    def fill(state: ReplicatedState) -> None:
        state.groups, state.group_version = groups, version
        state.forbidden = {name: bits for name, bits in forbidden.items() if bits}

    return _Table(members, groups.keys(), fill)


def _offsets(members: _Json) -> _Table:
    table = _member(members, "offsetTable")
    return _offset_table(members, {str(key): _numbers(queues) for key, queues in table.items()})


def _delays(members: _Json) -> _Table:
    levels = _numbers(_member(members, "offsetTable"))
    progress = {level - 1: offset for level, offset in levels.items()}
    return _offset_table(members, {_DELAY_KEY: progress} if progress else {})


def _auth(members: _Json) -> _Table:
    users = _configs(members, "userTable", User.from_json)
    acls = _configs(members, "aclTable", Acl.from_json)
    version = _version(members)

    def fill(state: ReplicatedState) -> None:
        state.users, state.acls, state.auth_version = users, acls, version

    return _Table(members, users.keys(), fill)


def _lanes(members: _Json) -> _Table:
    lanes = {str(key): Lane.from_json(value) for key, value in _member(members, "lanes").items()}

    def fill(state: ReplicatedState) -> None:
        state.lanes, state.lane_version = lanes, 1

    return _Table(members, lanes.keys(), fill)


def _offset_table(members: _Json, offsets: dict[str, dict[int, int]]) -> _Table:
    def fill(state: ReplicatedState) -> None:
        state.offsets |= offsets

    return _Table(members, {(key, queue_id) for key, queues in offsets.items() for queue_id in queues}, fill)


def _pop(members: _Json) -> _Table:
    return _pop_table(members, PopChange.from_json)


def _modes(members: _Json) -> _Table:
    return _pop_table(members, lambda value: PopChange(modes=modes_from_json(value)))


def _pop_table(members: _Json, read: Callable[[_Json], PopChange]) -> _Table:
    """Parse the table of modes; its keys are `topic@group`: only this program writes checkpoints and orders."""
    try:
        change = read(members)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return _Table(members, change.modes.keys(), lambda state: state.pop.apply(change))


_TABLES: Final[Mapping[str, Callable[[_Json], _Table]]] = {
    TOPICS_FILE: _topics,
    GROUPS_FILE: _groups,
    OFFSETS_FILE: _offsets,
    DELAY_FILE: _delays,
    MODES_FILE: _modes,
    POP_FILE: _pop,
    AUTH_FILE: _auth,
    LANES_FILE: _lanes,
}
_MADE_HERE: Final = frozenset(
    {"topicConfigTable", "subscriptionGroupTable", "forbiddenTable", "offsetTable", "groupTopicMap", _MARK}
    | {"checkpoints", "orders", "modes", "messageRequestModeMap", "userTable", "aclTable", "lanes"}
)


class _Mark:
    """The file `ledgermqState.json`.

    Attributes:
        is_marking: the tables were written with the member `writtenBy`.
        is_foreign, ahead_to: as in `ReplicatedState`.
        is_taking_over: a start was writing tables of Java anew and did not come to its end.
    """

    def __init__(self, members: _Json) -> None:
        self.format = members.get("format")
        self.is_marking = members.get("marks") is True
        self.is_foreign = members.get("foreign") is True
        self.is_taking_over = members.get("takingOver") is True
        applied = members.get("appliedOffset")
        if not isinstance(applied, int):
            raise ValueError(f"appliedOffset is {applied!r}, not a number")
        self.applied_offset = applied
        self.ahead_to = int(members.get("aheadTo") or 0)
        self.removed = {str(name): int(offset) for name, offset in (members.get("removed") or {}).items()}
        self.resets = {str(key): _numbers(queues) for key, queues in (members.get("resets") or {}).items()}


def _configs(members: _Json, name: str, from_json: Callable[[Any], _C]) -> dict[str, _C]:
    try:
        return {str(key): from_json(value) for key, value in _member(members, name).items()}
    except Refusal as refusal:
        raise ValueError(refusal.remark) from refusal


def _member(members: _Json, name: str) -> _Json:
    """Return the member that holds a table.

    Every release writes it, even when empty: a file without it is damaged.
    """
    table = members.get(name)
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} is {str(table)[:40]!r}, not a JSON object")
    return table


def _version(members: _Json) -> DataVersion:
    try:
        return data_version(members.get("dataVersion") or {})
    except Refusal as refusal:
        raise ValueError(refusal.remark) from refusal


def _numbers(table: Any) -> dict[int, int]:
    return {int(number): int(offset) for number, offset in table.items()}
