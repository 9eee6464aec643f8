"""Three brokers under crash images: all lose power, or are killed, at one moment of a recorded run.

    whole brokers in simulated time --before a change of a file--> Past: what each disk may keep, what must survive
    Past --one choice a disk--> three directories --> a new group on them --> leads, serves, shows all that must survive

The recorded run is one of `chaos.sim` (`--stack`), with kills, pauses, broken networks, hand-overs and trims as its
seed draws them, but without power cuts. The group that starts from an image is judged by the invariants of
`chaos.sim.observer`, which remembers what was committed, acknowledged and voted: every committed message lies at its
own queue offset on each replica, what was durable is there, no member votes twice, one member leads and commits again.
The two invariants that compare promises with the disk (R8, R9) are not checked on an image.
"""

import time
from dataclasses import dataclass, replace
from random import Random
from typing import cast

from chaos.crash.campaign import NO_IMAGE, Effort, ImageVerdict, Tally
from chaos.crash.disk import Chooser, OnlyNames, OnlySynced, TornSectors, WholeFiles
from chaos.crash.pace import Pace
from chaos.sim.cluster import SimCluster
from chaos.sim.errors import Violation
from chaos.sim.observer import Observer
from chaos.sim.plan import RunPlan, draw_stack_plan
from chaos.sim.run import SeedRun, stack_run
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.disk import DiskPast, StoreDisk
from chaos.sim.stack.kit import StackKit
from chaos.sim.stack.node import StoreProcess

NAMES = ("n0", "n1", "n2")
_MOMENTS = 4
_CHANGES_BETWEEN = 600
_FAULTS_LEFT_OUT = ("power_cut", "power_cut_all", "cut_soon")
_CODES_OF_DISKS = ("R8", "R9")
_SERVED_TIMEOUTS = 2


@dataclass(frozen=True, slots=True)
class Past:
    """The group at one moment. `message_count`: number of messages that clients had sent."""

    now_us: int
    message_count: int
    observer: Observer
    disks: dict[str, DiskPast]


class _Recording:
    """Takes the past at some moments of a run, drawn from the seed, each before a change of a file."""

    def __init__(self, dice: Random, moments: int) -> None:
        self._dice = dice
        self._moments = moments
        self._changes_left = dice.randrange(_CHANGES_BETWEEN)
        self.run: SeedRun
        self.pasts: list[Past] = []

    def is_complete(self) -> bool:
        """Whether all moments have been taken."""
        return len(self.pasts) >= self._moments

    def before_change(self) -> None:
        """Take the past if this moment was drawn; called before a node changes a file."""
        self._changes_left -= 1
        if self._changes_left < 0 and not self.is_complete():
            self._changes_left = self._dice.randrange(_CHANGES_BETWEEN)
            self.pasts.append(self._past())

    def _past(self) -> Past:
        cluster = self.run.cluster
        for process in cluster.processes.values():
            cast(StoreProcess, process).note_reached()
        disks = {name: _disk(cluster, name).past() for name in NAMES}
        return Past(cluster.clock.now_us, cluster.message_count, cluster.observer.past(), disks)


def run_group_seed(seed: int, effort: Effort, tally: Tally, only: int | None = None, moments: int = _MOMENTS) -> None:
    """Record the run of a seed, and judge images of its moments; findings go into `tally`.

    Args:
        seed: determines the run, its moments, and what each disk keeps.
        effort: `torn_per_moment` images of a moment lose sectors, files and names at random; `generations` is ignored,
            since the recorded run has restarts of its own.
        tally: sums of the campaign.
        only: number of the one image to judge; None: all; `NO_IMAGE`: only the recorded run.
        moments: most moments to take.
    """
    plan, end = _plan(seed), time.process_time() + effort.seconds
    names = ("killed", "synced", "names", *["mixed"] * effort.torn_per_moment)
    try:
        pasts = _record(plan, moments if only in (None, NO_IMAGE) else min(moments, only // len(names) + 1))
    except Violation as violation:
        tally.verdicts.append(ImageVerdict(seed, NO_IMAGE, "the recorded run", "no cut", violation))
        return
    tally.moments += len(pasts)
    images = [(past, name) for past in pasts for name in names]
    pace = Pace(end - time.process_time(), len(images), Random(f"pace {seed}"))
    for number, (past, name) in enumerate(images):
        pace.begin_group()
        if only not in (None, number) or not pace.takes_next():
            continue
        tally.count(name)
        dice = Random(f"group image {seed} {number}")
        try:
            with pace.judging():
                _judge(plan, past, {node: _chooser(name, dice) for node in NAMES}, is_cut=name != "killed")
        except Violation as violation:
            label = f"{past.now_us / 1000:.3f} ms"
            tally.verdicts.append(ImageVerdict(seed, number, label, name, violation))
            if len(tally.verdicts) >= effort.findings_max:
                return


def _plan(seed: int) -> RunPlan:
    plan = draw_stack_plan(seed)
    group = replace(plan.group, names=NAMES, priorities={}, durable_quorum=True, recoverable=True)
    faults = tuple(fault for fault in plan.faults if fault not in _FAULTS_LEFT_OUT)
    return replace(plan, group=group, faults=faults)


def _record(plan: RunPlan, moments: int) -> list[Past]:
    """Run a plan until its last moment is taken, or until everything is repaired (`chaos.sim` judges whole runs)."""
    recording = _Recording(Random(f"moments {plan.seed}"), moments)
    with stack_run(plan, StackKit(plan.seed, before_change=recording.before_change)) as run:
        recording.run = run
        run.cluster.observer.ignored = _CODES_OF_DISKS
        run.recover(recording.is_complete)
    return recording.pasts


def _chooser(name: str, dice: Random) -> Chooser:
    """Return the chooser for one disk of an image."""
    if name == "mixed":
        return dice.choice((OnlySynced(), OnlyNames(), WholeFiles(dice), TornSectors(dice), TornSectors(dice)))
    return {"killed": Chooser(), "synced": OnlySynced(), "names": OnlyNames()}[name]


def _judge(plan: RunPlan, past: Past, choosers: dict[str, Chooser], *, is_cut: bool) -> None:
    """Start a group on an image, let clients use it, and check every replica.

    Raises:
        Violation: what is wrong.
    """
    observer = past.observer.past()
    timeout_us = 1000 * plan.group.election_max_ms
    served_us = past.now_us + _SERVED_TIMEOUTS * timeout_us
    group = replace(plan.group, members=0, transactors=0, poppers=0)  # they do not know the messages before the image
    calm = replace(plan, group=group, faults=(), proposal_interval_us=timeout_us // 10, safety_us=served_us)
    with stack_run(calm, StackKit(plan.seed, cast(CommittedLog, observer.accounts))) as run:
        cluster = run.cluster
        cluster.clock.now_us, cluster.message_count = past.now_us, past.message_count
        for name, chooser in choosers.items():
            _disk(cluster, name).resume(past.disks[name], chooser, is_cut=is_cut)
        observer.go_on(cluster.disks)
        cluster.observer = observer
        run.recover()
        run.check_end()


def _disk(cluster: SimCluster, name: str) -> StoreDisk:
    return cast(StoreDisk, cluster.disks[name])
