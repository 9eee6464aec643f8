import asyncio

from telemetry.loop_lag import LoopLagMonitor
from telemetry.metrics import Registry
from tests.limits import WAIT_S


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def next_beat(registry: Registry, monitor: LoopLagMonitor) -> None:
    """Wait until the monitor has observed once more."""
    histogram = registry.histogram("ledgermq_loop_lag_seconds", "How late the event loop ran a due timer.")
    seen = histogram.count
    async with asyncio.timeout(WAIT_S):
        while histogram.count == seen:
            await asyncio.sleep(0)


async def test_a_stall_is_seen_before_and_after_the_beat_and_counted_once() -> None:
    registry, clock = Registry(), Clock()
    monitor = LoopLagMonitor(registry, interval_s=0.001, tolerance_s=0.01, clock=clock)
    monitor.start()
    assert (monitor.stall_ms, monitor.stalled_s) == (0, 0)
    clock.now += 0.001 + 0.5
    assert round(monitor.stall_ms) == 500
    assert round(monitor.stalled_s, 6) == 0.5
    await next_beat(registry, monitor)
    assert round(monitor.stall_ms) == 500
    assert round(monitor.stalled_s, 6) == 0.5
    clock.now += 0.001
    await next_beat(registry, monitor)
    assert monitor.stall_ms == 0
    assert round(monitor.stalled_s, 6) == 0.5
    monitor.close()


async def test_ordinary_lateness_is_observed_but_is_no_stall() -> None:
    registry, clock = Registry(), Clock()
    monitor = LoopLagMonitor(registry, interval_s=0.001, tolerance_s=0.01, clock=clock)
    monitor.start()
    clock.now += 0.001 + 0.009
    await next_beat(registry, monitor)
    assert (monitor.stall_ms, monitor.stalled_s) == (0, 0)
    assert 'ledgermq_loop_lag_seconds_bucket{le="0.01"} 1\n' in registry.render()
    assert 'ledgermq_loop_lag_seconds_bucket{le="0.005"} 0\n' in registry.render()
    monitor.close()


async def test_after_close_time_passes_without_a_stall() -> None:
    clock = Clock()
    monitor = LoopLagMonitor(Registry(), clock=clock)
    monitor.start()
    monitor.close()
    clock.now += 10
    assert (monitor.stall_ms, monitor.stalled_s) == (0, 0)
