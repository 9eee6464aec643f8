"""A group of `RaftNode`s over simulated disks, network and clocks, and all faults and requests that can meet it."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

from chaos.sim.clock import SimClock
from chaos.sim.errors import SafetyViolation
from chaos.sim.machine import Machine
from chaos.sim.network import SimNetwork
from chaos.sim.observer import Accounts, Observer
from chaos.sim.plan import CLOCK_JUMP, ClockJump, GroupPlan
from chaos.sim.process import ClusterContext, ProcessDiesError, SimProcess
from dledger.core.busy import is_due
from dledger.core.messages import BusyNotice
from dledger.core.raft import Raft
from store.errors import StoreError

RECONNECT_US = 70_000


class Kit(Protocol):
    """Makes the nodes of a group: Raft nodes alone (`chaos.sim.process.CoreKit`), or whole brokers."""

    accounts: Accounts[Any]

    def disk(self, cluster: ClusterContext, name: str) -> Machine[Any]:
        """Make a new, empty disk."""

    def ask_any(self, cluster: ClusterContext) -> None:
        """Let the clients that ask any member make their next requests."""

    def ask_each(self, cluster: ClusterContext) -> Callable[[], str]:
        """Have each of these clients ask each member; return a function that names those without an answer."""

    def repaired(self, cluster: ClusterContext) -> None:
        """End faults of programs beside the nodes; called when all faults are over."""

    def fail_over(self, cluster: ClusterContext, leader_dies: Callable[[], None]) -> Callable[[], str]:
        """End the leader, perhaps with nameservers; return a function that names the programs that have not gone on."""

    def process(self, cluster: ClusterContext, name: str, number: int, disk: Any) -> SimProcess:
        """Start a node's process on a disk.

        Raises:
            ProcessDiesError: it died before it was up.
            StoreError: it refused to start because of what it found on its disk.
        """

    def close(self) -> None:
        """End the run."""


class SimCluster:
    """The group. Every event of a process goes through `run`, which then checks the invariants.

    Attributes:
        message_count: messages that clients sent so far; each has a number of its own.
        peers_of: by node, the members that its configuration names.
        clock_jumps: of wall clocks, in the order of time; none: they are right.
    """

    def __init__(self, plan: GroupPlan, seed: int, kit: Kit) -> None:
        self.plan = plan
        self._kit = kit
        self.rng = Random(seed)
        self.clock = SimClock(self.rng)
        self.clock_rates = dict.fromkeys(plan.names, 1.0)
        self.clock_jumps: Sequence[ClockJump] = ()
        self._met_jumps: set[ClockJump] = set()
        self._all_jumps: dict[ClockJump, None] = {}
        self.peers_of = dict.fromkeys(plan.names, plan.names)
        self.disks = {name: kit.disk(self, name) for name in plan.names}
        self.observer = Observer(
            self.disks,
            kit.accounts,
            quorum=len(plan.names) // 2 + 1,
            durable_quorum=plan.durable_quorum,
            recoverable=plan.recoverable,
            peers_of=self.peers_of,
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
        self.message_count = 0

    # -- plumbing

    def jitter(self, limit: int) -> int:
        """Return a random integer in `[0, limit)`."""
        return int(self.rng.random() * limit)

    def hello_of(self, name: str) -> Any:
        """Return what a running process sends when it connects; None when it has ended or sends nothing."""
        transport = getattr(self.processes.get(name), "transport", None)
        return None if transport is None else transport.hello

    def wall_ahead_us(self, name: str) -> int:
        """Return how far a node's wall clock is ahead, in us, when the node reads it; negative if it is behind."""
        met = [jump for jump in self.clock_jumps if jump.name == name and jump.at_us <= self.clock.now_us]
        if not met:
            return 0
        if met[-1] not in self._met_jumps:
            self._met_jumps.add(met[-1])
            self.mark(f"fault {CLOCK_JUMP}")
        return met[-1].ahead_us

    def ahead_since_us(self, since_us: int) -> tuple[int, int]:
        """Return the least and the most by which any wall clock was ahead at any time from `since_us` to now."""
        first, later = self._aheads_us(since_us)
        return min(first + later), max(first + later)

    def rise_since_us(self, since_us: int) -> int:
        """Return by how much any wall clock, from `since_us` to now, was ahead of what any was then or earlier."""
        first, later = self._aheads_us(since_us)
        least, rise = min(first), max(first) - min(first)
        for ahead_us in later:
            least, rise = min(least, ahead_us), max(rise, ahead_us - least)
        return rise

    def _aheads_us(self, since_us: int) -> tuple[list[int], list[int]]:
        """Return by how much wall clocks were ahead at `since_us`, and after each jump from then to now, in order."""
        self._all_jumps.update(dict.fromkeys(self.clock_jumps))
        last = dict.fromkeys(self.plan.names, 0)
        last |= {jump.name: jump.ahead_us for jump in self._all_jumps if jump.at_us <= since_us}
        later = [jump.ahead_us for jump in self._all_jumps if since_us < jump.at_us <= self.clock.now_us]
        return list(last.values()), later if self.clock_jumps else [*later, 0]

    def next_message(self) -> int:
        """Return the number of a client's next message, unique in this run."""
        self.message_count += 1
        return self.message_count

    def mark(self, what: str) -> None:
        """Count an event: a fault, or a rare state that a correct run must reach sometimes."""
        self.marks[what] = self.marks.get(what, 0) + 1

    def rafts(self) -> dict[str, Raft]:
        """Return the Raft cores of all running processes."""
        return {name: process.raft for name, process in self.processes.items()}

    def run(self, process: SimProcess, what: str, event: Callable[[], None], source: str = "") -> None:
        """Run an event in a process: now, after its pause, or never if it has ended.

        Args:
            process: the process.
            what: name of the event in the trace.
            event: what happens.
            source: name of the node whose message causes the event; empty: no message.
        """
        if process.is_dead:
            return
        if process.paused_until_us > self.clock.now_us:
            process.backlog.append(lambda: self.run(process, what, event, source))
            return
        try:
            process.perform(event)
        except ProcessDiesError:
            self._died(process.name)
            return
        raft = process.raft
        self.observer.after(process.name, raft)
        state = raft.state
        self.trace_hash = hash(
            (self.trace_hash, self.clock.now_us, process.number, state.term, state.commit_index, state.terms.last_index)
        )
        if self.on_event is not None:
            self.on_event(process.name, f"<- {source} {what}" if source else what)

    def _deliver(self, source: str, target: str, message: Any) -> None:
        process = self.processes.get(target)
        if process is not None:
            what = getattr(message, "what", None) or type(message).__name__
            self.mark(f"message {what}")
            receive = process.node.on_message if isinstance(message, BusyNotice) else process.receive
            self.run(process, what, partial(receive, source, message), source)

    def _tell_lost(self, name: str, peer: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            self.clock.call_in(200, lambda: self.run(process, f"lost {peer}", lambda: process.lose(peer)))

    def _tell_joined(self, name: str, peer: str) -> None:
        process = self.processes[name]
        self.clock.call_in(250, lambda: self.run(process, f"joined {peer}", lambda: process.join(peer)))

    def check_early_grant(self, process: SimProcess, candidate: str) -> None:
        """Check R15: a member with an unexpired lease of a leader, over a link that is up, grants no other pre-vote."""
        state, leader = process.raft.state, process.heard_from
        is_led = leader != "" and self.observer.leaders.get(state.term) == leader and leader not in state.lost_links
        if is_led and candidate != leader:  # a leader's own request is a hand-over
            lease_us = 950 * self.plan.election_min_ms - 4_000 * self.plan.tick_ms
            self.observer.granted_early(process.name, candidate, self.clock.now_us - process.heard_us, lease_us)

    # -- starts and ends of processes

    def boot(self, name: str) -> None:
        """Start a node on its disk, if it does not run."""
        if name in self.processes:
            return
        self._boot_count += 1
        try:
            process = self._kit.process(self, name, self._boot_count, self.disks[name])
        except ProcessDiesError:
            self._died(name)
            return
        except (StoreError, OSError) as error:
            self._refused_to_start(name, error)
            return
        self.processes[name] = process
        self.run(process, "boot", process.check_boot)
        process.start()
        self._connect(process)
        process.start_flushing()

    def kill(self, name: str) -> None:
        """End a process as SIGKILL does: the page cache stays, its connections are closed."""
        if self._end(name):
            self.disks[name].process_died()
            for peer in self.plan.names:
                if peer != name:
                    self.network.break_link(name, peer)

    def power_cut(self, name: str) -> None:
        """Cut a machine's power: unflushed entries are kept, lost or torn, and its connections are not closed."""
        if self._end(name) or self.disks[name].is_cut:
            forgets = not self.plan.durable_quorum
            self.disks[name].power_cut(forgets=forgets)
            self.observer.is_lossy |= forgets
            for peer in self.plan.names:
                if peer != name:
                    self.network.break_link(name, peer, is_silent=True)

    def wipe(self, name: str) -> None:
        """Kill a node and replace its disk by an empty one."""
        self.kill(name)
        self.disks[name] = self._kit.disk(self, name)
        self.observer.replace_disk(name, self.disks[name])

    def configure(self, name: str, peers: tuple[str, ...]) -> None:
        """Restart a node with a configuration that names these members."""
        self.kill(name)
        self.peers_of[name] = peers
        self.boot(name)

    def pause(self, name: str, duration_us: int) -> None:
        """Stop a process as SIGSTOP does; its events wait until it continues."""
        process = self.processes.get(name)
        if process is not None and process.paused_until_us <= self.clock.now_us:
            process.paused_until_us = self.clock.now_us + duration_us
            self.clock.call_in(duration_us, lambda: self._go_on(process))

    def stall(self, name: str, duration_us: int) -> None:
        """Stop a process's event loop; its thread goes on and sends busy notices by the shipping rule."""
        process = self.processes.get(name)
        if process is None or process.paused_until_us > self.clock.now_us:
            return
        self.pause(name, duration_us)
        if process.raft.member.leader is not None:
            self._say_busy(process, BusyNotice(process.raft.state.term), self.clock.now_us)

    def _say_busy(self, process: SimProcess, notice: BusyNotice, since_us: int) -> None:
        if process.is_dead or process.paused_until_us <= self.clock.now_us:
            return
        settings = process.raft.settings
        if is_due(settings, (self.clock.now_us - since_us) // 1000):
            self.mark("busy notices sent")
            for peer in settings.others:
                self.network.send(process.name, peer, notice)
        self.clock.call_in(settings.heartbeat_ms * 1000, lambda: self._say_busy(process, notice, since_us))

    def resume(self, name: str) -> None:
        """Continue a paused process, as SIGCONT does."""
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
        process.end()
        return True

    def _refused_to_start(self, name: str, error: Exception) -> None:
        """Handle a start that failed because of the disk: try again later, as a supervisor does."""
        disk = self.disks[name]
        if not (disk.is_full or disk.has_failed):
            raise SafetyViolation("R22", f"{name} refuses to start on a disk without a fault: {error!r}") from error
        self.mark("start refused by the disk")
        disk.process_died()
        self.clock.call_in(5 * RECONNECT_US, lambda: self.boot(name))

    def _died(self, name: str) -> None:
        """Handle a process that died within a file call; with `is_cut` of its disk the machine lost power, too."""
        self.mark("killed in the middle of something")
        if self.disks[name].is_cut:
            self.power_cut(name)
        elif name in self.processes:
            self.kill(name)
        else:
            self.disks[name].process_died()
        self.clock.call_in(RECONNECT_US, lambda: self.boot(name))

    # -- connections

    def _connect(self, process: SimProcess) -> None:
        if process.is_dead:
            return
        for peer in self.plan.names:
            other = self.processes.get(peer)
            if other is None or other is process or self.network.is_up(process.name, peer):
                continue
            if process.meets(other):
                self.network.connect(process.name, peer)
        self.clock.call_in(RECONNECT_US + self.jitter(RECONNECT_US), lambda: self._connect(process))

    # -- clients

    def leader(self) -> SimProcess | None:
        """Return the writable leader of the highest term, as far as clients can know; None without one."""
        writable = [process for process in self.processes.values() if process.is_writable]
        return max(writable, key=lambda process: process.raft.state.term, default=None)

    def propose(self, process: SimProcess, count: int) -> None:
        """Give a client's batch to a node, which refuses it unless it leads."""
        self.run(process, f"propose {count}", lambda: process.propose(count))

    def ask_any(self) -> None:
        """Let the clients that ask any member make their next requests."""
        self._kit.ask_any(self)

    def ask_each(self) -> Callable[[], str]:
        """See `Kit.ask_each`."""
        return self._kit.ask_each(self)

    def repaired(self) -> None:
        """See `Kit.repaired`."""
        self._kit.repaired(self)

    def fail_over(self, leader: SimProcess) -> Callable[[], str]:
        """See `Kit.fail_over`."""
        return self._kit.fail_over(self, lambda: self.kill(leader.name))

    def read(self, process: SimProcess) -> None:
        """Give a client's linearizable read to a node."""
        self.run(process, "read", process.read)

    def transfer(self, process: SimProcess, target: str | None) -> None:
        """Ask a node for a hand-over, as an operator does."""
        self.run(process, "transfer", lambda: process.transfer(target))

    def trim(self, process: SimProcess) -> None:
        """Delete a node's oldest file, if it is committed, as retention does."""
        self.run(process, "trim", process.trim)
