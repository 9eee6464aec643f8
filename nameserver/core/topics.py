"""The topic table: the queues of each topic on each broker name.

    topic -> broker name -> QueueData, and a revision per topic for those who wait for a change
    broker name -> its topics, so that the end of a broker costs only as much as it had topics

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (topicQueueTable), 5.3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nameserver.core.model import PERM_READ, PERM_WRITE, QueueData, TopicTable

UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of `sys_flag`."""


class TopicIndex:
    """The queues of topics. Changed only by `RouteTable`.

    Args:
        next_revision: returns a number larger than all before, for each change that clients can see.

    Attributes:
        entry_count: number of pairs of a topic and a broker name that has it.
    """

    def __init__(self, next_revision: Callable[[], int]) -> None:
        self._next_revision = next_revision
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._of_broker: dict[str, dict[str, None]] = {}  # used as an ordered set
        self._revisions: dict[str, int] = {}
        self._mappings: dict[str, dict[str, Any]] = {}
        self.entry_count = 0

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def queues(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queues by broker name; empty when the topic is unknown."""
        return self._queues.get(topic, {})

    def revision(self, topic: str) -> int:
        """Return the revision at which the topic's queues last changed; 0 when it is unknown."""
        return self._revisions.get(topic, 0)

    def mappings(self, topic: str) -> Mapping[str, Any] | None:
        """Return a static topic's queue mappings by broker name, or None."""
        return self._mappings.get(topic)

    def put(self, topic: str, queue: QueueData) -> None:
        """Set the topic's queues on one broker name."""
        queues = self._queues.setdefault(topic, {})
        if queue.broker_name not in queues:
            self.entry_count += 1
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
        queues = self._queues.get(topic)
        if queues is None:
            return
        gone = set(queues) if broker_names is None else set(queues).intersection(broker_names)
        for name in gone:
            del queues[name]
            del self._of_broker[name][topic]
            self.entry_count -= 1
        if not queues:
            del self._queues[topic], self._revisions[topic]
            self._mappings.pop(topic, None)
        elif gone:
            self._revisions[topic] = self._next_revision()

    def remove_brokers(self, broker_names: set[str]) -> None:
        """Remove broker names whose last member has left."""
        for name in broker_names:
            for topic in self.of_broker(name):
                self.remove(topic, broker_names)
            self._of_broker.pop(name, None)

    def of_broker(self, broker_name: str) -> list[str]:
        """Return the topics with queues on that broker name."""
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
        return [topic for topic, queues in self._queues.items() if wanted(next(iter(queues.values())).sys_flag)]
