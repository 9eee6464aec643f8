"""The queue that a message goes to: round robin over queues with a leader, or always the same queue for a key.

Round robin takes the brokers in turn (queue 0 of each, then queue 1 of each ...), and passes over a broker that has
just failed while another one is led. The queue of a key does not depend on leaders, so that order survives a failover.

Source: for keys apache/rocketmq `client/.../producer/selector/SelectMessageQueueByHash.java`, so that Java and Python
producers agree on a key's queue.
"""

from dataclasses import dataclass

from ledgermq.client.core.calls import Target
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.producer.faults import FaultWatch
from ledgermq.message.hashing import index_hash
from ledgermq.remoting.route import MessageQueue, TopicRoute


@dataclass(slots=True)
class _Ring:
    """The targets of one topic, as of one revision of the routes; `next` counts the choices."""

    revision: int
    targets: tuple[Target, ...]
    next: int


class QueueChoice:
    """Chooses queues for one producer.

    Args:
        may_create: send a topic that no nameserver knows to the brokers of the template topic TBW102, which create it.
        faults: knows which brokers to avoid; None avoids only the one that has just failed this send.
    """

    def __init__(self, routes: Routes, *, may_create: bool, faults: FaultWatch | None = None) -> None:
        self._routes = routes
        self._may_create = may_create
        self._faults = faults
        self._rings: dict[str, _Ring] = {}

    def route(self, topic: str) -> TopicRoute | None:
        """Return the topic's route, or that of the template topic if brokers may create the topic."""
        if self._may_create:
            return self._routes.route_or_template(topic)
        return self._routes.route(topic)

    def next(self, topic: str, failed_broker: str | None) -> Target | None:
        """Return the next queue in turn; None while no queue of the topic is led."""
        ring = self._rings.get(topic)
        if ring is None or ring.revision != self._routes.revision:
            ring = self._rings[topic] = self._ring(topic, ring.next if ring else 0)
        targets = ring.targets
        if self._faults is not None and (healthy := self._healthy(self._faults, ring, failed_broker)) is not None:
            return healthy
        for _ in targets:
            target = targets[ring.next % len(targets)]
            ring.next += 1
            if target.broker != failed_broker:
                return target
        return targets[ring.next % len(targets)] if targets else None

    def _healthy(self, faults: FaultWatch, ring: _Ring, failed_broker: str | None) -> Target | None:
        """Return a queue of an available broker, else of a reachable one; None when there is neither."""
        targets, strategy, now_ms = ring.targets, faults.strategy, faults.now_ms
        reachable: tuple[int, Target] | None = None
        for _ in targets:
            target = targets[ring.next % len(targets)]
            ring.next += 1
            if target.broker == failed_broker:
                continue
            if strategy.is_available(target.broker, now_ms):
                return target
            if reachable is None and strategy.is_reachable(target.broker):
                reachable = ring.next, target
        if reachable is None:
            return None
        ring.next, target = reachable  # continue after it
        return target

    def at(self, queue: MessageQueue) -> Target | None:
        """Return the leader of this queue's broker; None while there is none."""
        self._routes.route(queue.topic)  # begins to follow the topic
        address = self._routes.leader(queue.broker)
        return None if address is None else Target(queue.broker, queue.queue_id, address)

    def by_key(self, topic: str, key: str) -> MessageQueue | None:
        """Return the queue of a key; None while no route is known."""
        queues = self._queues(topic)
        return queues[index_hash(key) % len(queues)] if queues else None

    def by_number(self, topic: str, number: int) -> MessageQueue | None:
        """Return the queue with this index among all of the topic, sorted by broker and id; None without a route.

        Raises:
            InvalidArgumentError: the topic has fewer queues.
        """
        queues = self._queues(topic)
        if not queues:
            return None
        if not 0 <= number < len(queues):
            raise InvalidArgumentError(f"queue {number} of topic {topic!r}: it has queues 0 to {len(queues) - 1}")
        return queues[number]

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        route = self.route(topic)
        return route.write_queues if route else ()

    def _ring(self, topic: str, first: int) -> _Ring:
        by_round = sorted(self._queues(topic), key=lambda queue: (queue.queue_id, queue.broker))
        targets = tuple(target for queue in by_round if (target := self.at(queue)) is not None)
        return _Ring(self._routes.revision, targets, first)
