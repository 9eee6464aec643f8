"""`python -m chaos.elections --seeds 100`: run seeds, print violations, exit with 1 if there are any."""

from pathlib import Path

from chaos import command
from chaos.elections.network import Seen
from chaos.elections.simulation import KINDS, ElectionSimulation
from chaos.sim.nemesis import Script
from chaos.sim.seeds import Campaign

RUN_S = 8.0


def _simulate(seed: int, script: Script) -> Seen:
    return ElectionSimulation(seed, None, script).run(RUN_S)


CAMPAIGN = Campaign(
    "chaos.elections", _simulate, tuple(kind for _, kind in KINDS), Path(__file__).with_name("corpus.txt")
)

if __name__ == "__main__":
    command.run(lambda: CAMPAIGN.main(__doc__))
