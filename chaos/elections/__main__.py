"""`python -m chaos.elections --seeds 100`: runs seeds, prints what broke, ends with 1 if anything did."""

import argparse
import sys

from chaos.elections.world import World

RUN_S = 8.0


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m chaos.elections", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first one (%(default)s)")
    arguments = parser.parse_args()
    acked = epochs = broken = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        seen = World(seed).run(RUN_S)
        acked, epochs = acked + len(seen.acked), epochs + len(seen.epochs)
        for violation in seen.violations:
            broken += 1
            print(f"seed {seed}: {violation}")
    print(f"{arguments.seeds} seeds: {acked} records acknowledged under {epochs} masters, {broken} rules broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
