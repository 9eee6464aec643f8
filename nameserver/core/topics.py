"""The topic table: the queues of each topic on each broker name.

    topic -> broker name -> QueueData, and a revision per topic for those who wait for a change
    broker name -> its topics, so that the end of a broker costs only as much as it had topics
    registration of many topics -> entered some at a time; a topic that is asked for meanwhile, at once

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (topicQueueTable), 5.3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from nameserver.core.model import PERM_READ, PERM_WRITE, QueueData, TopicTable

UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of `sys_flag`."""

ENTERED_AT_ONCE = 1000
"""Topics entered in one step, about a millisecond."""


@dataclass(slots=True)
class _Entering:
    """Topics of one broker name that count, and are not all in the table yet.

    Attributes:
        left: those that are not.
        is_news: they take the place of what the table has; else only those are entered that it lacks.
        is_read_only: they are entered without the permission to write.
    """

    broker_name: str
    topics: Mapping[str, QueueData]
    left: Iterator[str]
    is_news: bool
    is_read_only: bool


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
        self._entering: _Entering | None = None

    def __len__(self) -> int:
        """Return the number of topics in the table; those still to be entered do not count."""
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        self._enter_all()
        return iter(self._queues)

    @property
    def entry_count(self) -> int:
        """Return the number of pairs of a topic and a broker name; an upper bound while `is_entering`."""
        return self._entry_count + (len(self._entering.topics) if self._entering is not None else 0)

    def queues(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queues by broker name; empty when the topic is unknown."""
        if self._entering is not None and topic in self._entering.topics:
            self._enter(self._entering, topic)
        return self._queues.get(topic, {})

    def revision(self, topic: str) -> int:
        """Return the revision at which the topic's queues last changed; 0 when it is unknown."""
        return self._revisions.get(topic, 0)

    def mappings(self, topic: str) -> Mapping[str, Any] | None:
        """Return a static topic's queue mappings by broker name, or None."""
        return self._mappings.get(topic)

    def enter(self, broker_name: str, topics: Mapping[str, QueueData], *, is_news: bool, is_read_only: bool) -> None:
        """Set the queues of topics on one broker name. All count at once; most of many are entered by `enter_some`.

        Args:
            broker_name: of all these queues.
            topics: by name; not to be changed afterwards.
            is_news: they take the place of what is known; else only topics are added that the broker name lacks.
            is_read_only: they count without the permission to write.
        """
        self._enter_all()
        self._entering = _Entering(broker_name, topics, iter(topics), is_news, is_read_only)
        self.enter_some()

    @property
    def is_entering(self) -> bool:
        """Return whether topics of a registration are still to be entered, by `enter_some`."""
        return self._entering is not None

    def enter_some(self, count: int | None = ENTERED_AT_ONCE) -> None:
        """Enter so many of the topics that are still to be entered; None: all."""
        if self._entering is None:
            return
        topics = list(islice(self._entering.left, count))
        for topic in topics:
            self._enter(self._entering, topic)
        if len(topics) != count:
            self._entering = None

    def _enter_all(self) -> None:
        """Enter all, before the table changes otherwise or is gone through."""
        if self._entering is not None:
            self.enter_some(None)

    def _enter(self, entering: _Entering, topic: str) -> None:
        if entering.is_news or entering.broker_name not in self._queues.get(topic, ()):
            queue = entering.topics[topic]
            self._put(topic, replace(queue, perm=queue.perm & ~PERM_WRITE) if entering.is_read_only else queue)

    def put(self, topic: str, queue: QueueData) -> None:
        """Set the topic's queues on one broker name."""
        self._enter_all()
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
        self._enter_all()
        queues = self._queues.get(topic)
        if queues is None:
            return
        gone = set(queues) if broker_names is None else set(queues).intersection(broker_names)
        for name in gone:
            del queues[name]
            del self._of_broker[name][topic]
            self._entry_count -= 1
        if not queues:
            del self._queues[topic], self._revisions[topic]
            self._mappings.pop(topic, None)
        elif gone:
            self._revisions[topic] = self._next_revision()

    def remove_brokers(self, broker_names: set[str]) -> None:
        """Remove broker names whose last member has left."""
        if self._entering is not None and self._entering.broker_name in broker_names:
            self._entering = None
        for name in broker_names:
            for topic in self.of_broker(name):
                self.remove(topic, broker_names)
            self._of_broker.pop(name, None)

    def of_broker(self, broker_name: str) -> list[str]:
        """Return the topics with queues on that broker name."""
        self._enter_all()
        return list(self._of_broker.get(broker_name, ()))

    def wipe_write(self, broker_name: str) -> int:
        """Take the write permission off all topics of a broker name; return their number."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Give all topics of a broker name permission to read and write, and no other; return their number."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self.of_broker(broker_name)
        for topic in topics:
            queue = self._queues[topic][broker_name]
            self.put(topic, replace(queue, perm=change(queue.perm)))
        return len(topics)

    def with_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics for whose `sys_flag`, on the first broker name that has them, `wanted` is true."""
        self._enter_all()
        return [topic for topic, queues in self._queues.items() if wanted(next(iter(queues.values())).sys_flag)]
