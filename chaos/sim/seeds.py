"""The command line of a simulation whose runs collect their violations: many seeds, the corpus, or shrinking one seed.

`--shrink SEED` finds the fewest faults with which a seed still fails; `--corpus` runs those that once failed. A range
prints how many seeds counted (records were acknowledged, a fault struck, a second master began) and which faults never
occurred: from 1,000 seeds on that ends with 13, and so does a range of which less than a quarter count.

With `--seconds S` each process begins no further seed after so much processor time of its own; at least one is run.
"""

import argparse
import functools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from chaos.sim.corpus import corpus_seeds, name_of
from chaos.sim.coverage import GAP_EXIT_CODE, JUDGED_SEEDS
from chaos.sim.nemesis import Script
from chaos.sim.pool import ended_by_sigterm, run_beside
from chaos.sim.shrink import fewest

_CHUNK = 10
_Record = TypeVar("_Record")


@dataclass
class SeedOutcome(Generic[_Record]):
    """What was observed in one run so far.

    Attributes:
        acked: by offset, each acknowledged record.
        leader_count: number of times a node became master.
        violations: descriptions of broken invariants; empty in a correct run.
        strikes: number, time in seconds and kind of each fault.
        met: number of kills and pauses of a running master, and of partitions.
    """

    acked: dict[int, _Record] = field(default_factory=dict)
    leader_count: int = 0
    violations: list[str] = field(default_factory=list)
    strikes: list[tuple[int, float, str]] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)


Simulate = Callable[[int, Script], SeedOutcome[Any]]


class SeedSums(NamedTuple):
    """Sums over some seeds; `broken` has each violation with its seed."""

    seeds: int
    counting: int
    acked: int
    leaders: int
    struck: Counter[str]
    met: Counter[str]
    broken: Sequence[str]


@dataclass(frozen=True)
class Campaign:
    """One kind of simulation, and its command.

    Attributes:
        module: the command is `python -m MODULE`.
        simulate: runs a seed; a function of a module, since it is called in other processes.
        kinds: names of all kinds of faults.
        corpus: file of the seeds that once failed, one `SEED REASON` a line.
    """

    module: str
    simulate: Simulate
    kinds: Sequence[str]
    corpus: Path

    def main(self, about: str | None) -> int:
        """Run the seeds that the command line names; return the exit code."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=f"{about}\n\n{__doc__}")
        parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
        parser.add_argument("--first", type=int, default=0, help="the first one (%(default)s)")
        parser.add_argument(
            "--shrink", type=int, metavar="SEED", help="the fewest faults with which a seed still fails"
        )
        parser.add_argument("--corpus", action="store_true", help="run the seeds that once failed (corpus.txt)")
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each CPU)")
        parser.add_argument("--seconds", type=float, default=math.inf, help="processor time of each process")
        options = parser.parse_args()
        with ended_by_sigterm():
            return self._run_wanted(options)

    def _run_wanted(self, options: argparse.Namespace) -> int:
        if options.shrink is not None:
            return self._shrink(options.shrink)
        seeds = corpus_seeds(self.corpus) if options.corpus else range(options.first, options.first + options.seeds)
        chunks = [seeds[begin : begin + _CHUNK] for begin in range(0, len(seeds), _CHUNK)]
        run = functools.partial(self._run, first=next(iter(seeds), None), budget_s=options.seconds)
        return self.tell(list(run_beside(run, options.jobs, chunks)), len(seeds))

    def _shrink(self, seed: int) -> int:
        found = shrink(self.simulate, seed)
        if found is None:
            print(f"seed {seed}: clean, there is nothing to shrink")
            return 0
        first, last = found
        print(f"seed {seed} fails with {len(last.strikes)} of the {len(first.strikes)} faults:")
        print("\n".join(f"  {at_s:8.3f} s  {kind}" for _, at_s, kind in last.strikes))
        print("\n".join(last.violations))
        return 1

    def tell(self, parts: Sequence[SeedSums], wanted: int) -> int:
        """Print the sums of all processes; return the exit code."""
        seeds, counting = sum(part.seeds for part in parts), sum(part.counting for part in parts)
        acked, leaders = sum(part.acked for part in parts), sum(part.leaders for part in parts)
        broken = [text for part in parts for text in part.broken]
        struck = sum((part.struck for part in parts), Counter[str]())
        met = sum((part.met for part in parts), Counter[str]())
        print(*broken, sep="\n", end="\n" if broken else "")
        figures = f"{acked} records acknowledged under {leaders} masters, {len(broken)} rules broken"
        print(f"{seeds} of {wanted} seeds: {figures}; {counting} of them count")
        print("  ".join(f"{kind} {struck[kind]}" for kind in self.kinds))
        print(f"{met['kills']} kills and {met['pauses']} pauses of the master, {met['partitions']} partitions")
        missing = [kind for kind in self.kinds if not struck[kind]]
        print(f"never occurred: {', '.join(missing) or 'nothing'}")
        if broken or not acked:
            return 1
        return GAP_EXIT_CODE if seeds >= JUDGED_SEEDS and (missing or 4 * counting < seeds) else 0

    def _run(self, chunk: Sequence[int], *, first: int | None, budget_s: float) -> SeedSums:
        """Run these seeds; begin no further one, except the very first, when this process has spent `budget_s`."""
        seeds = counting = acked = leaders = 0
        struck, met = Counter[str](), Counter[str]()
        broken: list[str] = []
        for seed in chunk:
            if seed != first and time.process_time() > budget_s:
                break
            seen = self.simulate(seed, Script())
            seeds, counting = seeds + 1, counting + _counts(seen)
            acked, leaders = acked + len(seen.acked), leaders + seen.leader_count
            struck.update(kind for _, _, kind in seen.strikes)
            met.update(seen.met)
            broken += [f"seed {seed}: {violation}" for violation in seen.violations]
            if seen.violations:
                broken.append(f"shrink: python -m {self.module} --shrink {seed}; keep it in {name_of(self.corpus)}")
        return SeedSums(seeds, counting, acked, leaders, struck, met, broken)


def _counts(seen: SeedOutcome[Any]) -> bool:
    """Return whether a run proves something: records acknowledged, a fault struck, and a second master."""
    return bool(seen.acked and seen.strikes and seen.leader_count > 1)


def shrink(simulate: Simulate, seed: int) -> tuple[SeedOutcome[Any], SeedOutcome[Any]] | None:
    """Return the first failure of a seed, and its failure with the fewest faults; None if the seed passes."""
    script = Script()
    first = last = simulate(seed, script)
    if not first.violations:
        return None

    def failing(numbers: Sequence[int]) -> Sequence[int] | None:
        nonlocal last
        seen = simulate(seed, Script(script, frozenset(numbers)))
        if not seen.violations:
            return None
        last = seen
        return [number for number, _, _ in seen.strikes]

    fewest([number for number, _, _ in first.strikes], failing)
    return first, last
