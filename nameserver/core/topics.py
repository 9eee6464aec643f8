"""The topic table: the queues of each topic on each broker name.

    topic -> broker name -> QueueData, and a revision per topic for those who wait for a change
    broker name -> its topics, so that the end of a broker costs only as much as it had topics
    change of many topics -> applied in steps, after earlier changes; to a topic that is asked for, at once

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (topicQueueTable), 5.3.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ledgermq.remoting.route import PERM_READ, PERM_WRITE
from nameserver.core.model import QueueData, TopicTable

UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of `sys_flag`."""

CHANGED_AT_ONCE = 1000
"""Number of topics that are changed in one step, about a millisecond."""

_UNFINISHED_MAX = 8
"""Number of changes that may be unfinished; with one more, the oldest is finished in one step."""


@dataclass(slots=True)
class _Change:
    """A change of one broker name's queues in many topics: it is in effect, but not applied to all of them yet.

    Attributes:
        topics: all topics that change.
        left: topics to which it is not applied yet, except for `early`.
        make: applies it to one topic. Twice, with no other change of the topic in between, has the same effect as once.
        adds: whether it adds queues.
        early: topics to which it was applied out of turn, because somebody asked for them.
    """

    broker_name: str
    topics: Collection[str]
    left: Iterator[str]
    make: Callable[[str], None]
    adds: bool
    early: set[str] = field(default_factory=set)

    def go_on(self, count: int | None) -> int:
        """Apply the change to `count` more topics (None: to all); return to how many, fewer than `count` at the end."""
        topics = list(islice(self.left, count))
        for topic in topics:
            if topic not in self.early:
                self.make(topic)
        return len(topics)


class TopicIndex:
    """The queues of topics. Changed only by `RouteTable`.

    Args:
        next_revision: returns a number larger than all before, for each change that clients can see.
    """

    def __init__(self, next_revision: Callable[[], int]) -> None:
        self._next_revision = next_revision
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._of_broker: dict[str, dict[str, None]] = {}  # used as an ordered set
        self._revisions: dict[str, int] = {}
        self._mappings: dict[str, dict[str, Any]] = {}
        self._entry_count = 0
        self._unfinished: list[_Change] = []  # in their order

    def __len__(self) -> int:
        """Return the number of topics in the table; while `is_changing` some may be added or removed."""
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        self.change_some(None)
        return iter(self._queues)

    @property
    def entry_count(self) -> int:
        """Return the number of pairs of a topic and a broker name; an upper bound while `is_changing`."""
        return self._entry_count + sum(len(change.topics) for change in self._unfinished if change.adds)

    def queues(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queues by broker name; empty when the topic is unknown."""
        self._settle(topic)
        return self._queues.get(topic, {})

    def revision(self, topic: str) -> int:
        """Return the revision at which the topic's queues last changed; 0 when it is unknown."""
        return self._revisions.get(topic, 0)

    def mappings(self, topic: str) -> Mapping[str, Any] | None:
        """Return a static topic's queue mappings by broker name, or None."""
        return self._mappings.get(topic)

    def enter(self, broker_name: str, topics: Mapping[str, QueueData], *, is_news: bool, is_read_only: bool) -> None:
        """Set the queues of topics on one broker name: in effect at once, applied to many topics by `change_some`.

        Args:
            broker_name: the one that has all these queues.
            topics: by name; not to be changed afterwards.
            is_news: replace what is known; else only add topics that the broker name lacks.
            is_read_only: take the permission to write off all of them.
        """

        def make(topic: str) -> None:
            if is_news or broker_name not in self._queues.get(topic, ()):
                queue = topics[topic]
                self._put(topic, replace(queue, perm=queue.perm & ~PERM_WRITE) if is_read_only else queue)

        self._change(broker_name, topics, make, adds=True)

    @property
    def is_changing(self) -> bool:
        """Return whether a change of many topics is unfinished; `change_some` finishes it."""
        return bool(self._unfinished)

    def change_some(self, count: int | None = CHANGED_AT_ONCE) -> None:
        """Apply unfinished changes to `count` more topics; None: to all."""
        while self._unfinished:
            change = self._unfinished[0]
            made = change.go_on(count)
            if made == count:
                return
            del self._unfinished[0]
            count = None if count is None else count - made

    def _change(self, broker_name: str, topics: Collection[str], make: Callable[[str], None], *, adds: bool) -> None:
        """Apply a change to these topics, at once if they are few; `topics` must not be changed afterwards."""
        if len(topics) <= CHANGED_AT_ONCE:
            for topic in topics:
                self._settle(topic)
                make(topic)
            return
        if len(self._unfinished) == _UNFINISHED_MAX:
            self._unfinished.pop(0).go_on(None)
        self._unfinished.append(_Change(broker_name, topics, iter(topics), make, adds))
        self.change_some(CHANGED_AT_ONCE)

    def _settle(self, topic: str) -> None:
        """Apply all unfinished changes to one topic."""
        for change in self._unfinished:
            if topic in change.topics and topic not in change.early:
                change.early.add(topic)
                change.make(topic)

    def put(self, topic: str, queue: QueueData) -> None:
        """Set the topic's queues on one broker name."""
        self._settle(topic)
        self._put(topic, queue)

    def _put(self, topic: str, queue: QueueData) -> None:
        queues = self._queues.setdefault(topic, {})
        if queue.broker_name not in queues:
            self._entry_count += 1
        if queues.get(queue.broker_name) != queue:
            queues[queue.broker_name] = queue
            self._of_broker.setdefault(queue.broker_name, {})[topic] = None
            self._revisions[topic] = self._next_revision()

    def put_mappings(self, table: TopicTable) -> None:
        """Keep the mappings of static topics in a registration."""
        for topic, mapping in table.mappings.items():
            broker = str(mapping.get("bname"))
            if self._mappings.setdefault(topic, {}).get(broker) != mapping:
                self._mappings[topic][broker] = mapping
                if topic in self._queues:
                    self._revisions[topic] = self._next_revision()

    def remove(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        """Remove a topic from some broker names or (None) from all; unknown ones are ignored."""
        self._settle(topic)
        self._remove(topic, broker_names)

    def _remove(self, topic: str, broker_names: Iterable[str] | None) -> None:
        queues = self._queues.get(topic)
        if queues is None:
            return
        gone = set(queues) if broker_names is None else set(queues).intersection(broker_names)
        for name in gone:
            del queues[name]
            self._of_broker.get(name, {}).pop(topic, None)
            self._entry_count -= 1
        if not queues:
            del self._queues[topic], self._revisions[topic]
            self._mappings.pop(topic, None)
            self._next_revision()
        elif gone:
            self._revisions[topic] = self._next_revision()

    def remove_brokers(self, broker_names: set[str]) -> None:
        """Remove broker names whose last member has left."""
        for name in broker_names:
            given_up = [change for change in self._unfinished if change.broker_name == name]
            self._unfinished = [change for change in self._unfinished if change.broker_name != name]
            for topics in (self._of_broker.pop(name, {}), *(change.topics for change in given_up)):
                self.remove_all(name, topics)  # without a copy of them all, which one step would make

    def remove_all(self, broker_name: str, topics: Collection[str]) -> None:
        """Remove these topics from one broker name; `topics` is not to be changed afterwards."""
        self._change(broker_name, topics, lambda topic: self._remove(topic, [broker_name]), adds=False)

    def of_broker(self, broker_name: str) -> dict[str, None]:
        """Return the topics with queues on that broker name, in order; while `is_changing` perhaps some more."""
        topics = dict(self._of_broker.get(broker_name, {}))
        for change in self._unfinished:
            if change.broker_name == broker_name:
                topics |= dict.fromkeys(change.topics)
        return topics

    def wipe_write(self, broker_name: str) -> int:
        """Take the write permission off all topics of a broker name; return their number."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Give all topics of a broker name permission to read and write, and no other; return their number."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        def make(topic: str) -> None:
            queue = self._queues.get(topic, {}).get(broker_name)
            if queue is not None:
                self._put(topic, replace(queue, perm=change(queue.perm)))

        topics = self.of_broker(broker_name)
        self._change(broker_name, topics, make, adds=False)
        return len(topics)

    def with_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics for whose `sys_flag`, on the first broker name that has them, `wanted` is true."""
        self.change_some(None)
        return [topic for topic, queues in self._queues.items() if wanted(next(iter(queues.values())).sys_flag)]
