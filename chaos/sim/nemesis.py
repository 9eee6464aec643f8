"""The nemesis: injects faults at random moments and repairs them some time later, until `heal` is called."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from chaos.sim.cluster import SimCluster
from chaos.sim.machine import Where
from chaos.sim.plan import RunPlan

_CUTS = frozenset({"isolate", "isolate_leader", "cut_one_way", "split"})
_OF_THE_LEADER = {
    **dict.fromkeys(("kill", "kill_leader", "power_cut", "power_cut_all", "wipe"), "leader killed"),
    **dict.fromkeys(("pause", "stall", "busy_leader"), "leader paused"),
}
_LOOK_US = 30_000
_OTHERS_NAMED = 2
"""Number of other members in a wrong member list: two of these three are no majority of five."""


@dataclass(slots=True)
class Strike:
    """A fault of a run: its number, from 0 on, its time, its kind, and the members it met; empty if it met none."""

    number: int
    at_us: int
    kind: str
    whom: str = ""


class Script:
    """Records the random state at each fault of a run, so that the run can be repeated with some of its faults only.

    All parts of a run share one random stream. A repetition restores its state before each wait for a fault and at each
    fault, so that faults come at the same times with the same parameters, whichever are left out. With all faults it is
    the same run.

    Args:
        of: the script of the run to repeat; None records one.
        kept: numbers of the faults that strike in a repetition.
    """

    def __init__(self, of: "Script | None" = None, kept: frozenset[int] = frozenset()) -> None:
        self._kept = None if of is None else kept
        self._states: list[Any] = [] if of is None else of._states

    def reaches(self, moment: int, rng: Random) -> bool:
        """Record or restore the state of `rng`; False when the recorded run ended before this moment."""
        if self._kept is None:
            self._states.append(rng.getstate())
        elif moment < len(self._states):
            rng.setstate(self._states[moment])
        else:
            return False
        return True

    def keeps(self, number: int) -> bool:
        """Return whether the fault of this number strikes."""
        return self._kept is None or number in self._kept


class Nemesis:
    """Injects the faults of one run, as its plan draws them.

    Attributes:
        strikes: the faults so far.
    """

    def __init__(self, cluster: SimCluster, plan: RunPlan, script: Script | None = None) -> None:
        self._cluster = cluster
        self._plan = plan
        self._script = script
        self._is_over = False
        self._count = 0
        self.strikes: list[Strike] = []
        self._met_failed_syncs: dict[str, None] = {}
        self._kinds: dict[str, Callable[[], str]] = {
            "kill": lambda: self._down(cluster.kill, self._any()),
            "kill_leader": lambda: self._down(cluster.kill, self._leader_or_any()),
            "power_cut": self._power_cut,
            "power_cut_all": self._power_cut_all,
            "wipe": self._wipe,
            "pause": lambda: self._hold(cluster.pause, self._leader_or_any(), self._some_time_us()),
            "stall": lambda: self._hold(cluster.pause, self._any(), self._some_time_us() // 10),
            "busy_leader": lambda: self._hold(cluster.stall, self._leader_or_any(), 2 * self._some_time_us()),
            "reset_link": lambda: self._reset(*self._two()),
            "isolate": lambda: self._cut_off([self._any()]),
            "isolate_leader": lambda: self._cut_off([self._leader_or_any()]),
            "cut_one_way": lambda: self._cut([self._two()]),
            "split": lambda: self._cut_off([name for name in plan.group.names if cluster.rng.random() < 0.5]),
            "slow_disk": lambda: self._set_disk("slow_factor", 30, 1),
            "stalled_disk": self._stall_disk,
            "failed_disk": self._fail_disk,
            "failed_sync": self._fail_sync,
            "full_disk": lambda: self._set_disk("is_full", True, False),
            "transfer": self._transfer,
            "trim": self._trim,
            "lost_vote": self._lose_vote,
            "die_soon": lambda: self._die_soon(is_cut=False),
            "cut_soon": lambda: self._die_soon(is_cut=True),
            "other_peers": self._name_other_peers,
            "leave_behind": self._leave_behind,
            "cut_after_trim": self._cut_after_trim,
            "leave_a_topic_behind": self._leave_a_topic_behind,
            "rotten_entry": lambda: self._rot("committed", cluster.kill),
            "rotten_tail": lambda: self._rot("behind", cluster.power_cut),
            "rotten_and_left_behind": self._rot_and_leave_behind,
        }

    def start(self) -> None:
        """Set the network conditions and clocks, and begin with faults."""
        self._cluster.network.conditions = self._plan.conditions
        self._cluster.clock_jumps = self._plan.clock_jumps
        if self._plan.clock_drift:
            for name in self._plan.group.names:
                drift = self._plan.clock_drift * (2 * self._cluster.rng.random() - 1)
                self._cluster.clock_rates[name] = 1.0 + drift
        self._again()

    def heal(self) -> None:
        """Repair everything and end all faults."""
        self._is_over = True
        cluster = self._cluster
        cluster.network.heal()
        cluster.clock_jumps = ()
        for name in self._plan.group.names:
            disk = cluster.disks[name]
            disk.slow_factor, disk.is_stalled, disk.is_full = 1, False, False
            disk.dies_in = None
            if disk.has_failed or name in self._met_failed_syncs:
                cluster.kill(name)
                disk.has_failed = False
            cluster.resume(name)
            self._tell_stalled(name, is_stalled=False)
            if cluster.peers_of[name] != cluster.plan.names:
                cluster.configure(name, cluster.plan.names)
            cluster.boot(name)

    def _again(self) -> None:
        if self._is_over or not self._reaches(2 * self._count):
            return
        wait_us = int(self._plan.fault_interval_us * 2 * self._cluster.rng.random()) + 1
        self._cluster.clock.call_in(wait_us, self._strike)

    def _strike(self) -> None:
        if not self._is_over and self._plan.faults:
            if not self._reaches(2 * self._count + 1):
                return
            kind = self._plan.faults[self._cluster.jitter(len(self._plan.faults))]
            if self._script is None or self._script.keeps(self._count):
                strike = Strike(self._count, self._cluster.clock.now_us, kind)
                self.strikes.append(strike)
                leader = self._cluster.leader()
                strike.whom = self._kinds[kind]()
                if strike.whom:
                    self._cluster.mark(f"fault {kind}")
                if kind in _CUTS and strike.whom:
                    self._cluster.mark("partitions")
                elif leader is not None and leader.name in strike.whom.split() and kind in _OF_THE_LEADER:
                    self._cluster.mark(_OF_THE_LEADER[kind])
            self._count += 1
        self._again()

    def _reaches(self, moment: int) -> bool:
        return self._script is None or self._script.reaches(moment, self._cluster.rng)

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

    def _down(self, end: Callable[[str], None], name: str) -> str:
        whom = name if name in self._cluster.processes else ""
        end(name)
        self._later(lambda: self._cluster.boot(name))
        return whom

    def _hold(self, hold: Callable[[str, int], None], name: str, duration_us: int) -> str:
        process = self._cluster.processes.get(name)
        runs = process is not None and process.paused_until_us <= self._cluster.clock.now_us
        hold(name, duration_us)
        return name if runs else ""

    def _may_forget(self, name: str) -> bool:
        """Return whether one more member may lose its memory while a sound quorum remains."""
        if not self._plan.group.recoverable:
            return True
        disks, names = self._cluster.disks, self._plan.group.names
        sound = [other for other in names if other != name and disks[other].is_sound]
        return len(sound) >= len(names) // 2 + 1

    def _power_cut(self) -> str:
        name = self._any()
        if self._plan.group.durable_quorum or self._may_forget(name):
            return self._down(self._cluster.power_cut, name)
        return ""

    def _power_cut_all(self) -> str:
        if self._plan.group.durable_quorum or not self._plan.group.recoverable:
            return _listed([self._down(self._cluster.power_cut, name) for name in self._plan.group.names])
        return ""

    def _die_soon(self, *, is_cut: bool) -> str:
        """Let a process, or its whole machine, die within one of its next 60 file changes."""
        name = self._any()
        if is_cut and not (self._plan.group.durable_quorum or self._may_forget(name)):
            return ""
        disk = self._cluster.disks[name]
        disk.dies_in, disk.is_cut = 1 + self._cluster.jitter(60), is_cut
        return name

    def _wipe(self) -> str:
        name = self._any()
        return self._down(self._cluster.wipe, name) if self._may_forget(name) else ""

    def _rot(self, where: Where, end: Callable[[str], None]) -> str:
        """Damage a byte of an entry that a quorum of others has, and end the process."""
        name, place = self._to_rot(where)
        if place is None:
            return ""
        disk = self._cluster.disks[name]
        if where == "behind":  # what was not synced is lost or torn before that
            whom = self._down(end, name)
            disk.rot(place)
            return whom
        disk.rot(place)
        return self._down(end, name)

    def _to_rot(self, where: Where) -> tuple[str, tuple[int, int, int] | None]:
        names, first = self._plan.group.names, self._cluster.jitter(len(self._plan.group.names))
        for name in (*names[first:], *names[:first]):
            if self._may_forget(name) and (place := self._cluster.disks[name].place_to_rot(where)) is not None:
                return name, place
        return "", None

    def _rot_and_leave_behind(self) -> str:
        """Damage a member's last committed entry; restart it when all others have deleted that entry."""
        cluster = self._cluster
        name, place = self._to_rot("last committed")
        if place is None:
            return ""
        cluster.disks[name].rot(place)
        cluster.kill(name)

        def look() -> None:
            others = list(cluster.processes.values())
            if self._is_over or (others and all(other.begin_of_log > place[1] for other in others)):
                cluster.boot(name)
                return
            for other in others:
                cluster.run(other, "trim all", other.trim_all)
            cluster.clock.call_in(_LOOK_US, look)

        look()
        return name

    def _lose_vote(self) -> str:
        """Pause the leader; when the next one is elected, cut that one off and wipe the disk of one of its voters."""
        cluster, before = self._cluster, self._cluster.leader()
        if before is None:
            return ""

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
        return before.name

    def _set_disk(self, attribute: str, bad: object, good: object) -> str:
        name = self._any()
        disk = self._cluster.disks[name]
        setattr(disk, attribute, bad)
        self._later(lambda: setattr(disk, attribute, good))
        return name

    def _stall_disk(self) -> str:
        name = self._leader_or_any()
        disk = self._cluster.disks[name]
        disk.is_stalled = True
        if self._cluster.rng.random() < 0.5:  # otherwise the watchdog does not notice in time
            self._tell_stalled(name, is_stalled=True)

        def repair() -> None:
            disk.is_stalled = False
            self._tell_stalled(name, is_stalled=False)

        self._later(repair)
        return name

    def _tell_stalled(self, name: str, *, is_stalled: bool) -> None:
        process = self._cluster.processes.get(name)
        if process is not None:
            self._cluster.run(process, "disk stall", lambda: process.tell_disk_stalled(is_stalled=is_stalled))

    def _fail_disk(self) -> str:
        name = self._leader_or_any()
        disk = self._cluster.disks[name]
        disk.has_failed = True

        def repair() -> None:
            self._cluster.kill(name)
            disk.has_failed = False
            self._cluster.boot(name)

        self._later(repair)
        return name

    def _fail_sync(self) -> str:
        """Let syncs fail for a moment and lose their data; later ones succeed, as in Linux."""
        name = self._leader_or_any()
        disk = self._cluster.disks[name]
        disk.has_failed = True
        self._met_failed_syncs[name] = None

        def works() -> None:
            disk.has_failed = False

        def restart() -> None:
            self._met_failed_syncs.pop(name, None)
            self._cluster.kill(name)
            works()
            self._cluster.boot(name)

        self._cluster.clock.call_in(1_000 + self._cluster.jitter(50_000), works)
        self._later(restart)
        return name

    # -- network

    def _reset(self, one: str, other: str) -> str:
        is_up = self._cluster.network.is_up(one, other)
        self._cluster.network.break_link(one, other)
        return f"{one}-{other}" if is_up else ""

    def _cut(self, pairs: list[tuple[str, str]]) -> str:
        cut = self._cluster.network.cut
        for pair in pairs:
            cut[pair] = None

        def repair() -> None:
            for pair in pairs:
                cut.pop(pair, None)

        self._later(repair)
        return _listed([f"{one}->{other}" for one, other in pairs if one != other])

    def _cut_off(self, island: list[str]) -> str:
        rest = [name for name in self._plan.group.names if name not in island]
        return self._cut([pair for one in island for other in rest for pair in ((one, other), (other, one))])

    # -- operators

    def _transfer(self) -> str:
        leader = self._cluster.leader()
        if leader is None:
            return ""
        target = self._any() if self._cluster.rng.random() < 0.7 else None
        self._cluster.transfer(leader, target)
        return f"{leader.name} to {target or 'any'}"

    def _leave_behind(self) -> str:
        """Kill a follower; restart it when the leader has deleted what it lacks, so that it must be installed."""
        cluster, leader = self._cluster, self._cluster.leader()
        name = self._any()
        if leader is None or name == leader.name or name not in cluster.processes:
            return ""
        end = cluster.processes[name].end_of_log
        cluster.kill(name)

        def look() -> None:
            leads = cluster.leader()
            if self._is_over or (leads is not None and leads.begin_of_log > end):
                cluster.boot(name)
                return
            if leads is not None:
                cluster.run(leads, "trim all", leads.trim_all)
            cluster.clock.call_in(_LOOK_US, look)

        look()
        return name

    def _leave_a_topic_behind(self) -> str:
        """Kill a follower that has messages of a topic; restart it when the topic's removal is deleted from the log."""
        cluster, name = self._cluster, self._any()
        if name not in cluster.processes or cluster.leader() in (None, cluster.processes[name]):
            return ""
        topic = f"L{self._count}"

        def look_for_messages() -> None:
            follower, leads = cluster.processes.get(name), cluster.leader()
            if self._is_over or follower is None or leads is follower:
                return
            if follower.has_messages(topic):  # wait until its checkpoint counts them as committed
                cluster.clock.call_in(2_000 * self._plan.group.election_min_ms, leave)
                return
            if leads is not None:
                cluster.run(leads, "use topic", lambda: leads.use_topic(topic))
            cluster.clock.call_in(_LOOK_US, look_for_messages)

        def leave() -> None:
            if not self._is_over and name in cluster.processes:
                cluster.kill(name)
                look_for_room(None)

        def look_for_room(removed_at: int | None) -> None:
            leads = cluster.leader()
            if self._is_over or (leads is not None and removed_at is not None and leads.begin_of_log > removed_at):
                cluster.boot(name)
                return
            if leads is not None:
                if leads.has_topic(topic):
                    removed_at = None
                    cluster.run(leads, "remove topic", lambda: leads.remove_topic(topic))
                elif removed_at is None:
                    removed_at = leads.end_of_log
                cluster.run(leads, "trim all", leads.trim_all)
            cluster.clock.call_in(_LOOK_US, lambda: look_for_room(removed_at))

        look_for_messages()
        return name

    def _name_other_peers(self) -> str:
        """Restart a member with a list of only three of the members, and later with the whole list."""
        cluster, names = self._cluster, self._plan.group.names
        name = self._any()
        is_no_use = len(names) <= 1 + _OTHERS_NAMED or any(peers != names for peers in cluster.peers_of.values())
        if is_no_use or name not in cluster.processes or not self._may_forget(name):
            return ""
        others = [other for other in names if other != name]
        while len(others) > _OTHERS_NAMED:
            del others[cluster.jitter(len(others))]
        cluster.configure(name, tuple(sorted((name, *others))))
        self._later(lambda: cluster.configure(name, names))
        return name

    def _trim(self) -> str:
        trimmed = []
        for process in list(self._cluster.processes.values()):
            if self._cluster.rng.random() < 0.7:
                self._cluster.trim(process)
                trimmed.append(process.name)
        return _listed(trimmed)

    def _cut_after_trim(self) -> str:
        """Let a member delete all the files it may, and cut its power as soon as some are deleted."""
        cluster, name = self._cluster, self._any()

        def look(begin: int) -> None:
            process = cluster.processes.get(name)
            if self._is_over or process is None:
                return
            if process.begin_of_log > begin:
                if self._plan.group.durable_quorum or self._may_forget(name):
                    self._down(cluster.power_cut, name)
                return
            cluster.run(process, "trim all", process.trim_all)
            cluster.clock.call_in(_LOOK_US, lambda: look(begin))

        if name not in cluster.processes:
            return ""
        look(cluster.processes[name].begin_of_log)
        return name


def _listed(names: list[str]) -> str:
    return " ".join(name for name in names if name)
