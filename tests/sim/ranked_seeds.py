"""Where to look for a planted bug that its own seed misses: a change of the product gives every seed another run."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from chaos.sim.plan import RunPlan, draw_stack_plan

_DRAWN = 30_000
_EMPTY_RUN = 50
"""What a run without messages costs, in messages."""
_WITH_MEMBERS = 5
_WITH_PROGRAMS = 2.5
"""So many times the cost: a run goes on until members of a group, or transactions and POP, have come to an end."""

T = TypeVar("T")


def first_that_finds(find: Callable[[T], str], candidates: Iterable[T], most: int) -> tuple[T, str]:
    """Return the first of at most so many candidates that finds something, and what it finds.

    Raises:
        AssertionError: none does.
    """
    tried: list[T] = []
    for candidate in itertools.islice(candidates, most):
        if found := find(candidate):
            return candidate, found
        tried.append(candidate)
    raise AssertionError(f"not found by {tried}")


@functools.cache
def ranked(needs: str = "") -> tuple[int, ...]:
    """Seeds of whole brokers with all that is needed, the most promising for their cost first, each size in its turn.

    Args:
        needs: kinds of faults, and fields of the plan or of its group that must not be empty; words.
    """
    by_size: dict[int, list[tuple[float, int]]] = {}
    for plan in _plans():
        if promise := _promise(plan, needs.split()):
            by_size.setdefault(len(plan.group.names), []).append((-promise, plan.seed))
    rows = itertools.zip_longest(*(sorted(seeds) for seeds in by_size.values()))
    return tuple(one[1] for row in rows for one in row if one is not None)


@functools.cache
def _plans() -> tuple[RunPlan, ...]:
    return tuple(map(draw_stack_plan, range(_DRAWN)))


def lazily(needs: str = "") -> Iterator[int]:
    """Yield the seeds of `ranked`, whose plans are drawn only if they are needed: that takes some seconds."""
    yield from ranked(needs)


def _promise(plan: RunPlan, needs: list[str]) -> float:
    """How often the rarest of the faults comes, by the cost of the run; 0 without something that is needed."""
    group, share = plan.group, 1.0
    for need in needs:
        owner = next((owner for owner in (group, plan) if hasattr(owner, need)), None)
        share = min(share, bool(getattr(owner, need)) if owner else plan.faults.count(need) / len(plan.faults))
    messages = plan.safety_us / plan.proposal_interval_us * (1 + group.callers / 2)
    longer = _WITH_MEMBERS if group.members else _WITH_PROGRAMS if group.transactors or group.poppers else 1
    return share * plan.safety_us / plan.fault_interval_us / (len(group.names) * (_EMPTY_RUN + messages) * longer)
