"""What is drawn from a seed before the run: the shape of the group, and how often each kind of fault occurs.

Each kind of fault is off in half of the runs (swarm testing), so that rare combinations occur.
"""

from dataclasses import asdict, dataclass, field, replace
from random import Random

from chaos.sim.network import Conditions

FAULTS = (
    "kill",
    "kill_leader",
    "power_cut",
    "power_cut_all",
    "wipe",
    "pause",
    "stall",
    "reset_link",
    "isolate",
    "isolate_leader",
    "cut_one_way",
    "split",
    "slow_disk",
    "stalled_disk",
    "failed_disk",
    "full_disk",
    "transfer",
    "trim",
)

LATE_FAULTS = ("lost_vote", "busy_leader")
STACK_FAULTS = ("die_soon", "cut_soon")
LATE_STACK_FAULTS = ("failed_sync",)
ROT_FAULTS = ("rotten_entry",)
RARE_ROT_FAULTS = ("rotten_and_left_behind",)
TAIL_FAULTS = ("rotten_tail",)
"""Only where members flush before they count: others distrust everything that a power cut leaves."""
RARE_STACK_FAULTS = ("leave_behind",)
CLEANING_FAULTS = ("cut_after_trim", "leave_a_topic_behind")
FAULTS_OF_FIVE = ("other_peers",)
"""For whole brokers in groups of five: in smaller groups any two majorities share a member, whatever the lists."""


CLOCK_JUMP = "clock_jump"
"""A fault of whole brokers without an event of its own: wall clocks that jump (`RunPlan.clock_jumps`)."""
_MEMBERS_US, _PROGRAMS_US, _UNHURRIED_US = 10_000_000, 5_000_000, 50_000
_SLOW_LINK_US = 5_000
"""Over links so slow, small windows take less than others propose, and no answer comes in a program's time."""
_JUMPS_S = (0.05, 1.0, 4.0, 20.0, 3600.0)
_LEAPS_S = (20.0, 3600.0)


@dataclass(frozen=True, slots=True)
class ClockJump:
    """From a moment on, a node's wall clock is ahead by so much; behind, if that is negative."""

    name: str
    at_us: int
    ahead_us: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Shape of a group.

    `recoverable`: never so many members forget something that no quorum remembers, so nothing acknowledged may be
    lost; otherwise a salvage election may lose entries, if it says so. `callers`: clients that ask any member over
    connections; none: requests are handed to the leader. `administrators`: those who change groups and their offsets,
    and recall timers. `batch_callers`: callers that send several messages by one request. `programs`: users' programs
    with the shipping producer, which finds the leader by `nameservers`; `members`: those that read what these send, as
    members of one group; `transactors`: programs that send transactions, and are killed; `poppers`: programs that take
    messages by POP, and are killed; `pops_in_order`: they take them in order. `has_large_tables`: the replicated tables
    are larger than what may wait for a peer.
    `checkpoint_ms`: between two checkpoints of a broker's queues.
    `has_huge_requests`: administrators set policies of very many entries, and steps of the brokers' loops are counted.
    `is_lockstep`: all members tick at the same moments, and messages take equal times, so that only the random times of
    the nodes themselves keep their elections apart.
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
    callers: int = 0
    administrators: int = 0
    batch_callers: int = 0
    has_large_tables: bool = False
    has_huge_requests: bool = False
    programs: int = 0
    nameservers: int = 0
    members: int = 0
    transactors: int = 0
    poppers: int = 0
    pops_in_order: bool = False
    checkpoint_ms: int = 300
    is_lockstep: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that is drawn from a seed before the run; printed when it fails.

    `loses_a_disk`: in the end, when all is repaired, the disk of a follower fails for good. `clock_jumps`: of wall
    clocks, in the order of time; when all is repaired, they are right.
    """

    seed: int
    group: GroupPlan
    conditions: Conditions
    faults: tuple[str, ...]
    fault_interval_us: int
    proposal_interval_us: int
    safety_us: int
    clock_drift: float
    loses_a_disk: bool = False
    clock_jumps: tuple[ClockJump, ...] = ()

    def describe(self) -> str:
        """Return all drawn parameters, one line each."""
        return "\n".join(f"  {name} = {value}" for name, value in asdict(self).items())


def draw_plan(seed: int) -> RunPlan:
    """Return the plan of a seed. One version of this file always draws the same plan."""
    plan = _draw_plan(seed)
    if len(plan.group.names) > 2 and Random(f"lockstep {seed}").random() < 0.05:
        group, conditions = replace(plan.group, is_lockstep=True), replace(plan.conditions, is_even=True)
        plan = replace(plan, group=group, conditions=conditions, clock_drift=0.0)
    return plan


def _draw_plan(seed: int) -> RunPlan:
    rng = Random(f"plan {seed}")
    size = rng.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5))
    heartbeat_ms, election_min_ms, election_max_ms = rng.choice(((100, 600, 1000), (50, 250, 500), (30, 150, 300)))
    names = tuple(f"n{number}" for number in range(size))
    group = GroupPlan(
        names=names,
        durable_quorum=rng.random() < 0.7,
        recoverable=rng.random() < 0.9,
        heartbeat_ms=heartbeat_ms,
        election_min_ms=election_min_ms,
        election_max_ms=election_max_ms,
        tick_ms=heartbeat_ms // 3,
        flush_us=rng.choice((200, 1_000, 1_000, 8_000)),
        span_limit_bytes=16 * rng.choice((2, 4, 32)),
        window_bytes=16 * rng.choice((32, 128)),
        priorities={rng.choice(names): 1} if rng.random() < 0.3 else {},
    )
    return RunPlan(
        seed=seed,
        group=group,
        conditions=_draw_conditions(rng),
        faults=tuple(fault for fault in FAULTS if rng.random() < 0.5) + _draw_late_faults(seed),
        fault_interval_us=election_max_ms * rng.choice((150, 400, 1_200)),
        proposal_interval_us=heartbeat_ms * rng.choice((100, 300, 1_000)),
        safety_us=election_max_ms * 8_000,
        clock_drift=rng.choice((0.0, 0.0, 0.04)),
    )


def draw_stack_plan(seed: int) -> RunPlan:
    """Return the plan of a seed for whole brokers, with their own ticks and crashes within file changes."""
    plan, rng = _draw_plan(seed), Random(f"stack {seed}")
    late = ("trim", *(fault for fault in STACK_FAULTS if rng.random() < 0.6))
    names = plan.group.names[: rng.choice((1, 3, 3, 3, 3, 3, 3, 5))]
    priorities = {name: 1 for name in plan.group.priorities if name in names}
    callers = Random(f"callers {seed}").choice((0, 0, 1, 2))
    late += tuple(fault for fault in LATE_STACK_FAULTS if Random(f"{fault} {seed}").random() < 0.2)
    rare = Random(f"rare {seed}")
    chances = [rare.random() for _ in range(5)]
    is_huge = plan.group.recoverable and Random(f"huge policies {seed}").random() < 0.03
    group = replace(
        plan.group,
        names=names,
        priorities=priorities,
        tick_ms=20,
        callers=callers,
        administrators=int((chances[0] < 0.25 and plan.group.recoverable) or is_huge),
        has_large_tables=chances[1] < 0.15,
        batch_callers=int(Random(f"batch {seed}").random() < 0.12),
        has_huge_requests=is_huge,
    )
    safety_us = plan.safety_us * 5 // 8
    jumps = _draw_clock_jumps(seed, names, safety_us)
    if plan.group.recoverable:
        group = _draw_programs(seed, group, are_clocks_right=not jumps)
        leaping = Random(f"poppers where clocks leap {seed}")
        if jumps and leaping.random() < 0.25:
            group = replace(group, poppers=leaping.choice((1, 2, 3)))
            jumps = _with_leaps(jumps, leaping, names, max(safety_us, _PROGRAMS_US))
    if len(names) == 5 and chances[2] < 0.5:
        late += 3 * FAULTS_OF_FIVE
    if len(names) > 2 and chances[4] < 0.15:
        late += 3 * RARE_STACK_FAULTS
    if len(names) > 2 and plan.group.recoverable and Random(f"rotten_entry {seed}").random() < 0.2:
        late += 3 * ROT_FAULTS
    is_doubted = plan.group.recoverable and plan.group.durable_quorum
    if len(names) > 2 and is_doubted and Random(f"rotten_tail {seed}").random() < 0.15:
        late += 3 * TAIL_FAULTS
    if len(names) > 2 and plan.group.recoverable and Random(f"rotten_and_left_behind {seed}").random() < 0.1:
        late += 3 * RARE_ROT_FAULTS
    chance = Random(f"after trim {seed}").random()
    if len(names) > 2 and chance < 0.1:  # without other clients, since they take long
        is_cut = chance >= 0.05
        plan, late = replace(plan, faults=()), CLEANING_FAULTS[:1] if is_cut else CLEANING_FAULTS[1:]
        group = replace(group, checkpoint_ms=3_000 if is_cut else 300)  # so that a power cut loses many queue units
    needs_seconds = bool(group.transactors or group.poppers or group.members)  # the queue holds no messages
    if needs_seconds:
        safety_us = max(safety_us, _MEMBERS_US if group.members else _PROGRAMS_US)
    if needs_seconds or (group.programs and plan.conditions.latency_us >= _SLOW_LINK_US):
        plan = replace(plan, proposal_interval_us=max(plan.proposal_interval_us, _UNHURRIED_US))
    return replace(
        plan,
        group=group,
        faults=plan.faults + late,
        safety_us=safety_us,
        loses_a_disk=len(names) > 2 and chances[3] < 0.1,
        clock_jumps=jumps,
    )


def _draw_programs(seed: int, group: GroupPlan, *, are_clocks_right: bool) -> GroupPlan:
    """Add users' programs; POP where clocks are right (`draw_stack_plan` adds it to a quarter of the other seeds)."""
    programs = Random(f"programs of users {seed}")
    if programs.random() < 0.12:
        group = replace(group, programs=programs.choice((1, 1, 2)), nameservers=programs.choice((1, 2)))
        members = Random(f"members of a group {seed}")
        group = replace(group, members=members.choice((0, 0, 2, 3)))
    transactors = Random(f"transactions {seed}")
    if transactors.random() < 0.1:
        nameservers = group.nameservers or transactors.choice((1, 2))
        group = replace(group, transactors=transactors.choice((1, 2, 3)), nameservers=nameservers)
    poppers = Random(f"poppers {seed}")
    if poppers.random() < 0.1 and are_clocks_right:
        group = replace(group, poppers=poppers.choice((1, 2, 3)))
    ordered = Random(f"queues taken in order {seed}")
    if not group.poppers and ordered.random() < 0.05 and are_clocks_right:
        group = replace(group, poppers=ordered.choice((1, 2, 3)), pops_in_order=True)
    return group


def _draw_clock_jumps(seed: int, names: tuple[str, ...], safety_us: int) -> tuple[ClockJump, ...]:
    """Draw clock jumps, in a seventh of the seeds; from a stream of their own, as late faults."""
    rng = Random(f"day {seed}")
    if rng.random() >= 0.15:
        return ()
    jumps = [
        ClockJump(
            rng.choice(names), int(safety_us * rng.random()), int(1e6 * rng.choice(_JUMPS_S) * rng.choice((-1, 1)))
        )
        for _ in range(rng.choice((1, 2, 4, 8)))
    ]
    return tuple(sorted(jumps, key=lambda jump: jump.at_us))


def _with_leaps(
    jumps: tuple[ClockJump, ...], rng: Random, names: tuple[str, ...], safety_us: int
) -> tuple[ClockJump, ...]:
    """Add four jumps so far ahead that what a leader gives then stays hidden, unless the next leader corrects it."""
    leaps = [
        ClockJump(rng.choice(names), int(safety_us * rng.random()), int(1e6 * rng.choice(_LEAPS_S))) for _ in range(4)
    ]
    return tuple(sorted((*jumps, *leaps), key=lambda jump: jump.at_us))


def _draw_late_faults(seed: int) -> tuple[str, ...]:
    """Draw faults that were added later, from a stream of their own, so that most seeds keep their meaning."""
    rng = Random(f"late {seed}")
    return tuple(fault for fault in LATE_FAULTS if rng.random() < 0.2)


def _draw_conditions(rng: Random) -> Conditions:
    return Conditions(
        latency_us=rng.choice((100, 500, 500, 5_000)),
        drop_rate=rng.choice((0.0, 0.0, 0.02, 0.15)),
        double_rate=rng.choice((0.0, 0.0, 0.1)),
        reorder_rate=rng.choice((0.0, 0.0, 0.02, 0.1)),
    )
