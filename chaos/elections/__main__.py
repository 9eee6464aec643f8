"""`python -m chaos.elections --seeds 100`: runs seeds, prints what broke, ends with 1 if anything did.

`--shrink SEED` finds the fewest faults with which a seed still fails; `--corpus` runs those that once failed. A range
prints how many seeds counted (records were acknowledged, a fault struck, a second master began) and which faults never
occurred: from 1,000 seeds on that ends with 13, and so does a range of which less than a quarter count.

With `--seconds S` no further seed is begun after so long; the first one is run.
"""

import argparse
import functools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from chaos.elections.network import Faults, Seen
from chaos.elections.simulation import KINDS, ElectionSimulation
from chaos.sim.coverage import GAP_EXIT_CODE, JUDGED_SEEDS
from chaos.sim.nemesis import Script
from chaos.sim.shrink import fewest

CORPUS = Path(__file__).with_name("corpus.txt")
RUN_S = 8.0
_CHUNK = 10


class _Part(NamedTuple):
    """The sums over some seeds; `broken` names each broken rule with its seed."""

    seeds: int
    counting: int
    acked: int
    epochs: int
    struck: Counter[str]
    broken: Sequence[str]


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m chaos.elections", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one (%(default)s)")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="the fewest faults with which a seed still fails")
    parser.add_argument("--corpus", action="store_true", help="run the seeds that once failed (corpus.txt)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each CPU)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no seed after so long")
    options = parser.parse_args()
    if options.shrink is not None:
        return _shrink(options.shrink)
    seeds = corpus_seeds() if options.corpus else range(options.first, options.first + options.seeds)
    chunks = [seeds[begin : begin + _CHUNK] for begin in range(0, len(seeds), _CHUNK)]
    run = functools.partial(_run, first=seeds[0], until_s=time.time() + options.seconds)
    with ProcessPoolExecutor(options.jobs) as processes:
        parts = list(processes.map(run, chunks))
    return _tell(parts, len(seeds))


def corpus_seeds() -> list[int]:
    """The seeds of corpus.txt."""
    lines = [line.split(maxsplit=1) for line in CORPUS.read_text().splitlines() if not line.startswith("#")]
    return [int(seed) for seed, _ in lines]


def shrink(seed: int, faults: Faults | None = None) -> tuple[Seen, Seen] | None:
    """How a seed fails, and how it fails with the fewest faults; None when it passes."""
    script = Script()
    first = last = ElectionSimulation(seed, faults, script).run(RUN_S)
    if not first.violations:
        return None

    def failing(numbers: Sequence[int]) -> Sequence[int] | None:
        nonlocal last
        seen = ElectionSimulation(seed, faults, Script(script, frozenset(numbers))).run(RUN_S)
        if not seen.violations:
            return None
        last = seen
        return [number for number, _, _ in seen.strikes]

    fewest([number for number, _, _ in first.strikes], failing)
    return first, last


def _shrink(seed: int) -> int:
    found = shrink(seed)
    if found is None:
        print(f"seed {seed}: clean, there is nothing to shrink")
        return 0
    first, last = found
    print(f"seed {seed} fails with {len(last.strikes)} of the {len(first.strikes)} faults:")
    print("\n".join(f"  {at_s:8.3f} s  {kind}" for _, at_s, kind in last.strikes))
    print("\n".join(last.violations))
    return 1


def _tell(parts: Sequence[_Part], wanted: int) -> int:
    """Print what all have shown; return the exit code."""
    seeds, counting = sum(part.seeds for part in parts), sum(part.counting for part in parts)
    acked, epochs = sum(part.acked for part in parts), sum(part.epochs for part in parts)
    broken = [text for part in parts for text in part.broken]
    struck = sum((part.struck for part in parts), Counter[str]())
    print(*broken, sep="\n", end="\n" if broken else "")
    figures = f"{acked} records acknowledged under {epochs} masters, {len(broken)} rules broken"
    print(f"{seeds} of {wanted} seeds: {figures}; {counting} of them count")
    print("  ".join(f"{kind} {struck[kind]}" for _, kind in KINDS))
    missing = [kind for _, kind in KINDS if not struck[kind]]
    print(f"never occurred: {', '.join(missing) or 'nothing'}")
    if broken or not acked:
        return 1
    return GAP_EXIT_CODE if seeds >= JUDGED_SEEDS and (missing or 4 * counting < seeds) else 0


def _run(chunk: Sequence[int], *, first: int, until_s: float) -> _Part:
    """Run these seeds; none after `until_s`, but the first one of all."""
    seeds = counting = acked = epochs = 0
    struck: Counter[str] = Counter()
    broken: list[str] = []
    for seed in chunk:
        if seed != first and time.time() > until_s:
            break
        seen = ElectionSimulation(seed).run(RUN_S)
        seeds, counting = seeds + 1, counting + seen.counts
        acked, epochs = acked + len(seen.acked), epochs + len(seen.epochs)
        struck.update(kind for _, _, kind in seen.strikes)
        broken += [f"seed {seed}: {violation}" for violation in seen.violations]
        if seen.violations:
            broken.append(f"shrink: python -m chaos.elections --shrink {seed}; keep it in chaos/elections/corpus.txt")
    return _Part(seeds, counting, acked, epochs, struck, broken)


if __name__ == "__main__":
    sys.exit(main())
