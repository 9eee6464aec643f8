"""One process of one node, from boot to kill: the interface that the cluster uses for every kind of node.

`CoreProcess` is a `RaftNode` on a simulated disk. `chaos.sim.stack` has the one that runs all that ships.
"""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

from chaos.sim.clock import SimClock
from chaos.sim.disk import ENTRIES_PER_FILE, SimDisk, SimHardStates, SimLog, payload_of, queue_offset_of
from chaos.sim.machine import Machine
from chaos.sim.network import SimNetwork
from chaos.sim.observer import Accounts, Observer
from chaos.sim.plan import ClockJump, GroupPlan
from dledger.core.errors import NotLeaderError, TransferRefusedError
from dledger.core.messages import AppendRequest, AppendResponse, Message, VoteResponse
from dledger.core.raft import Raft
from dledger.core.roles import RaftRole, SoftState
from dledger.core.settings import RaftSettings
from dledger.node import RaftNode
from store.errors import DiskFullError

_KILLED_IN_INSTALL = 0.3


class ProcessDiesError(BaseException):
    """The process dies within a file change. Not an `Exception`, since no code may handle it."""


class ClusterContext(Protocol):
    """The part of the cluster that a process uses."""

    plan: GroupPlan
    clock: SimClock
    clock_rates: dict[str, float]
    clock_jumps: Sequence[ClockJump]
    peers_of: dict[str, tuple[str, ...]]
    network: SimNetwork
    observer: Observer
    rng: Random
    on_elected: Callable[[str], None] | None

    def jitter(self, limit: int) -> int:
        """Return a random integer in `[0, limit)`."""

    def hello_of(self, name: str) -> Any:
        """Return what a running process sends when it connects; None when it has ended or sends nothing."""

    def wall_ahead_us(self, name: str) -> int:
        """Return how far a node's wall clock is ahead now, in us; negative if it is behind."""

    def next_message(self) -> int:
        """Return the number of a client's next message, unique in a run."""

    def mark(self, what: str) -> None:
        """Count an event."""

    def rafts(self) -> dict[str, Raft]:
        """Return the Raft cores of all running processes."""

    def run(self, process: "SimProcess", what: str, event: Callable[[], None]) -> None:
        """Run an event in a process."""

    def check_early_grant(self, process: "SimProcess", peer: str) -> None:
        """Check that a process may grant a pre-vote to `peer` already."""


class SimProcess:
    """One process of one node.

    Attributes:
        node: the shipping Raft node; made by the subclass.
        soft: the last soft state that the node reported.
        failure: the error with which the node left the group; None while it is in it.
        waiting: (last index, term) of batches that are not acknowledged yet, oldest first.
    """

    node: RaftNode

    def __init__(self, cluster: ClusterContext, name: str, number: int, disk: Machine[Any]) -> None:
        self._cluster = cluster
        self.name = name
        self.number = number
        self.disk = disk
        self.is_dead = False
        self.paused_until_us = 0
        self.backlog: list[Callable[[], None]] = []
        self.ticked_us = 0
        self.heard_us = 0
        self.heard_from = ""
        self.soft: SoftState | None = None
        self.failure: Exception | None = None
        self.waiting: list[tuple[int, int]] = []

    @property
    def raft(self) -> Raft:
        return self.node.raft

    @property
    def begin_of_log(self) -> int:
        """Physical offset at which the log begins."""
        raise NotImplementedError

    @property
    def end_of_log(self) -> int:
        """Physical offset at which the log ends."""
        raise NotImplementedError

    @property
    def is_writable(self) -> bool:
        """Whether the node accepts clients' messages, by its last report."""
        return self.soft is not None and self.soft.writable

    def now_us(self) -> int:
        """Return the node's own monotonic clock, in us; it may run fast or slow."""
        return int(self._cluster.clock.now_us * self._cluster.clock_rates[self.name])

    # -- for the subclass

    def start(self) -> None:
        """Begin the periodic work of the process."""
        raise NotImplementedError

    def start_flushing(self) -> None:
        """Begin a flush as ASYNC_FLUSH does, for which no acknowledgement waits."""

    def end(self) -> None:
        """End the process."""
        self.is_dead = True
        self.backlog.clear()

    def propose(self, count: int) -> None:
        """Append a client's batch of `count` messages."""
        raise NotImplementedError

    def trim(self) -> None:
        """Delete the oldest file, if no member needs it, as retention does."""
        raise NotImplementedError

    def trim_all(self) -> None:
        """Delete all files that no member needs."""
        raise NotImplementedError

    def use_topic(self, name: str) -> None:
        """Create a topic for a client, or send a message to it if it exists."""
        raise NotImplementedError

    def remove_topic(self, name: str) -> None:
        """Remove a topic for a client."""
        raise NotImplementedError

    def has_topic(self, name: str) -> bool:
        """Return whether the topic is in the replicated tables."""
        raise NotImplementedError

    def has_messages(self, topic: str) -> bool:
        """Return whether this member would serve messages of the topic."""
        raise NotImplementedError

    def perform(self, event: Callable[[], None]) -> None:
        """Run an event in this process.

        Raises:
            ProcessDiesError: it died meanwhile.
        """
        event()

    def check_boot(self) -> None:
        """Check the state that the start has found."""

    def check_end(self) -> None:
        """Check what the process shows at the end of a run."""

    def why_not_well(self) -> str:
        """Return what is still missing though all faults are repaired; empty if nothing is."""
        return ""

    def meets(self, other: "SimProcess") -> bool:
        """Return whether the two accept each other as members of their group."""
        return True

    def tell_disk_stalled(self, *, is_stalled: bool) -> None:
        """Report that a watchdog noticed a flush that does not return, or that it has returned."""

    # -- messages in

    def receive(self, peer: str, message: Message) -> None:
        """Hand a peer's message to the node."""
        self._cluster.observer.receives(self.name, peer, message)
        self.node.on_message(peer, message)
        self.note_heard(peer, message)

    def note_heard(self, peer: str, message: Message) -> None:
        """Note when the leader was heard last."""
        if isinstance(message, AppendRequest) and message.term == self.raft.state.term:
            self.heard_us, self.heard_from = self.ticked_us, peer

    def lose(self, peer: str) -> None:
        """Handle the loss of the connection to a peer."""
        self.note_lost(peer)
        self.node.on_peer_lost(peer)

    def note_lost(self, peer: str) -> None:
        """Forget when the leader was heard, if the connection to it is lost."""
        if self.heard_from == peer:
            self.heard_from = ""

    def join(self, peer: str) -> None:
        """Handle a new connection to a peer."""
        self.node.on_peer_joined(peer)

    def read(self) -> None:
        """Begin a client's linearizable read."""
        cluster, owed_index = self._cluster, self._cluster.observer.acked_index

        def done(index: int | None) -> None:
            if index is not None:
                cluster.mark("read served")
                cluster.observer.read(self.name, index, min(owed_index, cluster.observer.acked_index))

        try:
            self.node.read_index(done)
        except NotLeaderError:
            return

    def transfer(self, target: str | None) -> None:
        """Begin a hand-over on an operator's request."""
        try:
            self.node.transfer(target)
        except (NotLeaderError, TransferRefusedError):
            return
        self._cluster.mark("transfer begun")

    # -- messages out, and reports of the node

    def note_sent(self, peer_id: str, message: Message) -> None:
        """Check a message that is about to be sent."""
        cluster = self._cluster
        cluster.observer.sends(self.name, self.raft, peer_id, message)
        if isinstance(message, VoteResponse):
            cluster.mark(f"vote {message.cause.name.lower()}")
            if message.granted and message.pre_vote:
                cluster.check_early_grant(self, peer_id)
        elif isinstance(message, AppendResponse) and not message.accepted:
            cluster.mark("append rejected")

    def note_role(self, state: SoftState) -> None:
        """Note the node's new soft state, and check it if the node was elected."""
        before, self.soft = self.soft, state
        if state.role is not RaftRole.LEADER:
            self.waiting.clear()
        elif before is not None and before.role is not RaftRole.LEADER:
            # checked now: before this process's next event others may have written its first entry
            self._cluster.observer.after(self.name, self.raft)
            self._cluster.mark("leader elected")
            if self._cluster.on_elected is not None:
                self._cluster.on_elected(self.name)
            if self.raft.member.leader is not None and self.raft.member.leader.is_salvage:
                self._cluster.mark("leader elected by salvage")
        if before is not None and before.recovering and not state.recovering:
            self._cluster.mark("member brought up to date")

    def note_failed(self, error: Exception) -> None:
        """Note that the node left the group."""
        self.failure = error
        self._cluster.mark("member left the group")


class CoreProcess(SimProcess):
    """A `RaftNode` on a `SimDisk`. Implements its transport, state machine and listener."""

    def __init__(self, cluster: ClusterContext, accounts: "OneQueue", name: str, number: int, disk: SimDisk) -> None:
        super().__init__(cluster, name, number, disk)
        self._accounts = accounts
        self._disk = disk
        self.next_queue_offset = 0  # set to the committed end when the node becomes writable, as a message store does
        self.log = SimLog(disk, self._appended, self._truncates)
        self.log.base_chain = cluster.observer.committed_chain
        self.node = RaftNode(
            settings_of(cluster.plan, name),
            log=self.log,
            hard_states=SimHardStates(disk),
            transport=self,
            machine=self,
            listener=self,
            jitter=cluster.jitter,
            now_ms=self.now_us() // 1000,
            commit_index=-1,
        )
        disk.on_failed = self._disk_failed
        cluster.observer.booted(name, self.raft)

    # -- what happens to it

    def start(self) -> None:
        self._tick()

    def start_flushing(self) -> None:
        """Flush from time to time, as ASYNC_FLUSH does."""
        if not self.is_dead and not self._cluster.plan.durable_quorum:
            self.log.flush_now_and_then()
            self._cluster.clock.call_in(50_000 + self._cluster.jitter(50_000), self.start_flushing)

    def _tick(self) -> None:
        if self.is_dead:
            return
        cluster = self._cluster
        cluster.run(self, "tick", self.tick)
        paused_us = max(0, self.paused_until_us - cluster.clock.now_us)
        tick_us = 1000 * cluster.plan.tick_ms
        if cluster.plan.is_lockstep:
            wait_us = tick_us - (cluster.clock.now_us + paused_us) % tick_us
        else:
            wait_us = int(tick_us * (0.8 + 0.4 * cluster.rng.random()))
        cluster.clock.call_in(paused_us + wait_us, self._tick)

    def tick(self) -> None:
        """Tell the node the time; between two ticks it knows no later time."""
        self.ticked_us = self._cluster.clock.now_us
        self.node.on_tick(self.now_us() // 1000)

    def end(self) -> None:
        super().end()
        self.log.is_closed = True

    def propose(self, count: int) -> None:
        if not self.is_writable or self.disk.is_full or self.disk.has_failed:
            return
        try:
            first_index, term = self.node.propose(count)
        except NotLeaderError:
            return
        for _ in range(count):
            self.log.write(term, payload_of(self._cluster.next_message(), self.next_queue_offset))
            self.next_queue_offset += 1
        self.waiting.append((first_index + count - 1, term))
        self.node.proposed()

    def trim(self) -> None:
        disk = self._disk
        first_index = (disk.first_index // ENTRIES_PER_FILE + 1) * ENTRIES_PER_FILE
        if first_index <= min(self.node.commit_index, disk.durable_index):
            disk.trim(first_index)
            disk.tables_index = max(disk.tables_index, self.node.commit_index)
            self.node.on_trimmed()
            self._cluster.mark("file deleted")

    def tell_disk_stalled(self, *, is_stalled: bool) -> None:
        self.node.on_disk_stalled(is_stalled=is_stalled)

    # -- Transport, StateMachine, NodeListener

    def send(self, peer_id: str, message: Message) -> None:
        self.note_sent(peer_id, message)
        self._cluster.network.send(self.name, peer_id, message)

    def snapshot(self) -> bytes:
        return b"%0100d" % self.raft.state.commit_index  # long enough for several parts

    def restore(self, state: bytes) -> None:
        if self.disk.is_full:
            self._cluster.mark("install waits for room")
            raise DiskFullError(Path("tables"), len(state))
        if self._cluster.rng.random() < _KILLED_IN_INSTALL:
            self._cluster.observer.is_lossy = True
            raise ProcessDiesError
        self._disk.tables_index = int(state)

    def on_commit(self, commit_index: int) -> None:
        raft, waiting = self.raft, self.waiting
        self._cluster.observer.after(self.name, raft)  # the commit comes before its acknowledgements
        while waiting and waiting[0][0] <= commit_index:
            index, term = waiting.pop(0)
            if raft.member.role is RaftRole.LEADER and raft.state.term == term:
                self._cluster.observer.acknowledged(self.name, term, index, self._cluster.rafts())

    def on_role(self, state: SoftState) -> None:
        if state.writable and not self.is_writable:
            self.next_queue_offset = self._accounts.message_count(self.node.commit_index)
        self.note_role(state)

    def on_truncated(self, last_index: int) -> None:
        self._cluster.mark("follower truncated")

    def on_reset(self, first_index: int, start_position: int) -> None:
        self._cluster.mark("log reset by install")

    def on_failed(self, error: Exception) -> None:
        self.note_failed(error)

    def _disk_failed(self) -> None:
        error = OSError(errno.EIO, "simulated")
        self._cluster.run(self, "disk failed", lambda: self.node.on_disk_failed(error))

    def _appended(self, index: int) -> None:
        self._cluster.observer.appended(self.name, index)

    def _truncates(self, last_index: int) -> None:
        self._cluster.observer.truncates(self.name, self.raft, last_index)


def settings_of(plan: GroupPlan, name: str) -> RaftSettings:
    """Return the settings of one node."""
    return RaftSettings(
        node_id=name,
        peers=plan.names,
        priorities=plan.priorities,
        durable_quorum=plan.durable_quorum,
        heartbeat_ms=plan.heartbeat_ms,
        election_min_ms=plan.election_min_ms,
        election_max_ms=plan.election_max_ms,
        stagger_ms=max(2, plan.heartbeat_ms // 3),
        prefer_interval_ms=plan.election_max_ms,
        span_limit_bytes=plan.span_limit_bytes,
        window_bytes=plan.window_bytes,
        tick_slack_ms=2 * plan.tick_ms,
    )


class CoreKit:
    """Makes groups of `RaftNode`s alone: more runs in the same time than with whole brokers."""

    def __init__(self) -> None:
        self._queue = OneQueue()
        self.accounts: Accounts[int] = self._queue

    def disk(self, cluster: ClusterContext, _name: str) -> SimDisk:
        """Make a new, empty disk."""
        return SimDisk(cluster.clock, cluster.rng, cluster.plan.flush_us)

    def process(self, cluster: ClusterContext, name: str, number: int, disk: SimDisk) -> CoreProcess:
        """Start a node's process on a disk."""
        return CoreProcess(cluster, self._queue, name, number, disk)

    def ask_any(self, _cluster: ClusterContext) -> None:
        """Do nothing: nodes without brokers have no sockets."""

    def ask_each(self, _cluster: ClusterContext) -> Callable[[], str]:
        """Do nothing; return a function that names no client."""
        return str

    def repaired(self, _cluster: ClusterContext) -> None:
        """Do nothing: there are no nameservers."""

    def fail_over(self, _cluster: ClusterContext, _leader_dies: Callable[[], None]) -> Callable[[], str]:
        """Do nothing: there are no programs."""
        return str

    def close(self) -> None:
        """Do nothing: there are no files."""


class OneQueue:
    """The accounts of a group that serves one queue: the n-th committed message has queue offset n, from 0."""

    def __init__(self) -> None:
        self._counts: list[int] = []  # messages up to each committed entry

    def message_count(self, index: int) -> int:
        """Return the number of messages in the committed log up to `index`: the queue offset of the next one."""
        return self._counts[index] if index >= 0 else 0

    def enter(self, index: int, payload: int) -> str | None:
        """Take the next committed entry; return what is wrong with its place in the queue, or None."""
        count, queue_offset = self.message_count(index - 1), queue_offset_of(payload)
        if queue_offset is not None and queue_offset != count:
            return f"queue offset {queue_offset}, of which the queue has {count} already"
        self._counts.append(count + (queue_offset is not None))
        return None

    def forget_above(self, index: int) -> None:
        """Forget the entries above `index`."""
        del self._counts[index + 1 :]
