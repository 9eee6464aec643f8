"""One run: the plan of a seed, a phase of faults in which safety must hold, then a repair, after which the group works.

    boot all -> faults, proposals, reads (safety)  -> heal -> one leader, all sound, equal logs (R14)  -> and it stays
                 `safety_us`                               within 12 election time-outs                   3 time-outs

In some runs of whole brokers a follower's disk then fails for good: the leader must still delete its files.
Everything is drawn from the seed, so a run is repeated exactly, in any process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chaos.sim.cluster import Kit, SimCluster
from chaos.sim.errors import LivenessViolation, SafetyViolation
from chaos.sim.nemesis import Nemesis, Script, Strike
from chaos.sim.plan import RunPlan, draw_plan, draw_stack_plan
from chaos.sim.process import CoreKit, SimProcess
from chaos.sim.stack.kit import StackKit

_SERVICE_US = 5_000_000
_PROGRAMS_US = 20_000_000
"""Time until all transactions must be decided by checks, and all messages of POP acknowledged."""
_GROUP_US = 90_000_000
"""Time until a group must have read everything: the locks of a member that died with a leader last a minute."""
_ABLE_TO_SPARE_ONE = 3
"""Size of the smallest group that survives the loss of one member."""
_LOST_DISK_TIMEOUTS = 15
_LOST_DISK_BYTES = 20_000
"""Bytes written after the last entry of a member whose disk was lost: some files of the log."""

Trace = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The figures of a run without a violation. `trace_hash` is equal for equal runs, in any process."""

    seed: int
    event_count: int
    committed_count: int
    acked_count: int
    term: int
    trace_hash: int
    marks: dict[str, int]


class SeedRun:
    """The run of one seed."""

    def __init__(self, plan: RunPlan, kit: Kit, trace: Trace | None = None, script: Script | None = None) -> None:
        self.plan = plan
        self.cluster = SimCluster(plan.group, plan.seed, kit)
        self._nemesis = Nemesis(self.cluster, plan, script)
        self._is_healing = False
        if trace is not None:
            self.cluster.on_event = lambda name, what: trace(self._line(name, what))

    def execute(self) -> RunResult:
        """Run both phases, and check the end; return the figures.

        Raises:
            SafetyViolation, LivenessViolation: see `chaos.sim.errors`.
        """
        cluster = self.cluster
        self.recover()
        self._stay()
        self._serve()
        if self.plan.loses_a_disk:
            self._go_on_without_a_disk()
        else:
            self._fail_over()
        self.check_end()
        return RunResult(
            self.plan.seed,
            cluster.clock.event_count,
            len(cluster.observer.committed),
            cluster.observer.acked_count,
            max(cluster.observer.leaders, default=0),
            cluster.trace_hash,
            cluster.marks,
        )

    @property
    def strikes(self) -> list[Strike]:
        """The faults injected so far."""
        return self._nemesis.strikes

    # -- phases

    def recover(self, is_enough: Callable[[], bool] | None = None) -> None:
        """Start all nodes, inject faults under traffic until `safety_us`, repair them, wait until the group works.

        Args:
            is_enough: ends the run as soon as it returns True.

        Raises:
            SafetyViolation, LivenessViolation: see `chaos.sim.errors`.
        """
        for name in self.plan.group.names:
            self.cluster.boot(name)
        self._nemesis.start()
        self._propose_again()
        if not self.cluster.clock.run_until(self.plan.safety_us, is_enough):
            self._heal(is_enough)

    def _heal(self, is_enough: Callable[[], bool] | None = None) -> None:
        self._nemesis.heal()
        self.cluster.repaired()
        self._is_healing = True
        cluster, limit_us = self.cluster, self.plan.group.election_max_ms * 12_000
        if not cluster.clock.run_until(cluster.clock.now_us + limit_us, self._is_well):
            raise LivenessViolation("R14", f"healed for {limit_us // 1000} ms: {self._why_not_well()}")

    def _stay(self) -> None:
        cluster = self.cluster
        self._is_healing = False
        changes = len(cluster.observer.leaders)
        cluster.clock.run_until(cluster.clock.now_us + self.plan.group.election_max_ms * 3_000)
        allowed = 1 if self.plan.group.priorities else 0
        changes = len(cluster.observer.leaders) - changes
        if changes > allowed:
            raise LivenessViolation("R14", f"{changes} leaders in a healthy group, after one was found")

    def _serve(self) -> None:
        """Let clients ask every member; each must answer, through the leader where needed."""
        clock, limit_us = self.cluster.clock, self._service_us()
        why_not = self.cluster.ask_each()
        if not clock.run_until(clock.now_us + limit_us, lambda: not why_not()):
            raise LivenessViolation("R14", f"not in {limit_us // 1_000_000} s: {why_not()}")

    def _service_us(self) -> int:
        group = self.plan.group
        return _GROUP_US if group.members else _PROGRAMS_US if group.transactors or group.poppers else _SERVICE_US

    def _fail_over(self) -> None:
        """Kill the leader, perhaps with every nameserver: programs must find the next one."""
        leader, clock = self.cluster.leader(), self.cluster.clock
        if leader is None or len(self.plan.group.names) < _ABLE_TO_SPARE_ONE:
            return
        why_not, limit_us = self.cluster.fail_over(leader), self._service_us() + 2_000 * self.plan.group.election_max_ms
        if not clock.run_until(clock.now_us + limit_us, lambda: not why_not()):
            raise LivenessViolation("R14", f"{limit_us // 1000} ms after the leader's death: {why_not()}")

    def _go_on_without_a_disk(self) -> None:
        """Fail the disk of a follower that stays connected; the leader must still delete files that it lacks."""
        cluster, clock = self.cluster, self.cluster.clock
        leader = cluster.leader()
        assert leader is not None, "a group that was found well has a leader"
        lost = next(process for process in cluster.processes.values() if process is not leader)
        cluster.disks[lost.name].has_failed = True
        cluster.mark("disk lost")

        def has_failed() -> bool:
            return lost.failure is not None

        def is_deleted() -> bool:
            leads = cluster.leader()
            if leads is None:
                return False
            self._is_healing = leads.end_of_log > lost.end_of_log + _LOST_DISK_BYTES  # enough is written
            return leads.begin_of_log > lost.end_of_log

        limit_us = 1000 * self.plan.group.election_max_ms * _LOST_DISK_TIMEOUTS
        self._trim_again()
        if not all(clock.run_until(clock.now_us + limit_us, reached) for reached in (has_failed, is_deleted)):
            raise LivenessViolation("R14", f"{lost.name} has lost its disk, and keeps the leader from deleting files")

    def _trim_again(self) -> None:
        leader = self.cluster.leader()
        if leader is not None:
            self.cluster.run(leader, "trim all", leader.trim_all)
        self.cluster.clock.call_in(1000 * self.plan.group.election_min_ms, self._trim_again)

    def check_end(self) -> None:
        """Check everything that each replica shows. Raises `SafetyViolation`."""
        for process in self.cluster.processes.values():
            self.cluster.run(process, "end", process.check_end)

    # -- clients

    def _propose_again(self) -> None:
        cluster = self.cluster
        leader = cluster.leader()
        if not self._is_healing:
            cluster.ask_any()
        if leader is not None and not self._is_healing:
            cluster.propose(leader, 1 + cluster.jitter(24 if cluster.rng.random() < 0.2 else 4))
            if cluster.rng.random() < 0.2:
                cluster.read(leader)
        wait_us = int(self.plan.proposal_interval_us * 2 * cluster.rng.random()) + 1
        cluster.clock.call_in(wait_us, self._propose_again)

    # -- the end

    def _is_well(self) -> bool:
        return self._why_not_well() == ""

    def _why_not_well(self) -> str:
        cluster = self.cluster
        processes = cluster.processes
        if len(processes) < len(self.plan.group.names):
            return f"only {sorted(processes)} run"
        leader = cluster.leader()
        if leader is None:
            return f"no writable leader: {self._states()}"
        commit_index, term = leader.node.commit_index, leader.raft.state.term
        if leader.raft.state.terms.term_at(commit_index) != term or leader.waiting:
            return f"{leader.name} does not commit: {self._states()}"
        for process in processes.values():
            if why := self._differs(process, leader):
                return f"{process.name} {why}: {self._states()}"
        return ""

    def _differs(self, process: SimProcess, leader: SimProcess) -> str:
        if process.failure is not None:
            raise SafetyViolation("R10", f"{process.name} left the group: {process.failure}")
        if process.raft.member.leader_id != leader.name:
            return "follows another leader"
        if process.raft.state.recovering:
            return "is still recovering"
        index = leader.raft.state.terms.last_index
        if process.node.commit_index != index or process.disk.chain_at(index) != leader.disk.chain_at(index):
            return "has another log"
        return process.why_not_well()

    def _states(self) -> str:
        return "  ".join(_column(process) for process in self.cluster.processes.values())

    def _line(self, name: str, what: str) -> str:
        cluster = self.cluster
        columns = "  ".join(
            f"{_column(cluster.processes[other]):38}" if other in cluster.processes else f"{other} down".ljust(38)
            for other in self.plan.group.names
        )
        return f"{cluster.clock.now_us / 1000:10.3f} {name} {what:28.28} | {columns}"


def _column(process: SimProcess) -> str:
    state, raft = process.raft.state, process.raft
    role = {"follower": "F", "pre_candidate": "P", "candidate": "C", "leader": "L"}[raft.member.role]
    mark = "?" if state.recovering else ""
    log = f"[{state.terms.first_index}..{state.terms.last_index}] d{state.durable_index} c{state.commit_index}"
    return f"{process.name} {role}{mark} t{state.term} {log} ({raft.member.leader_id or '-'})"


def run_seed(seed: int, trace: Trace | None = None) -> RunResult:
    """Draw the plan of `seed` and run it on Raft nodes alone."""
    return SeedRun(draw_plan(seed), CoreKit(), trace).execute()


def run_stack_seed(seed: int, trace: Trace | None = None) -> RunResult:
    """Draw the plan of `seed` and run it on whole brokers."""
    with stack_run(draw_stack_plan(seed), StackKit(seed), trace) as run:
        return run.execute()


@contextmanager
def stack_run(
    plan: RunPlan, kit: StackKit, trace: Trace | None = None, script: Script | None = None
) -> Iterator[SeedRun]:
    """Make a run of whole brokers; at the end of the block the brokers end, and their files are removed."""
    run: SeedRun | None = None
    try:
        run = SeedRun(plan, kit, trace, script)
        yield run
    finally:
        for process in run.cluster.processes.values() if run is not None else ():
            process.end()
        kit.close()
