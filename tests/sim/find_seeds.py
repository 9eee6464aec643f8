"""`python -m tests.sim.find_seeds [--anew] [WORD...]`: do the seeds that are named for planted bugs still find them?

A line for each bug: the seed that finds it, what that answers, and its CPU seconds. It is the named one, or else the
first that does of those where the bug is most likely, for the table of the bug to name.

Exit codes: 0 every named seed finds its bug, 1 others must be named, 2 bad arguments.
"""

import argparse
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from tests.sim import mutants, ranked_seeds, stack_bugs, test_appointed, test_elections, test_mutants, test_stack
from tests.store.crash import test_group_images


class Named(NamedTuple):
    """One bug, its named seed (with the image, for images of a group), where else to look, and how a seed is tried."""

    bug: str
    named: Any
    others: Iterable[Any]
    find: Callable[[Any], str]


def _tables() -> Iterator[Named]:
    for bug in stack_bugs.BUGS:
        if bug.seed is not None:
            yield Named(bug.name, bug.seed, ranked_seeds.lazily(bug.needs), partial(test_stack.find, bug))
    for name, (seed, _) in test_appointed.BUGS.items():
        yield Named(f"appointed, {name}", seed, itertools.count(), partial(test_appointed.find, name))
    for rule, seed in test_elections.FOUND_BY.items():
        yield Named(f"elections, {rule}", seed, itertools.count(), partial(test_elections.find, rule))
    for name, (seed, _) in test_elections.BUGS.items():
        yield Named(f"elections, {name}", seed, itertools.count(), partial(test_elections.find_bug, name))
    for mutant in mutants.MUTANTS:
        seed = mutant.first_seed
        yield Named(f"alone, {mutant.name}", seed, itertools.count(seed + 1), partial(test_mutants.find, mutant))
    for plant, *image, code in test_group_images.BUGS:
        find = partial(test_group_images.find, plant, code)
        yield Named(f"image, {plant.__name__}", tuple(image), test_group_images.candidates(), find)


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.find_seeds", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="bugs with one of these in their names; else all")
    parser.add_argument("--anew", action="store_true", help="look for seeds as if none were named")
    parser.add_argument("--most", type=int, default=200, help="seeds to try for each bug (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each CPU)")
    options = parser.parse_args()
    bugs = [one.bug for one in _tables() if not options.words or any(word in one.bug for word in options.words)]
    with ProcessPoolExecutor(options.jobs) as pool:
        results = pool.map(partial(_check, most=options.most, is_anew=options.anew), bugs)
        changes = 0
        for bug, (is_named, text) in zip(bugs, results, strict=True):
            print(f"{'' if is_named else 'CHANGE '}{bug}: {text}", flush=True)
            changes += not is_named
    return int(changes > 0)


def _check(bug: str, *, most: int, is_anew: bool) -> tuple[bool, str]:
    """Whether the named seed finds the bug, and which seed does."""
    logging.disable(logging.CRITICAL)
    one = next(one for one in _tables() if one.bug == bug)
    spent_s = 0.0

    def timed(candidate: Any) -> str:
        nonlocal spent_s
        began_s = time.process_time()
        found = one.find(candidate)
        spent_s = time.process_time() - began_s
        return found

    candidates = itertools.chain([] if is_anew else [one.named], one.others)
    try:
        seed, found = ranked_seeds.first_that_finds(timed, candidates, most)
    except AssertionError:
        return False, f"{one.named} does not find it, nor does any other of {most}"
    return seed == one.named, f"{seed} ({found}, {spent_s:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
