"""`python -m chaos.elections --seeds 100`: runs seeds, prints what broke, ends with 1 if anything did.

With `--seconds S` no further seed is begun after so long; the first one is run.
"""

import argparse
import functools
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from chaos.elections.world import World

RUN_S = 8.0
_CHUNK = 10


class _Part(NamedTuple):
    """What some seeds have shown."""

    seeds: int
    acked: int
    epochs: int
    broken: Sequence[str]


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m chaos.elections", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each CPU)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no seed after so long")
    options = parser.parse_args()
    run = functools.partial(_run, first=options.first, end=options.first + options.seeds)
    run = functools.partial(run, until_s=time.time() + options.seconds)
    with ProcessPoolExecutor(options.jobs) as processes:
        parts = list(processes.map(run, range(options.first, options.first + options.seeds, _CHUNK)))
    seeds, acked, epochs = (sum(numbers) for numbers in zip(*(part[:3] for part in parts), strict=True))
    broken = [text for part in parts for text in part.broken]
    print(*broken, sep="\n", end="\n" if broken else "")
    figures = f"{acked} records acknowledged under {epochs} masters, {len(broken)} rules broken"
    print(f"{seeds} of {options.seeds} seeds: {figures}")
    return 1 if broken or not acked else 0


def _run(begin: int, *, first: int, end: int, until_s: float) -> _Part:
    """Seeds from `begin` on, as many as are a chunk; none after `until_s`, but the first one of all."""
    seeds = acked = epochs = 0
    broken: list[str] = []
    for seed in range(begin, min(begin + _CHUNK, end)):
        if seed > first and time.time() > until_s:
            break
        seen = World(seed).run(RUN_S)
        seeds, acked, epochs = seeds + 1, acked + len(seen.acked), epochs + len(seen.epochs)
        broken += [f"seed {seed}: {violation}" for violation in seen.violations]
    return _Part(seeds, acked, epochs, broken)


if __name__ == "__main__":
    sys.exit(main())
