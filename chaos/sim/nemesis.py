"""The nemesis: breaks things at random moments and repairs them some time later, until `heal` is called."""

from collections.abc import Callable

from chaos.sim.cluster import Cluster
from chaos.sim.plan import RunPlan


class Nemesis:
    """Faults of one run, as its plan draws them."""

    def __init__(self, cluster: Cluster, plan: RunPlan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._is_over = False
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": lambda: self._down(cluster.kill, self._any()),
            "kill_leader": lambda: self._down(cluster.kill, self._leader_or_any()),
            "power_cut": self._power_cut,
            "power_cut_all": self._power_cut_all,
            "wipe": self._wipe,
            "pause": lambda: cluster.pause(self._leader_or_any(), self._some_time_us()),
            "stall": lambda: cluster.pause(self._any(), self._some_time_us() // 10),
            "busy_leader": lambda: cluster.stall(self._leader_or_any(), 2 * self._some_time_us()),
            "reset_link": lambda: cluster.network.break_link(*self._two()),
            "isolate": lambda: self._cut_off([self._any()]),
            "isolate_leader": lambda: self._cut_off([self._leader_or_any()]),
            "cut_one_way": lambda: self._cut([self._two()]),
            "split": lambda: self._cut_off([name for name in plan.group.names if cluster.rng.random() < 0.5]),
            "slow_disk": lambda: self._set_disk("slow_factor", 30, 1),
            "stalled_disk": self._stall_disk,
            "failed_disk": self._fail_disk,
            "full_disk": lambda: self._set_disk("is_full", True, False),
            "transfer": self._transfer,
            "trim": self._trim,
            "lost_vote": self._lose_vote,
            "die_soon": lambda: self._die_soon(is_cut=False),
            "cut_soon": lambda: self._die_soon(is_cut=True),
        }

    def start(self) -> None:
        """Set the weather and begin."""
        self._cluster.network.weather = self._plan.weather
        if self._plan.clock_drift:
            for name in self._plan.group.names:
                drift = self._plan.clock_drift * (2 * self._cluster.rng.random() - 1)
                self._cluster.clock_rates[name] = 1.0 + drift
        self._again()

    def heal(self) -> None:
        """Repair everything; break nothing more."""
        self._is_over = True
        cluster = self._cluster
        cluster.network.heal()
        for name in self._plan.group.names:
            disk = cluster.disks[name]
            disk.slow_factor, disk.is_stalled, disk.is_full = 1, False, False
            disk.dies_in = None
            if disk.has_failed:
                cluster.kill(name)
                disk.has_failed = False
            cluster.resume(name)
            self._tell_stalled(name, is_stalled=False)
            cluster.boot(name)

    def _again(self) -> None:
        if self._is_over:
            return
        wait_us = int(self._plan.fault_interval_us * 2 * self._cluster.rng.random()) + 1
        self._cluster.clock.call_in(wait_us, self._strike)

    def _strike(self) -> None:
        if not self._is_over and self._plan.faults:
            kind = self._plan.faults[self._cluster.jitter(len(self._plan.faults))]
            self._cluster.mark(f"fault {kind}")
            self._kinds[kind]()
        self._again()

    # -- choices

    def _any(self) -> str:
        return self._plan.group.names[self._cluster.jitter(len(self._plan.group.names))]

    def _leader_or_any(self) -> str:
        leader = self._cluster.leader()
        return leader.name if leader is not None else self._any()

    def _two(self) -> tuple[str, str]:
        one, other = self._any(), self._any()
        return one, other

    def _some_time_us(self) -> int:
        return self._cluster.jitter(self._plan.group.election_max_ms * 3_000) + 1_000

    def _later(self, repair: Callable[[], None]) -> None:
        self._cluster.clock.call_in(self._some_time_us(), lambda: None if self._is_over else repair())

    # -- machines and disks

    def _down(self, end: Callable[[str], None], name: str) -> None:
        end(name)
        self._later(lambda: self._cluster.boot(name))

    def _may_forget(self, name: str) -> bool:
        """Whether one more member may forget, so that a quorum still remembers everything."""
        if not self._plan.group.recoverable:
            return True
        disks, names = self._cluster.disks, self._plan.group.names
        sound = [other for other in names if other != name and disks[other].is_sound]
        return len(sound) >= len(names) // 2 + 1

    def _power_cut(self) -> None:
        name = self._any()
        if self._plan.group.durable_quorum or self._may_forget(name):
            self._down(self._cluster.power_cut, name)

    def _power_cut_all(self) -> None:
        if self._plan.group.durable_quorum or not self._plan.group.recoverable:
            for name in self._plan.group.names:
                self._down(self._cluster.power_cut, name)

    def _die_soon(self, *, is_cut: bool) -> None:
        """A process ends in the middle of something, or its machine does: some changes of files from now on."""
        name = self._any()
        if is_cut and not (self._plan.group.durable_quorum or self._may_forget(name)):
            return
        disk = self._cluster.disks[name]
        disk.dies_in, disk.is_cut = 1 + self._cluster.jitter(60), is_cut

    def _wipe(self) -> None:
        name = self._any()
        if self._may_forget(name):
            self._down(self._cluster.wipe, name)

    def _lose_vote(self) -> None:
        """The leader stands still; the next one is cut off as it is elected, a voter of it loses its disk."""
        cluster, before = self._cluster, self._cluster.leader()
        if before is None:
            return

        def strike(elected: str) -> None:
            cluster.on_elected = None
            voters = [
                other.name
                for other in cluster.processes.values()
                if other.raft.state.voted_for == elected and other.name != elected and self._may_forget(other.name)
            ]
            if self._is_over or elected == before.name or not voters:
                return
            self._cut_off([elected])
            cluster.wipe(voters[0])
            cluster.clock.call_in(1_000, lambda: cluster.boot(voters[0]))
            cluster.resume(before.name)
            cluster.mark("vote lost")

        cluster.on_elected = lambda elected: cluster.clock.call_in(0, lambda: strike(elected))
        cluster.pause(before.name, 3_000 * self._plan.group.election_max_ms)

    def _set_disk(self, attribute: str, bad: object, good: object) -> None:
        disk = self._cluster.disks[self._any()]
        setattr(disk, attribute, bad)
        self._later(lambda: setattr(disk, attribute, good))

    def _stall_disk(self) -> None:
        name = self._leader_or_any()
        disk = self._cluster.disks[name]
        disk.is_stalled = True
        if self._cluster.rng.random() < 0.5:  # else the watchdog is too slow to notice
            self._tell_stalled(name, is_stalled=True)

        def repair() -> None:
            disk.is_stalled = False
            self._tell_stalled(name, is_stalled=False)

        self._later(repair)

    def _tell_stalled(self, name: str, *, is_stalled: bool) -> None:
        process = self._cluster.processes.get(name)
        if process is not None:
            self._cluster.run(process, "disk stall", lambda: process.tell_disk_stalled(is_stalled=is_stalled))

    def _fail_disk(self) -> None:
        name = self._leader_or_any()
        disk = self._cluster.disks[name]
        disk.has_failed = True

        def repair() -> None:
            self._cluster.kill(name)
            disk.has_failed = False
            self._cluster.boot(name)

        self._later(repair)

    # -- network

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        cut = self._cluster.network.cut
        for pair in pairs:
            cut[pair] = None

        def repair() -> None:
            for pair in pairs:
                cut.pop(pair, None)

        self._later(repair)

    def _cut_off(self, island: list[str]) -> None:
        rest = [name for name in self._plan.group.names if name not in island]
        self._cut([pair for one in island for other in rest for pair in ((one, other), (other, one))])

    # -- operators

    def _transfer(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            self._cluster.transfer(leader, self._any() if self._cluster.rng.random() < 0.7 else None)

    def _trim(self) -> None:
        for process in list(self._cluster.processes.values()):
            if self._cluster.rng.random() < 0.7:
                self._cluster.trim(process)
