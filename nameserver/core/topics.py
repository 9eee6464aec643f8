"""The topic table: which queues each topic has on which broker name.

    topic -> broker name -> QueueData, and a revision per topic for those who wait for a change
    broker name -> its topics, so that a broker's end costs what it had, however many topics others have

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (topicQueueTable), 5.3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nameserver.core.model import PERM_READ, PERM_WRITE, QueueData, TopicTable

UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of `sys_flag`."""


class TopicIndex:
    """Mutated by `RouteTable` only.

    Args:
        next_revision: gives a number larger than all before, for each change that clients can see.

    Attributes:
        entry_count: topics, each counted once for every broker name that has it.
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
        """Queues by broker name; empty when the topic is unknown."""
        return self._queues.get(topic, {})

    def revision(self, topic: str) -> int:
        """When the topic's queues last changed; 0 when it is unknown."""
        return self._revisions.get(topic, 0)

    def mappings(self, topic: str) -> Mapping[str, Any] | None:
        """Static topics' queue mappings by broker name, or None."""
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
        """Keep the mappings of static topics that a registration named."""
        for topic, mapping in table.mappings.items():
            broker = str(mapping.get("bname"))
            if self._mappings.setdefault(topic, {}).get(broker) != mapping:
                self._mappings[topic][broker] = mapping
                if topic in self._queues:
                    self._revisions[topic] = self._next_revision()

    def remove(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        """Forget a topic, on some broker names or (None) wholly; unknown ones are passed over."""
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
        """Forget broker names whose last member is gone."""
        for name in broker_names:
            for topic in self.of_broker(name):
                self.remove(topic, broker_names)
            self._of_broker.pop(name, None)

    def of_broker(self, broker_name: str) -> list[str]:
        """Topics with queues on that broker name."""
        return list(self._of_broker.get(broker_name, ()))

    def wipe_write(self, broker_name: str) -> int:
        """Take the write permission off all topics of a broker name; how many topics it has."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable and nothing else; how many it has."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        topics = self.of_broker(broker_name)
        for topic in topics:
            queue = self._queues[topic][broker_name]
            self.put(topic, replace(queue, perm=change(queue.perm)))
        return len(topics)

    def with_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Topics whose `sys_flag`, at the first broker name that has them, is as wanted."""
        return [topic for topic, queues in self._queues.items() if wanted(next(iter(queues.values())).sys_flag)]
