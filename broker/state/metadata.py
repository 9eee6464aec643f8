"""Topics and groups as this broker sees them: the replicated tables, this leader's proposals, and the built-in topics.

    look-up:  proposed, not committed  ->  replicated state  ->  built-in topics of this cluster and broker
    change:   check -> record of the state topic (same turn, before the message that needs it) -> commit -> apply

A proposal is visible to its leader at once, so that messages behind it in the log can be accepted; it is dropped when
the log refuses it.

A removal is undecided from its proposal until it is committed or refused. Meanwhile the topic or group does not exist
here. A request that would create it again, or write its messages or progress, is refused or waits: behind the removal
such records would belong to a topic that the other nodes do not know.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from broker.config import BrokerConfig
from broker.identity import BrokerIdentity
from broker.role import Role
from broker.state import names
from broker.state.new_topics import NewTopics
from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import ChangeDone, Propose, ReplicatedState, StateChange, offset_key, when_all
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import PERM_INHERIT, PERM_READ_WRITE
from store.queues.queue_kinds import LIGHT_PREFIX
from store.replicated_log import PLACED

_V = TypeVar("_V")

_ENTRIES_PER_RECORD = 100

FORBIDDEN_READ = 4
"""The bit that forbids reading, in RocketMQ's numbering."""


class Metadata:
    """Looks up and changes topics and groups.

    Args:
        propose: appends a change; its callback gets None when the change is committed and applied, or the refusal.
        new_topics: keeps track of topics that are created by sends.

    Attributes:
        on_changed: called when look-ups may have other results than before.
        before_removal: appends gathered progress, so that a topic's progress is before its removal in the log.
        uncounted: queues and groups whose creation, change or removal was proposed and is not counted for a quota:
            what this broker did by itself, and what the request did that is being served.
    """

    def __init__(
        self, config: BrokerConfig, state: ReplicatedState, role: Role, propose: Propose, new_topics: NewTopics
    ) -> None:
        self._config = config
        self._state = state
        self._role = role
        self._propose = propose
        self._new_topics = new_topics
        self.on_changed: Callable[[], None] = lambda: None
        self._built_in = {topic.name: topic for topic in _built_in_topics(config)}
        self.before_removal: Callable[[], None] = lambda: None
        self.uncounted = 0
        self._proposed_topics: dict[str, TopicConfig | None] = {}
        self._proposed_groups: dict[str, GroupConfig | None] = {}
        self._proposed_forbidden: dict[str, Mapping[str, int]] = {}

    # ---- look-up

    def topic(self, name: str) -> TopicConfig | None:
        """Return the topic; None when it is unknown or its removal is undecided."""
        if name in self._proposed_topics:
            return self._proposed_topics[name]
        found = self._state.topics.get(name) or self._built_in.get(name)
        if found is None and self._config.store.kinds.light and name.startswith(LIGHT_PREFIX):
            return TopicConfig(name=name, read_queues=1, write_queues=1)
        return found

    def group(self, name: str) -> GroupConfig | None:
        """Return the group; None when it is unknown or its removal is undecided."""
        if name in self._proposed_groups:
            return self._proposed_groups[name]
        return self._state.groups.get(name) or (GroupConfig(name=name) if name in names.SYSTEM_GROUPS else None)

    def group_or_new(self, name: str) -> GroupConfig | None:
        """Return the group; None if it is unknown and the configuration allows no creation with default settings.

        A follower creates nothing and returns the group all the same: the leader creates it at the client's heartbeat.

        Raises:
            Refusal: INVALID_PARAMETER, the name is not allowed for a group.
        """
        found = self.group(name)
        if found is not None or not self._config.auto_create_group:
            return found
        if name:  # RocketMQ makes a group without a name
            names.check_group_name(name)
        group = GroupConfig(name=name)
        if self._role.writable:
            self.put_group(group)
        return group

    def existing_topic(self, name: str) -> TopicConfig:
        """Return the topic, which must exist.

        Raises:
            Refusal: TOPIC_NOT_EXIST.
        """
        found = self.topic(name)
        if found is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        return found

    def topics(self) -> dict[str, TopicConfig]:
        """Return all committed topics and the built-in ones, by name."""
        return self._built_in | self._state.topics

    def groups(self) -> dict[str, GroupConfig]:
        """Return all committed groups and the system groups, by name."""
        return {name: GroupConfig(name=name) for name in names.SYSTEM_GROUPS} | self._state.groups

    def is_undecided(self, topic: str, group: str | None = None) -> bool:
        """Return whether the removal of the topic, or of the group where one is given, is proposed and not decided."""
        is_topic = topic in self._proposed_topics and self._proposed_topics[topic] is None
        is_group = group is not None and group in self._proposed_groups and self._proposed_groups[group] is None
        return is_topic or is_group

    def check_decided(self, topic: str) -> None:
        """Refuse while the removal of the topic is undecided.

        Raises:
            Refusal: BUSY.
        """
        if self.is_undecided(topic):
            raise Refusal(Cause.BUSY, f"topic {topic} is being removed, try again soon", retry_after_ms=200)

    # ---- change

    def create_from_template(self, name: str, template: str, queue_count: int) -> TopicConfig | None:
        """Create the topic of a first send from its template (protocol page 3.8); None if the template allows none.

        `queue_count` is the number of queues that the producer asks for, limited by that of the template.
        """
        if name in self._proposed_topics:
            return None  # its removal is undecided
        origin = self.topic(template)
        if origin is None or not origin.perm & PERM_INHERIT:
            return None
        count = max(0, min(queue_count, origin.write_queues))
        topic = TopicConfig(name=name, read_queues=count, write_queues=count, perm=origin.perm & ~PERM_INHERIT)
        return self._make_for_sender(topic)

    def topic_for_group(self, name: str, queue_count: int) -> TopicConfig:
        """Return the retry or dead-letter topic; create it when it is missing and this node leads.

        Raises:
            Refusal: NOT_LEADER or NO_QUORUM; INVALID_PARAMETER for the name; BUSY while its removal is undecided.
        """
        self.check_decided(name)
        found = self.topic(name)
        if found is None:
            names.check_topic_name(name.replace(names.POP_RETRY_V2, "_", 1))
            self._role.check_writable()
            return self._make_for_sender(TopicConfig(name=name, read_queues=queue_count, write_queues=queue_count))
        return found

    def put_topic(self, topic: TopicConfig, done: ChangeDone | None = None) -> None:
        """Propose a new topic or new settings of one.

        Raises:
            Refusal: INVALID_PARAMETER when there are `max_topics` already; BUSY while its removal is undecided.
        """
        self._check_room(topic.name)
        self._change(StateChange(topics={topic.name: topic}), done)

    def put_topics(self, topics: Sequence[TopicConfig], done: ChangeDone) -> Iterator[None]:
        """Propose several topics as `put_topic` does, in steps of one record each; none if there is no room for all."""
        for topic in topics:
            self.check_decided(topic.name)
            yield
        self._check_topic_count(_missing((topic.name for topic in topics), self._state.topics))
        done = when_all(-(-len(topics) // _ENTRIES_PER_RECORD), done)
        for start in range(0, len(topics), _ENTRIES_PER_RECORD):
            piece = topics[start : start + _ENTRIES_PER_RECORD]
            try:
                for topic in piece:
                    self.check_decided(topic.name)  # again: a removal may have come since, or other topics
                self._check_topic_count(_missing((topic.name for topic in piece), self._state.topics))
            except Refusal as refusal:
                done(refusal)
                return
            self._change(StateChange(topics={topic.name: topic for topic in piece}), done)
            yield

    def remove_topics(self, names_: Iterable[str], done: ChangeDone | None = None) -> None:
        """Propose the removal of topics, their messages' queues and their offsets: all or none."""
        self._change(StateChange(topics=dict.fromkeys(names_)), done)

    def put_group(self, group: GroupConfig, done: ChangeDone | None = None) -> None:
        """Propose a new group or new settings of one.

        Raises:
            Refusal: INVALID_PARAMETER when there are `max_groups` already.
        """
        self._check_group_count(_missing([group.name], self._state.groups))
        self._change(StateChange(groups={group.name: group}), done)

    def put_groups(self, groups: Sequence[GroupConfig], done: ChangeDone) -> Iterator[None]:
        """Propose several groups as `put_group` does, in steps of one record each; none if there is no room for all."""
        self._check_group_count(_missing((group.name for group in groups), self._state.groups))
        done = when_all(-(-len(groups) // _ENTRIES_PER_RECORD), done)
        for start in range(0, len(groups), _ENTRIES_PER_RECORD):
            piece = groups[start : start + _ENTRIES_PER_RECORD]
            try:
                self._check_group_count(_missing((group.name for group in piece), self._state.groups))
            except Refusal as refusal:  # others have come since
                done(refusal)
                return
            self._change(StateChange(groups={group.name: group for group in piece}), done)
            yield

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Return whether an administrator has forbidden the group to read the topic."""
        table = self._state.forbidden.get(group)
        return table is not None and bool(table.get(topic, 0) & FORBIDDEN_READ)

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Return the bits of forbidden actions, by group, then topic."""
        return self._state.forbidden

    def forbid_read(self, group: str, topic: str, is_forbidden: bool, done: ChangeDone) -> None:
        """Propose to forbid the group to read the topic, or to allow it again."""
        table = dict(self._proposed_forbidden.get(group, self._state.forbidden.get(group, {})))
        bits = table.pop(topic, 0) & ~FORBIDDEN_READ
        if bits := bits | (FORBIDDEN_READ if is_forbidden else 0):
            table[topic] = bits
        self._change(StateChange(forbidden={group: table}), done)

    def remove_group(self, name: str, topics: Iterable[str], done: ChangeDone | None = None) -> None:
        """Propose the removal of a group, and of its offsets in these topics."""
        keys = [offset_key(topic, name) for topic in topics]
        self._change(StateChange(groups={name: None}, offsets=dict.fromkeys(keys)), done)

    def forget_proposals(self) -> None:
        """Drop all proposals: this node no longer leads, and only what is committed counts."""
        self._proposed_topics.clear()
        self._proposed_groups.clear()
        self._proposed_forbidden.clear()

    def applied(self, change: StateChange) -> None:
        """Note that a change is applied to the replicated state, so that its removals are decided."""
        self._forget(_removed(change.topics), _removed(change.groups))

    def _forget(self, topics: Mapping[str, TopicConfig | None], groups: Mapping[str, GroupConfig | None]) -> None:
        _remove_same(self._proposed_topics, topics.items())
        _remove_same(self._proposed_groups, groups.items())

    def _make_for_sender(self, topic: TopicConfig) -> TopicConfig:
        self._check_room(topic.name)
        self._change(StateChange(topics={topic.name: topic}), self._new_topics.add(topic.name))
        return topic

    def _check_room(self, name: str) -> None:
        self.check_decided(name)
        self._check_topic_count(_missing([name], self._state.topics))

    def _check_topic_count(self, new: Collection[str]) -> None:
        _check_count("topic", new, len(self._state.topics), self._config.max_topics, "maxTopics")

    def _check_group_count(self, new: Collection[str]) -> None:
        _check_count("group", new, len(self._state.groups), self._config.max_groups, "maxGroups")

    def _change(self, change: StateChange, done: ChangeDone | None) -> None:
        if None in change.topics.values() or None in change.groups.values():
            self.before_removal()
        self.uncounted += sum(map(_queue_count, change.topics.values())) + len(change.groups)
        self._proposed_topics.update(change.topics)
        self._proposed_groups.update(change.groups)
        if change.topics or change.groups:
            self.on_changed()
        self._proposed_forbidden.update(change.forbidden)

        def settle(refusal: Refusal | None) -> None:
            self._forget(_without_removed(change.topics), _without_removed(change.groups))
            _remove_same(self._proposed_forbidden, change.forbidden.items())
            # A removal that was placed may still be committed, see `applied`.
            if refusal is not None and refusal.cause not in PLACED:
                self._forget(_removed(change.topics), _removed(change.groups))
            if done is not None:
                done(refusal)

        self._propose(change, settle)


def _missing(names_: Iterable[str], table: Mapping[str, object]) -> set[str]:
    """Return the names that are not in the table; a set minus the table's keys would look at all of these."""
    return {name for name in names_ if name not in table}


def _check_count(what: str, new: Collection[str], count: int, most: int, key: str) -> None:
    """Refuse if these new names, beside `count` present ones, are more than `most`."""
    if new and count + len(new) > most:
        names_ = f"{what} {next(iter(new))}" if len(new) == 1 else f"{len(new)} {what}s"
        raise Refusal(
            Cause.INVALID_PARAMETER, f"{names_} cannot be created: there are {count}, and {most} are the most ({key})"
        )


def _queue_count(topic: TopicConfig | None) -> int:
    return 1 if topic is None else max(1, topic.read_queues, topic.write_queues)


def _remove_same(table: dict[str, _V], items: Iterable[tuple[str, _V]]) -> None:
    """Remove those items that no later proposal has replaced."""
    for name, value in items:
        if name in table and table[name] is value:
            del table[name]


def _without_removed(table: Mapping[str, _V | None]) -> dict[str, _V | None]:
    return {name: value for name, value in table.items() if value is not None}


def _removed(table: Mapping[str, _V | None]) -> dict[str, _V | None]:
    return {name: None for name, value in table.items() if value is None}


def _built_in_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the topics that every RocketMQ broker creates at its start (protocol page 3.8), and the state topic."""

    def topic(name: str, queues: int, perm: int = PERM_READ_WRITE) -> TopicConfig:
        return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm)

    identity, inheritable = BrokerIdentity(config), PERM_READ_WRITE | PERM_INHERIT
    count = config.default_topic_queue_count
    return [
        topic(names.TEMPLATE_TOPIC, count, inheritable if config.auto_create_topic else PERM_READ_WRITE),
        topic("SELF_TEST_TOPIC", 1),
        topic("BenchmarkTest", 1024),
        topic(identity.cluster, 16, inheritable),
        topic(identity.name, 1, inheritable),
        topic(names.reply_topic(identity.cluster), 1),
        topic("OFFSET_MOVED_EVENT", 1),
        topic(names.SCHEDULE_TOPIC, 18),
        topic(names.TIMER_TOPIC, 1),
        topic(names.HALF_TOPIC, 1),
        topic(names.OP_HALF_TOPIC, 1),
        topic(names.STATE_TOPIC, 1, 0),
        *([topic(config.trace_topic, 1)] if config.trace_topic else []),
    ]
