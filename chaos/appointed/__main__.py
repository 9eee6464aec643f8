"""`python -m chaos.appointed --seeds 100`: run seeds, print violations, exit with 1 if there are any."""

from pathlib import Path

from chaos import command
from chaos.appointed.judge import AppointedSeen
from chaos.appointed.plan import KINDS
from chaos.appointed.simulation import AppointedSimulation
from chaos.sim.nemesis import Script
from chaos.sim.seeds import Campaign


def simulate(seed: int, script: Script) -> AppointedSeen:
    """Run one seed; return what was observed."""
    return AppointedSimulation(seed, script).run()


CAMPAIGN = Campaign("chaos.appointed", simulate, KINDS, Path(__file__).with_name("corpus.txt"))

if __name__ == "__main__":
    command.run(lambda: CAMPAIGN.main(__doc__))
