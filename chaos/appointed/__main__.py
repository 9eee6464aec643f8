"""`python -m chaos.appointed --seeds 100`: runs seeds, prints what broke, ends with 1 if anything did."""

import sys
from pathlib import Path

from chaos.appointed.judge import AppointedSeen
from chaos.appointed.plan import KINDS
from chaos.appointed.simulation import AppointedSimulation
from chaos.sim.nemesis import Script
from chaos.sim.seeds import Campaign


def simulate(seed: int, script: Script) -> AppointedSeen:
    """Run a seed."""
    return AppointedSimulation(seed, script).run()


CAMPAIGN = Campaign("chaos.appointed", simulate, KINDS, Path(__file__).with_name("corpus.txt"))

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main(__doc__))
