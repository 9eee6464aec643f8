"""The replicated tables (topics, groups, offsets, POP, users, lanes), made from the log's state records. Pure.

    leader: StateChange --encode--> record of topic rmq_sys_ledgermq_state --(committed)--> every node: apply()

A change has absolute values only, so applying changes again, even from an older point on, ends in the same tables.
Uncommitted changes are not here; the leader keeps them in `metadata` and `offsets`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeVar

import orjson

from broker.state import names
from broker.state.lanes import Lane, topic_of
from broker.state.pop_tables import PopChange, PopTables, update_table
from broker.state.settings import GroupConfig, TopicConfig, data_version
from broker.state.users import Acl, User
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.refusal import Refusal
from store.timer.timer_message import TIMER_TOPIC

OFFSET_KEY_SEPARATOR = "@"
REMOVED_MAX = 100_000

_NAMES_MAX: Final = 500
"""Names in one change of `ReplicatedState.whole`; keeps its record far below the longest one."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_R = TypeVar("_R", int, int | None)


class StateFormatError(ValueError):
    """Bytes are no valid state change or snapshot; `place` names the bytes, `detail` what is wrong."""

    def __init__(self, place: str, detail: str) -> None:
        super().__init__(f"{place}: {detail}")
        self.place = place
        self.detail = detail


def offset_key(topic: str, group: str) -> str:
    """Return the key of a group's offsets in a topic, in RocketMQ's format."""
    return f"{topic}{OFFSET_KEY_SEPARATOR}{group}"


MARKS_KEY: Final = offset_key(names.STATE_TOPIC, "CID_RMQ_SYS_LEDGERMQ_MARKS")
"""The key of the marks of deliveries among the consumer offsets: physical offsets, by kind in place of a queue id."""

TIMER_PROGRESS_KEY: Final = offset_key(TIMER_TOPIC, "CID_RMQ_SYS_LEDGERMQ_TIMER")
"""The key of the progress of timers among the consumer offsets; the next two numbers stand in place of queue ids."""
TIMER_OFFSET: Final = 0
"""A queue offset of the timer topic."""
TIMER_READ_TIME: Final = 1
"""The time in ms before which slots are delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """Values to set; None removes.

    Attributes:
        offsets: by `topic@group`, then queue id: the next queue offset to read.
        forbidden: by group, then topic: bits of the actions that the group may not do there; a group's whole table.
        resets: by `topic@group`, then queue id: the offset to which an administrator moved the group, until its next
            pull of the queue; None: the pull has had it.
        users: by name.
        acls: policies of users, by subject.
        lanes: by key: what is stored of messages that producers number.
    """

    topics: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    groups: Mapping[str, GroupConfig | None] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[int, int] | None] = field(default_factory=dict)
    resets: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pop: PopChange = field(default_factory=PopChange)
    users: Mapping[str, User | None] = field(default_factory=dict)
    acls: Mapping[str, Acl | None] = field(default_factory=dict)
    lanes: Mapping[str, Lane | None] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the body of the state record."""
        tables = {
            "topics": _configs(self.topics),
            "groups": _configs(self.groups),
            "offsets": self.offsets,
            "resets": self.resets,
            "forbidden": self.forbidden,
            "pop": self.pop.to_json() if self.pop else None,
            "users": _configs(self.users),
            "acls": _configs(self.acls),
            "lanes": _configs(self.lanes),
        }
        return orjson.dumps({name: table for name, table in tables.items() if table}, option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def decode(cls, body: bytes | memoryview, place: str) -> "StateChange":
        """Decode the body of a state record; `place` names the record in errors.

        Raises:
            StateFormatError: it is no change that this release can read.
        """
        try:
            tables = orjson.loads(body)
            return cls(
                topics={name: value and TopicConfig.from_json(value) for name, value in _table(tables, "topics")},
                groups={name: value and GroupConfig.from_json(value) for name, value in _table(tables, "groups")},
                offsets={key: _queue_offsets(value) for key, value in _table(tables, "offsets")},
                resets={key: reset_offsets(value) for key, value in _table(tables, "resets")},
                forbidden={group: forbidden_bits(value) for group, value in _table(tables, "forbidden")},
                pop=PopChange.from_json(tables.get("pop", {})),
                users={name: value and User.from_json(value) for name, value in _table(tables, "users")},
                acls={name: value and Acl.from_json(value) for name, value in _table(tables, "acls")},
                lanes={key: value and Lane.from_json(value) for key, value in _table(tables, "lanes")},
            )
        except (orjson.JSONDecodeError, Refusal, LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateFormatError(place, str(error)) from error


@dataclass(frozen=True, slots=True)
class NewerNames:
    """Names whose values in the files are newer than the log's records, since a Java broker wrote the files last.

    Attributes:
        offsets: by `topic@group` and queue id. A move of the group that the log tells of is older, too.
        modes: of requests, by `topic@group`.
    """

    topics: Set[str] = frozenset()
    groups: Set[str] = frozenset()
    offsets: Set[tuple[str, int]] = frozenset()
    modes: Set[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.topics or self.groups or self.offsets or self.modes)

    def without(self, change: StateChange) -> StateChange:
        """Return the part of `change` that is about other names."""
        keys, pop = {key for key, _ in self.offsets}, change.pop
        offsets: dict[str, Mapping[int, int] | None] = {}
        for key, queues in change.offsets.items():
            if queues is not None:
                offsets[key] = {number: value for number, value in queues.items() if (key, number) not in self.offsets}
            elif key not in keys:
                offsets[key] = None
        return StateChange(
            topics={name: value for name, value in change.topics.items() if name not in self.topics},
            groups={name: value for name, value in change.groups.items() if name not in self.groups},
            offsets=offsets,
            resets={key: self.resets_without(key, queues) for key, queues in change.resets.items()},
            forbidden={name: value for name, value in change.forbidden.items() if name not in self.groups},
            pop=replace(pop, modes={key: mode for key, mode in pop.modes.items() if key not in self.modes}),
            users=change.users,
            acls=change.acls,
            lanes=change.lanes,
        )

    def resets_without(self, key: str, queues: Mapping[int, _R]) -> dict[int, _R]:
        """Return the moves of a group in a topic, by queue id, without those of queues whose offsets are newer."""
        return {number: value for number, value in queues.items() if (key, number) not in self.offsets}


ChangeDone = Callable[[Refusal | None], None]
"""Called once: with None when a change is committed and applied, else with the refusal."""


def when_all(count: int, done: ChangeDone) -> ChangeDone:
    """Return a function for the outcomes of `count` changes; `done` gets None after all, or the first refusal."""
    waiting = count

    def one_is_done(refusal: Refusal | None) -> None:
        nonlocal waiting
        if refusal is not None and waiting > 0:
            done(refusal)
        waiting = -1 if refusal is not None else waiting - 1
        if waiting == 0:
            done(None)

    return one_is_done


def parts_of(items: Iterable[tuple[_K, _V]], most: int) -> Iterator[dict[_K, _V]]:
    """Yield the items of a table in parts of at most `most`."""
    left = iter(items)
    while part := dict(islice(left, most)):
        yield part


Propose = Callable[[StateChange, ChangeDone], None]
"""Appends a change to the log."""


class ReplicatedState:
    """The tables as of the last applied change.

    Attributes:
        topics, groups: by name.
        offsets: by `topic@group`, then queue id.
        resets: likewise: offsets to which groups were moved, until their next pull.
        forbidden: by group, then topic: bits of the actions that the group may not do there.
        pop: POP's checkpoints, orders and modes.
        users, acls: users by name, policies by subject.
        lanes: of numbered messages, by key.
        removed: by topic: physical offset of the record that removed it; older records belong to the removed topic.
            Only the last `REMOVED_MAX` removals are kept.
        applied_offset: physical offset behind the last applied record; records that start before it need no replay.
        ahead_to: physical offset up to which the tables on disk had records when they were ahead of the log of this
            member of a Raft group; 0 when records up to there have been applied again, or the tables were not ahead.
        topic_version, group_version, auth_version: count changes of their tables; equal on nodes that have applied the
            same.
        lane_version: counts changes of the lanes since the start.
        is_foreign: a Java broker wrote the tables, or a leader has set back positions in them, and no leader has
            replicated them yet: members may differ.
        newer: names whose values in the files the log's older records must not replace; empty once the files are
            written again.
        file_extras: by file: members that this release does not know, to be written back.
        skipped: number of records that could not be read.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}
        self.offsets: dict[str, dict[int, int]] = {}
        self.resets: dict[str, dict[int, int]] = {}
        self.forbidden: dict[str, Mapping[str, int]] = {}
        self.pop = PopTables()
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.lanes: dict[str, Lane] = {}
        self.lane_version = 0
        self.removed: dict[str, int] = {}
        self.topic_version = DataVersion()
        self.group_version = DataVersion()
        self.auth_version = DataVersion()
        self.applied_offset = self.ahead_to = 0
        self.is_foreign = False
        self.newer = NewerNames()
        self.file_extras: dict[str, Mapping[str, Any]] = {}
        self.skipped = 0

    def copy(self) -> "ReplicatedState":
        """Return a copy of the tables for another thread."""
        copy = ReplicatedState()
        copy.topics, copy.groups, copy.removed = dict(self.topics), dict(self.groups), dict(self.removed)
        copy.offsets = {key: dict(queues) for key, queues in self.offsets.items()}
        copy.resets = {key: dict(queues) for key, queues in self.resets.items()}
        copy.forbidden = dict(self.forbidden)
        copy.pop = self.pop.copy()
        copy.users, copy.acls, copy.auth_version = dict(self.users), dict(self.acls), self.auth_version
        copy.lanes, copy.lane_version = dict(self.lanes), self.lane_version
        copy.topic_version, copy.group_version = self.topic_version, self.group_version
        copy.applied_offset, copy.ahead_to = self.applied_offset, self.ahead_to
        copy.file_extras, copy.is_foreign = self.file_extras, self.is_foreign
        return copy

    def whole(self) -> Iterator[StateChange]:
        """Yield changes that together have all values that a Java group may leave different on its members."""
        for topics in _parts(self.topics):
            yield StateChange(topics=topics)
        for groups in _parts(self.groups):
            yield StateChange(groups=groups)
        for offsets in _parts(self.offsets):
            yield StateChange(offsets={key: dict(queues) for key, queues in offsets.items()})
        for modes in _parts(self.pop.modes):
            yield StateChange(pop=PopChange(modes=modes))
        for users in _parts(self.users):
            yield StateChange(users=users)
        for acls in _parts(self.acls):
            yield StateChange(acls=acls)

    def apply_record(self, physical_offset: int, record: memoryview) -> StateChange:
        """Apply a dispatched record of the state topic, and return its change; called in log order, on every node.

        When the log is dispatched again after a crash, the tables already contain the changes of its older records.
        Those changes are returned all the same, since queues that were removed after them exist again.

        Raises:
            StateFormatError: the record cannot be read. Every node skips it.
        """
        decoded = decode_record(record)
        is_new = physical_offset >= self.applied_offset
        if is_new:
            self.applied_offset = physical_offset + decoded.size
            if self.applied_offset >= self.ahead_to:
                self.ahead_to = 0
        try:
            change = StateChange.decode(decoded.body, f"state record at {physical_offset}")
        except StateFormatError:
            self.skipped += 1
            raise
        if is_new:
            if self.newer:
                change = self.newer.without(change)
            self.apply(change, decoded.store_timestamp, physical_offset)
        return change

    def apply(self, change: StateChange, timestamp: int, physical_offset: int = 0) -> None:
        """Apply a change; `timestamp` (ms since the epoch) and `physical_offset` are those of its record."""
        if change.topics:
            self.topic_version = self.topic_version.next(timestamp)
            update_table(self.topics, change.topics)
            self._forget_topics({name for name, value in change.topics.items() if value is None}, physical_offset)
        if change.groups or change.forbidden:
            self.group_version = self.group_version.next(timestamp)
            update_table(self.groups, change.groups)
            removed = {name: None for name, value in change.groups.items() if value is None}
            update_table(self.forbidden, {name: bits or None for name, bits in change.forbidden.items()} | removed)
            self.pop.forget_groups(removed.keys())
            self._forget_places(self.resets, lambda topic, group: group in removed)
        if change.users or change.acls:
            self.auth_version = self.auth_version.next(timestamp)
            update_table(self.users, change.users)
            update_table(self.acls, change.acls)
        if change.lanes:
            self.lane_version += 1
            lanes = {key: lane and lane.at(physical_offset, timestamp) for key, lane in change.lanes.items()}
            update_table(self.lanes, lanes)
        for key, queues in change.offsets.items():
            if queues is None:
                self.offsets.pop(key, None)
                self.resets.pop(key, None)
            else:
                self.offsets.setdefault(key, {}).update(queues)
        for key, resets in change.resets.items():
            update_table(self.resets.setdefault(key, {}), resets)
            if not self.resets[key]:
                del self.resets[key]
        self.pop.apply(change.pop)

    def user(self, name: str) -> User | None:
        """Return the user; None when there is none of that name."""
        return self.users.get(name)

    def acl(self, subject: str) -> Acl | None:
        """Return the subject's policies; None when it has none."""
        return self.acls.get(subject)

    def snapshot(self) -> bytes:
        """Return all tables as bytes, for a node that is too far behind for the log."""
        return orjson.dumps(
            {
                "format": 1,
                "appliedOffset": self.applied_offset,
                "topics": _configs(self.topics),
                "groups": _configs(self.groups),
                "offsets": self.offsets,
                "resets": self.resets,
                "forbidden": self.forbidden,
                "pop": self.pop.whole().to_json(),
                "users": _configs(self.users),
                "acls": _configs(self.acls),
                "lanes": _configs(self.lanes),
                "removed": self.removed,
                "topicVersion": self.topic_version.to_json(),
                "groupVersion": self.group_version.to_json(),
                "authVersion": self.auth_version.to_json(),
            },
            option=orjson.OPT_NON_STR_KEYS,
        )

    def restore(self, snapshot: bytes) -> None:
        """Replace all tables by those of `snapshot`; on an error nothing has changed.

        Raises:
            StateFormatError: it is no snapshot that this release can read.
        """
        place = "state snapshot"
        change = StateChange.decode(snapshot, place)
        values = orjson.loads(snapshot)
        if values.get("format") != 1:
            raise StateFormatError(place, f"format {values.get('format')!r} is not known, 1 is")
        try:
            applied = int(values["appliedOffset"])
            removed = {str(name): int(offset) for name, offset in values["removed"].items()}
            versions = [data_version(values[name]) for name in ("topicVersion", "groupVersion")]
            auth_version = data_version(values.get("authVersion", {}))
        except (KeyError, TypeError, ValueError, AttributeError, Refusal) as error:
            raise StateFormatError(place, repr(error)) from error
        self.topics = {name: value for name, value in change.topics.items() if value is not None}
        self.groups = {name: value for name, value in change.groups.items() if value is not None}
        self.offsets = {key: dict(queues) for key, queues in change.offsets.items() if queues is not None}
        self.resets = {key: _set(queues) for key, queues in change.resets.items()}
        self.forbidden = dict(change.forbidden)
        self.pop.replace(change.pop)
        self.users = {name: value for name, value in change.users.items() if value is not None}
        self.acls = {name: value for name, value in change.acls.items() if value is not None}
        self.lanes = {key: value for key, value in change.lanes.items() if value is not None}
        self.lane_version += 1
        self.auth_version = auth_version
        self.removed = removed
        self.topic_version, self.group_version = versions
        self.applied_offset, self.ahead_to = applied, 0
        self.is_foreign = False

    def _forget_topics(self, removed: set[str], physical_offset: int) -> None:
        for name in removed:
            self.removed.pop(name, None)
            self.removed[name] = physical_offset
        while len(self.removed) > REMOVED_MAX:
            del self.removed[next(iter(self.removed))]
        for table in (self.offsets, self.resets):
            self._forget_places(table, lambda topic, group: topic in removed)
        self.pop.forget_topics(removed)
        for key in [key for key in self.lanes if topic_of(key) in removed]:
            del self.lanes[key]
            self.lane_version += 1

    def _forget_places(self, table: dict[str, dict[int, int]], is_gone: Callable[[str, str], bool]) -> None:
        for key in [key for key in table if is_gone(*key.split(OFFSET_KEY_SEPARATOR, 1))]:
            del table[key]


def _parts(table: Mapping[str, _V]) -> Iterator[dict[str, _V]]:
    return parts_of(sorted(table.items()), _NAMES_MAX)


def _configs(table: Mapping[str, TopicConfig | GroupConfig | User | Acl | Lane | None]) -> dict[str, Any]:
    return {name: value and value.to_json() for name, value in table.items()}


def _table(tables: Any, name: str) -> list[tuple[str, Any]]:
    return list(tables.get(name, {}).items())


def forbidden_bits(value: Any) -> dict[str, int]:
    """Return a group's bits by topic, from JSON; topics without bits are left out."""
    return {str(topic): int(bits) for topic, bits in value.items() if int(bits)}


def reset_offsets(value: Any) -> dict[int, int | None]:
    """Return the resets of one `topic@group` by queue id, from JSON; None: the pull has had it."""
    return {int(queue): None if offset is None else int(offset) for queue, offset in value.items()}


def _set(values: Mapping[int, int | None]) -> dict[int, int]:
    return {number: value for number, value in values.items() if value is not None}


def _queue_offsets(value: Any) -> dict[int, int] | None:
    return None if value is None else {int(queue): int(offset) for queue, offset in value.items()}
