"""Campaigns: drills drawn from a seed, one after another. Pure: the same seed and catalogue give the same drills."""

from collections.abc import Iterator, Sequence
from random import Random

from chaos.drills.catalogue import Drill

_SHORTEST, _LONGEST = 0.5, 1.5


def draw(seed: int, among: Sequence[Drill]) -> Iterator[tuple[Drill, float]]:
    """Yield drills, each with the seconds that its fault lasts, for ever.

    Every drill comes once before one comes again, so that a short campaign is broad.
    """
    rng = Random(seed)
    while True:
        drills = list(among)
        rng.shuffle(drills)
        for drill in drills:
            yield drill, drill.hold_s * rng.uniform(_SHORTEST, _LONGEST)
