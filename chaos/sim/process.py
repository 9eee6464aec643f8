"""One life of one node: a `RaftNode`, and the ports that tie it to the simulated disk, network and clock."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from chaos.sim.clock import SimClock
from chaos.sim.disk import SimDisk, SimHardStates, SimLog
from chaos.sim.network import SimNetwork
from chaos.sim.observer import Observer
from dledger.core.messages import AppendResponse, Message, VoteResponse
from dledger.core.raft import Raft
from dledger.core.roles import RaftRole, SoftState
from dledger.core.settings import RaftSettings
from dledger.node import RaftNode
from store.errors import DiskFullError

_KILLED_IN_INSTALL = 0.3


class KilledInInstallError(Exception):
    """The process dies between the reset of its log and the tables that belong to it."""


class World(Protocol):
    """What a process needs of the cluster around it."""

    disks: dict[str, SimDisk]
    clock: SimClock
    clock_rates: dict[str, float]
    network: SimNetwork
    observer: Observer
    rng: Random
    on_elected: Callable[[str], None] | None

    def settings(self, name: str) -> RaftSettings:
        """The settings of one node."""

    def jitter(self, limit: int) -> int:
        """Random integer in `[0, limit)`."""

    def mark(self, what: str) -> None:
        """Count that something happened."""

    def rafts(self) -> dict[str, Raft]:
        """The cores of all living processes."""

    def run(self, process: "SimProcess", what: str, event: Callable[[], None]) -> None:
        """Let something happen to a process."""

    def check_early_grant(self, process: "SimProcess", peer: str) -> None:
        """A process grants a pre-vote to `peer`."""


class SimProcess:
    """One life of one node: from boot to kill. Implements its transport, state machine and listener."""

    def __init__(self, cluster: World, name: str, number: int) -> None:
        self._cluster = cluster
        self.name = name
        self.number = number
        self.disk = cluster.disks[name]
        self.is_dead = False
        self.paused_until_us = 0
        self.backlog: list[Callable[[], None]] = []
        self.ticked_us = 0
        self.heard_us = 0
        self.heard_from = ""
        self.soft: SoftState | None = None
        self.next_queue_offset = 0  # as a message store counts: on from the committed end, when the node turns writable
        self.failure: Exception | None = None
        self.waiting: list[tuple[int, int]] = []  # (last index, term) of proposals, oldest first
        self.log = SimLog(self.disk, self._appended, self._truncates)
        self.log.base_chain = cluster.observer.committed_chain
        self.node = RaftNode(
            cluster.settings(name),
            log=self.log,
            hard_states=SimHardStates(self.disk),
            transport=self,
            machine=self,
            listener=self,
            jitter=cluster.jitter,
            now_ms=self.now_ms(),
            commit_index=-1,
        )
        self.disk.on_failed = self._disk_failed
        cluster.observer.booted(name, self.raft)

    @property
    def raft(self) -> Raft:
        return self.node.raft

    def now_ms(self) -> int:
        """The node's own clock: it may run fast or slow, and never goes back."""
        return int(self._cluster.clock.now_us * self._cluster.clock_rates[self.name]) // 1000

    def tick(self) -> None:
        """The loop's timer; between two of them the node knows no later time."""
        self.ticked_us = self._cluster.clock.now_us
        self.node.on_tick(self.now_ms())

    # Transport, StateMachine, NodeListener

    def send(self, peer_id: str, message: Message) -> None:
        cluster = self._cluster
        cluster.observer.sends(self.name, self.raft, peer_id, message)
        if isinstance(message, VoteResponse):
            cluster.mark(f"vote {message.cause.name.lower()}")
            if message.granted and message.pre_vote:
                cluster.check_early_grant(self, peer_id)
        elif isinstance(message, AppendResponse) and not message.accepted:
            cluster.mark("append rejected")
        cluster.network.send(self.name, peer_id, message)

    def snapshot(self) -> bytes:
        return b"%0100d" % self.raft.state.commit_index  # of several parts

    def restore(self, state: bytes) -> None:
        if self.disk.is_full:
            self._cluster.mark("install waits for room")
            raise DiskFullError(Path("tables"), len(state))
        if self._cluster.rng.random() < _KILLED_IN_INSTALL:
            raise KilledInInstallError
        self.disk.tables_index = int(state)

    def on_commit(self, commit_index: int) -> None:
        raft, waiting = self.raft, self.waiting
        self._cluster.observer.after(self.name, raft)  # what is acknowledged below must be known to be committed
        while waiting and waiting[0][0] <= commit_index:
            index, term = waiting.pop(0)
            if raft.member.role is RaftRole.LEADER and raft.state.term == term:
                self._cluster.observer.acknowledged(self.name, term, index, self._cluster.rafts())

    def on_role(self, state: SoftState) -> None:
        before, self.soft = self.soft, state
        if state.writable and (before is None or not before.writable):
            self.next_queue_offset = self._cluster.observer.message_count(self.node.commit_index)
        if state.role is not RaftRole.LEADER:
            self.waiting.clear()
        elif before is not None and before.role is not RaftRole.LEADER:
            self._cluster.mark("leader elected")
            if self._cluster.on_elected is not None:
                self._cluster.on_elected(self.name)
            if self.raft.member.leader is not None and self.raft.member.leader.is_salvage:
                self._cluster.mark("leader elected by salvage")
        if before is not None and before.recovering and not state.recovering:
            self._cluster.mark("member brought up to date")

    def on_truncated(self, last_index: int) -> None:
        self._cluster.mark("follower truncated")

    def on_reset(self, first_index: int, start_position: int) -> None:
        self._cluster.mark("log reset by install")

    def on_failed(self, error: Exception) -> None:
        self.failure = error
        self._cluster.mark("member left the group")

    def _disk_failed(self) -> None:
        error = OSError(errno.EIO, "simulated")
        self._cluster.run(self, "disk failed", lambda: self.node.on_disk_failed(error))

    def _appended(self, index: int) -> None:
        self._cluster.observer.appended(self.name, index)

    def _truncates(self, last_index: int) -> None:
        self._cluster.observer.truncates(self.name, self.raft, last_index)
