"""Percentiles, and the longest time without an acknowledgement or delivery."""

import bisect
import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed; 0.0 if there are none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def longest_gap_ms(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """Return the longest time between two successive times that ends at or after `begin_s` and begins before `end_s`.

    In ms; 0.0 if there is none.

    Args:
        times_s: of acknowledgements or deliveries, rising.
        begin_s: time of the fault.
        end_s: a time at which the failover is certainly over.
    """
    first = max(bisect.bisect_left(times_s, begin_s), 1)
    last = min(bisect.bisect_left(times_s, end_s), len(times_s) - 1)
    return 1000 * max((times_s[i] - times_s[i - 1] for i in range(first, last + 1)), default=0.0)
