"""Campaigns: drills drawn from a seed, one after another. The same seed and catalogue give the same drills."""

from collections.abc import Iterator, Sequence
from random import Random

from chaos.drills.catalogue import Drill
from chaos.drills.schedule import Planned

_SHORTEST, _LONGEST = 0.5, 1.5


def draw(seed: int, among: Sequence[Drill]) -> Iterator[Planned]:
    """Yield drills without end.

    Every drill comes once before any comes again, so that a short campaign is broad.
    """
    rng = Random(seed)
    while True:
        drills = list(among)
        rng.shuffle(drills)
        for drill in drills:
            share = rng.uniform(_SHORTEST, _LONGEST)
            # a stall longer than the drill's own may cause an election
            yield Planned(drill, drill.hold_s * (min(share, 1.0) if drill.keeps_leader else share))
