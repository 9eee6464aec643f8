"""`python -m chaos.crash --mode M --seeds A:B [--seconds S]`, or `--seed N [--image I]` to see one again.

`--seconds`: about so much processor time in all. Each seed's workload is run to its end; if the time does not suffice
for all of its images, those that are judged are drawn at random.

Exit codes: 0 no finding, 10 something lost, invented or contradictory, 2 bad arguments.
"""

import argparse
import logging
import math
import time
from collections.abc import Mapping

from chaos import command
from chaos.crash.campaign import Effort, Mode, run_seeds
from chaos.crash.modes import MODES, SMALL
from chaos.sim.corpus import seed_range

_FOUND = 10
_EXHAUSTIVE_IMAGES = 256


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    modes = MODES | SMALL
    parser = argparse.ArgumentParser(prog="python -m chaos.crash", description=__doc__, allow_abbrev=False)
    parser.add_argument("--mode", choices=sorted(modes), required=True)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int)
    which.add_argument("--seeds", type=seed_range, help="A:B, the seeds A up to B - 1")
    parser.add_argument("--image", type=int, help="with --seed: judge this one only")
    parser.add_argument("--seconds", type=float, default=math.inf, help="with --seeds: of processor time, about")
    parser.add_argument("--log", action="store_true", help="show what the store logs")
    options = parser.parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(before if options.log else logging.CRITICAL)
    try:
        return _judge(options, modes)
    finally:
        logging.disable(before)


def _judge(options: argparse.Namespace, modes: Mapping[str, Mode]) -> int:
    exhaustive = _EXHAUSTIVE_IMAGES if options.mode in SMALL else 0
    effort = Effort(exhaustive_images=exhaustive, seconds=options.seconds)
    seeds = options.seeds if options.seed is None else range(options.seed, options.seed + 1)
    began = time.process_time()
    tally = run_seeds(modes[options.mode], seeds, effort, options.image)
    spent = f"{time.process_time() - began:.1f} s of processor time"
    print(f"{tally.seeds} seeds, {tally.images} images of {tally.moments} moments in {spent}: {tally.per_chooser}")
    for verdict in tally.verdicts:
        print(verdict)
        print(
            f"replay: python -m chaos.crash --mode {options.mode} --seed {verdict.seed} --image {verdict.number} --log"
        )
    return _FOUND if tally.verdicts else 0


if __name__ == "__main__":
    command.run(main)
