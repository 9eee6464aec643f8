"""How long to wait before the next try: short at first, since a failover takes less than a second."""

from collections.abc import Callable

FIRST_S = 0.03
GROWTH = 1.35
LONGEST_S = 0.3


def back_off_s(failure_count: int, jitter: Callable[[], float]) -> float:
    """Seconds to wait after the `failure_count`-th failure in a row (1 or more).

    Args:
        failure_count: failures so far.
        jitter: a number in [0, 1): spreads many waiters over the upper half of the delay.
    """
    ceiling = min(LONGEST_S, FIRST_S * GROWTH ** min(failure_count - 1, 16))
    return ceiling * (0.65 + 0.35 * jitter())
