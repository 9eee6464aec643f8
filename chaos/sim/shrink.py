"""Shrink: reduces the faults of a failing seed to the fewest that still break the same invariant.

    run of the seed, recorded -> fails? -> leave out half of the faults, quarters, ... single ones: does it still fail?

A fault stays out if the run still fails without it. At the end no single fault can be left out. A calm network and
clocks without drift are tried as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chaos.sim.errors import Violation
from chaos.sim.nemesis import Script, Strike
from chaos.sim.plan import RunPlan
from chaos.sim.process import CoreKit
from chaos.sim.run import SeedRun, Trace, stack_run
from chaos.sim.stack.kit import StackKit

RUN_LIMIT = 400


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a run: its plan, the faults that had struck, and the exception."""

    plan: RunPlan
    strikes: tuple[Strike, ...]
    error: Exception

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the faults that struck."""
        return [strike.number for strike in self.strikes]

    def is_like(self, other: "Failure") -> bool:
        """Return whether both break the same invariant, or end with the same type of error."""
        return type(self.error) is type(other.error) and _code(self.error) == _code(other.error)


class Shrinker:
    """Repeats one plan with fewer and fewer faults.

    Args:
        tell: called with a text each time that fewer faults suffice.

    Attributes:
        script: recorded by the first run, and repeated by all others.
        run_count: runs so far, at most `RUN_LIMIT`.
    """

    def __init__(self, plan: RunPlan, *, is_stack: bool, tell: Callable[[str], None] = lambda _: None) -> None:
        self._plan = plan
        self._is_stack = is_stack
        self._tell = tell
        self.script = Script()
        self.run_count = 0

    def shrink(self) -> tuple[Failure, Failure] | None:
        """Return the first failure of the seed, and its failure with the fewest faults; None if the seed passes."""
        first = self._fails(self._plan, self.script)
        if first is None:
            return None
        self._tell(f"faults until it fails: {len(first.strikes)}")
        last = self._with_fewer(first)
        for calmer in (_without_loss, _without_doubles, _in_order, _without_drift):
            plan = calmer(last.plan)
            if plan != last.plan:
                last = self._again(first, plan, last.numbers) or last
        return first, self._with_fewer(last) if last.plan != first.plan else last

    def trace(self, failure: Failure, trace: Trace) -> None:
        """Repeat a failing run, with one line for each event."""
        self._fails(failure.plan, Script(self.script, frozenset(failure.numbers)), trace)

    def _with_fewer(self, first: Failure) -> Failure:
        last = first

        def failing(numbers: Sequence[int]) -> Sequence[int] | None:
            nonlocal last
            failure = self._again(first, first.plan, numbers)
            if failure is None:
                return None
            last = failure
            self._tell(f"faults left: {len(failure.strikes)}")
            return failure.numbers

        fewest(first.numbers, failing)
        return last

    def _again(self, first: Failure, plan: RunPlan, numbers: Sequence[int]) -> Failure | None:
        if self.run_count >= RUN_LIMIT:
            return None
        failure = self._fails(plan, Script(self.script, frozenset(numbers)))
        return failure if failure is not None and failure.is_like(first) else None

    def _fails(self, plan: RunPlan, script: Script, trace: Trace | None = None) -> Failure | None:
        self.run_count += 1
        if not self._is_stack:
            return _failure(SeedRun(plan, CoreKit(), trace, script))
        with stack_run(plan, StackKit(plan.seed), trace, script) as run:
            return _failure(run)


def fewest(items: Sequence[int], failing: Callable[[Sequence[int]], Sequence[int] | None]) -> Sequence[int]:
    """Return a part of `items` that still fails, but not without any single one of them.

    `failing` returns those of its items that struck before the failure; None if there was no failure.
    """
    if not items or failing(()) is not None:
        return ()
    size = len(items) // 2
    while size:
        start, before = 0, len(items)
        while start < len(items) > size:
            met = failing([*items[:start], *items[start + size :]])
            if met is None:
                start += size
            else:
                items = met
        if size > 1 or len(items) == before:
            size //= 2
    return items


def _failure(run: SeedRun) -> Failure | None:
    try:
        run.execute()
    except Exception as error:  # any exception counts as a failure of this run
        return Failure(run.plan, tuple(run.strikes), error)
    return None


def _code(error: Exception) -> str:
    return error.code if isinstance(error, Violation) else ""


def _without_loss(plan: RunPlan) -> RunPlan:
    return replace(plan, conditions=replace(plan.conditions, drop_rate=0.0))


def _without_doubles(plan: RunPlan) -> RunPlan:
    return replace(plan, conditions=replace(plan.conditions, double_rate=0.0))


def _in_order(plan: RunPlan) -> RunPlan:
    return replace(plan, conditions=replace(plan.conditions, reorder_rate=0.0))


def _without_drift(plan: RunPlan) -> RunPlan:
    return replace(plan, clock_drift=0.0, clock_jumps=())
