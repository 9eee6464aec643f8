"""Clients of a leading broker: messages to a few queues, topics created and removed, offsets, hand-overs.

Several requests are under way at a time. What is acknowledged is compared with what is committed, at that moment. At
the end of a run every replica is read.
"""

from typing import Any, Final

from broker.state.settings import GroupConfig, TopicConfig
from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.accounts import CommittedLog
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.refusal import Cause, Refusal

TOPICS: Final = ("T0", "T1", "T2")
QUEUES: Final = 2
GROUP: Final = "g"
_LARGE_GROUPS: Final = 40
_LARGE_ATTRIBUTE: Final = "." * 1800
"""An attribute that makes a group's settings so long that all groups exceed what may wait for a peer (`node`)."""
_HOST: Final = encode_host(Host("127.0.0.1", 1))


class Clients:
    """The clients of one broker, called without sockets."""

    def __init__(self, cluster: Any, accounts: CommittedLog, process: Any) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self._process = process

    def act(self, count: int) -> None:
        """Send one turn's requests, `count` messages among them, if the broker is writable."""
        cluster, dice = self._cluster, self._cluster.rng
        context = self._process.parts.context
        if not context.role.writable:
            return
        for _ in range(count):
            self._send(TOPICS[cluster.jitter(len(TOPICS))], cluster.jitter(QUEUES))
            if dice.random() < 0.05:
                self._change_topics()
        if dice.random() < 0.2:
            self._commit_offset()
        if cluster.plan.has_large_tables:
            self._make_a_large_group()

    def _send(self, topic: str, queue_id: int) -> None:
        context, cluster = self._process.parts.context, self._cluster
        try:
            target = context.targets.find({"b": topic, "e": str(queue_id)})
        except Refusal as refusal:
            if refusal.cause is Cause.TOPIC_NOT_EXIST and cluster.rng.random() < 0.3:
                self._make(topic)
            return
        number = cluster.next_message()
        size = cluster.jitter(2000 if cluster.rng.random() < 0.1 else 200)
        body = b"%d " % number + b"." * size
        draft = context.drafts.new(target, body, b"", born=(1_700_000_000_000, _HOST))

        def done(outcome: Any) -> None:
            if isinstance(outcome, Refusal):
                self._refused(outcome)
            else:
                self._acknowledged(draft, body)

        context.appender.add(draft, done)

    def _acknowledged(self, draft: Any, body: bytes) -> None:
        cluster, accounts, process = self._cluster, self._accounts, self._process
        key, at = (draft.topic.decode(), draft.queue_id), draft.physical_offset
        if not accounts.holds(key, draft.queue_offset, at, body):
            place = f"{key[0]}/{key[1]}/{draft.queue_offset}"
            raise SafetyViolation(
                "R16", f"{process.name} acknowledged a message at {place}, which is not committed there"
            )
        cluster.observer.acknowledged(process.name, process.raft.state.term, accounts.indexes[at], cluster.rafts())

    def _refused(self, refusal: Refusal) -> None:
        if refusal.cause is Cause.SYSTEM_ERROR:
            raise AssertionError(f"{self._process.name}: {refusal}")
        self._cluster.mark(f"refused {refusal.cause.name.lower()}")

    def _change_topics(self) -> None:
        topic = TOPICS[self._cluster.jitter(len(TOPICS))]
        metadata = self._process.parts.context.metadata
        if metadata.topic(topic) is None:
            self._make(topic)
            return
        self._cluster.mark("topic removed")
        metadata.remove_topics([topic])

    def use_topic(self, topic: str) -> None:
        """Create a topic, or send a message to its first queue."""
        context = self._process.parts.context
        if context.role.writable and topic in context.state.topics:
            self._send(topic, 0)
        elif context.role.writable:
            self._make(topic)

    def _make(self, topic: str) -> None:
        metadata = self._process.parts.context.metadata
        try:
            metadata.put_topic(TopicConfig(name=topic, read_queues=QUEUES, write_queues=QUEUES))
        except Refusal as refusal:
            self._refused(refusal)
            return
        self._cluster.mark("topic made")

    def _make_a_large_group(self) -> None:
        metadata = self._process.parts.context.metadata
        name = next((f"large{one}" for one in range(_LARGE_GROUPS) if metadata.group(f"large{one}") is None), None)
        if name is not None:
            metadata.put_group(GroupConfig(name=name, attributes={"long": _LARGE_ATTRIBUTE}))

    def _commit_offset(self) -> None:
        cluster = self._cluster
        topic, queue_id = TOPICS[cluster.jitter(len(TOPICS))], cluster.jitter(QUEUES)
        self._process.parts.context.offsets.commit(topic, GROUP, queue_id, cluster.jitter(100))

    def transfer(self, target: str | None) -> None:
        """Ask for a hand-over, as an operator does."""
        try:
            self._process.raft_log.transfer(target)
        except Refusal:
            return
        self._cluster.mark("transfer begun")
