"""A group of whole `RaftNode`s over simulated disks, network and clocks, and everything that can be done to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from chaos.sim.clock import SimClock
from chaos.sim.disk import ENTRIES_PER_FILE, SimDisk, payload_of
from chaos.sim.network import SimNetwork
from chaos.sim.observer import Observer
from chaos.sim.process import KilledInInstallError, SimProcess
from dledger.core.errors import NotLeaderError, TransferRefusedError
from dledger.core.messages import AppendRequest, Message
from dledger.core.raft import Raft
from dledger.core.settings import RaftSettings

RECONNECT_US = 70_000


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Shape of a group.

    `recoverable`: never so many members forget something that no quorum remembers, so nothing acknowledged may be
    lost; otherwise a salvage election may lose entries, if it says so.
    """

    names: tuple[str, ...]
    durable_quorum: bool
    recoverable: bool
    heartbeat_ms: int
    election_min_ms: int
    election_max_ms: int
    tick_ms: int
    flush_us: int
    span_limit_bytes: int
    window_bytes: int
    priorities: dict[str, int] = field(default_factory=dict)


class Cluster:
    """The group. Every effect on a process goes through `run`, after which the invariants are checked."""

    def __init__(self, plan: GroupPlan, seed: int) -> None:
        self.plan = plan
        self.rng = Random(seed)
        self.clock = SimClock(self.rng)
        self.disks = {name: SimDisk(self.clock, self.rng, plan.flush_us) for name in plan.names}
        self.clock_rates = dict.fromkeys(plan.names, 1.0)
        self.observer = Observer(
            self.disks,
            quorum=len(plan.names) // 2 + 1,
            durable_quorum=plan.durable_quorum,
            recoverable=plan.recoverable,
        )
        self.network = SimNetwork(
            self.clock, self.rng, self._deliver, self._tell_lost, self._tell_joined, lambda name: name in self.processes
        )
        self.processes: dict[str, SimProcess] = {}
        self.marks: dict[str, int] = {}
        self.trace_hash = 0
        self.on_event: Callable[[str, str], None] | None = None
        self.on_elected: Callable[[str], None] | None = None
        self._boot_count = 0
        self._payload = 0

    # -- plumbing

    def jitter(self, limit: int) -> int:
        """Random integer in `[0, limit)`."""
        return int(self.rng.random() * limit)

    def settings(self, name: str) -> RaftSettings:
        """The settings of one node."""
        plan = self.plan
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

    def mark(self, what: str) -> None:
        """Something worth counting happened: a fault, or a corner that a healthy run must reach sometimes."""
        self.marks[what] = self.marks.get(what, 0) + 1

    def rafts(self) -> dict[str, Raft]:
        """The cores of all living processes."""
        return {name: process.raft for name, process in self.processes.items()}

    def run(self, process: SimProcess, what: str, event: Callable[[], None]) -> None:
        """Let something happen to a process: now, after its pause, or never when it is dead."""
        if process.is_dead:
            return
        if process.paused_until_us > self.clock.now_us:
            process.backlog.append(lambda: self.run(process, what, event))
            return
        try:
            event()
        except KilledInInstallError:
            self.mark("killed in an install")
            self.observer.is_lossy = True
            self.kill(process.name)
            self.clock.call_in(RECONNECT_US, lambda: self.boot(process.name))
            return
        raft = process.raft
        self.observer.after(process.name, raft)
        state = raft.state
        self.trace_hash = hash(
            (self.trace_hash, self.clock.now_us, process.number, state.term, state.commit_index, state.terms.last_index)
        )
        if self.on_event is not None:
            self.on_event(process.name, what)

    def _deliver(self, source: str, target: str, message: Message) -> None:
        process = self.processes.get(target)
        if process is not None:
            self.run(process, f"<- {source} {type(message).__name__}", lambda: self._receive(process, source, message))

    def _receive(self, process: SimProcess, source: str, message: Message) -> None:
        self.observer.receives(process.name, source, message)
        process.node.on_message(source, message)
        if isinstance(message, AppendRequest) and message.term == process.raft.state.term:
            process.heard_us, process.heard_from = process.ticked_us, source

    def _tell_lost(self, name: str, peer: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            self.clock.call_in(200, lambda: self.run(process, f"lost {peer}", lambda: self._lose(process, peer)))

    def _lose(self, process: SimProcess, peer: str) -> None:
        if process.heard_from == peer:
            process.heard_from = ""
        process.node.on_peer_lost(peer)

    def _tell_joined(self, name: str, peer: str) -> None:
        process = self.processes[name]
        self.clock.call_in(250, lambda: self.run(process, f"joined {peer}", lambda: process.node.on_peer_joined(peer)))

    def check_early_grant(self, process: SimProcess, candidate: str) -> None:
        """R15: who heard its leader within the lease, over a link that stands, does not agree to a candidacy."""
        state, leader = process.raft.state, process.heard_from
        is_led = leader != "" and self.observer.leaders.get(state.term) == leader and leader not in state.lost_links
        if is_led:
            lease_us = 950 * self.plan.election_min_ms - 4_000 * self.plan.tick_ms
            self.observer.granted_early(process.name, candidate, self.clock.now_us - process.heard_us, lease_us)

    # -- lives of processes

    def boot(self, name: str) -> None:
        """Start a node on its disk, if it does not run."""
        if name in self.processes:
            return
        self._boot_count += 1
        process = SimProcess(self, name, self._boot_count)
        self.processes[name] = process
        self._tick(process)
        self._connect(process)
        if not self.plan.durable_quorum:
            self._flush_now_and_then(process)

    def kill(self, name: str) -> None:
        """SIGKILL: the page cache stays, the connections close."""
        if self._end(name):
            self.disks[name].process_died()
            for peer in self.plan.names:
                if peer != name:
                    self.network.break_link(name, peer)

    def power_cut(self, name: str) -> None:
        """The machine is gone at once: unflushed entries are kept, lost or torn, and nobody is told."""
        if self._end(name):
            forgets = not self.plan.durable_quorum
            self.disks[name].power_cut(forgets=forgets)
            self.observer.is_lossy |= forgets
            for peer in self.plan.names:
                if peer != name:
                    self.network.break_link(name, peer, is_silent=True)

    def wipe(self, name: str) -> None:
        """The node dies and its disk is replaced by an empty one."""
        self.kill(name)
        self.disks[name] = SimDisk(self.clock, self.rng, self.plan.flush_us)
        self.observer.replace_disk(name, self.disks[name])

    def pause(self, name: str, duration_us: int) -> None:
        """SIGSTOP, or a loop that stands still: events wait and are handled when it goes on."""
        process = self.processes.get(name)
        if process is not None and process.paused_until_us <= self.clock.now_us:
            process.paused_until_us = self.clock.now_us + duration_us
            self.clock.call_in(duration_us, lambda: self._go_on(process))

    def resume(self, name: str) -> None:
        """SIGCONT, if it was paused."""
        process = self.processes.get(name)
        if process is not None and process.paused_until_us > self.clock.now_us:
            process.paused_until_us = self.clock.now_us
            self._go_on(process)

    def _go_on(self, process: SimProcess) -> None:
        backlog, process.backlog = process.backlog, []
        for event in backlog:
            event()

    def _end(self, name: str) -> bool:
        process = self.processes.pop(name, None)
        if process is None:
            return False
        process.is_dead = process.log.is_closed = True
        process.backlog.clear()
        return True

    # -- what a living process does by itself

    def _tick(self, process: SimProcess) -> None:
        if process.is_dead:
            return
        self.run(process, "tick", process.tick)
        self.clock.call_in(self._tick_us(process), lambda: self._tick(process))

    def _tick_us(self, process: SimProcess) -> int:
        paused_us = max(0, process.paused_until_us - self.clock.now_us)
        return paused_us + int(1000 * self.plan.tick_ms * (0.8 + 0.4 * self.rng.random()))

    def _connect(self, process: SimProcess) -> None:
        if process.is_dead:
            return
        for peer in self.plan.names:
            if peer != process.name and not self.network.is_up(process.name, peer):
                self.network.connect(process.name, peer)
        self.clock.call_in(RECONNECT_US + self.jitter(RECONNECT_US), lambda: self._connect(process))

    def _flush_now_and_then(self, process: SimProcess) -> None:
        if not process.is_dead:
            process.log.flush_now_and_then()
            self.clock.call_in(50_000 + self.jitter(50_000), lambda: self._flush_now_and_then(process))

    # -- clients

    def leader(self) -> SimProcess | None:
        """The writable leader of the greatest term, as far as a client could know."""
        writable = [p for p in self.processes.values() if p.soft is not None and p.soft.writable]
        return max(writable, key=lambda process: process.raft.state.term, default=None)

    def propose(self, process: SimProcess, count: int) -> None:
        """A client's batch reaches a node; refused unless it leads."""
        self.run(process, f"propose {count}", lambda: self._propose(process, count))

    def _propose(self, process: SimProcess, count: int) -> None:
        is_writable = process.soft is not None and process.soft.writable
        if not is_writable or process.disk.is_full or process.disk.has_failed:
            return
        try:
            first_index, term = process.node.propose(count)
        except NotLeaderError:
            return
        for _ in range(count):
            self._payload += 1
            process.log.write(term, payload_of(self._payload, process.next_queue_offset))
            process.next_queue_offset += 1
        process.waiting.append((first_index + count - 1, term))
        process.node.proposed()

    def read(self, process: SimProcess) -> None:
        """A client's linearizable read reaches a node."""
        self.run(process, "read", lambda: self._read(process))

    def _read(self, process: SimProcess) -> None:
        owed_index = self.observer.acked_index
        try:
            process.node.read_index(lambda index: self._read_done(process.name, index, owed_index))
        except NotLeaderError:
            return

    def _read_done(self, name: str, index: int | None, owed_index: int) -> None:
        if index is not None:
            self.mark("read served")
            self.observer.read(name, index, min(owed_index, self.observer.acked_index))

    def transfer(self, process: SimProcess, target: str | None) -> None:
        """An operator asks for a hand-over."""
        self.run(process, "transfer", lambda: self._transfer(process, target))

    def _transfer(self, process: SimProcess, target: str | None) -> None:
        try:
            process.node.transfer(target)
        except (NotLeaderError, TransferRefusedError):
            return
        self.mark("transfer begun")

    def trim(self, process: SimProcess) -> None:
        """Retention deletes the oldest file, if it is committed."""
        self.run(process, "trim", lambda: self._trim(process))

    def _trim(self, process: SimProcess) -> None:
        first_index = (process.disk.first_index // ENTRIES_PER_FILE + 1) * ENTRIES_PER_FILE
        if first_index <= min(process.node.commit_index, process.disk.durable_index):
            process.disk.trim(first_index)
            process.disk.tables_index = max(process.disk.tables_index, process.node.commit_index)
            process.node.on_trimmed()
            self.mark("file deleted")
