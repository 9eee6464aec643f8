"""The wall clock in RocketMQ's unit. Clocks jump: intervals are measured by `time.monotonic`."""

import time


def wall_clock_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
