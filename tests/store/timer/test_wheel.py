"""The wheel's slots: which are in use, across the place where it comes round."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.timer.wheel import Slot, TimerWheel

SLOTS = 40
PRECISION_MS = 100
times = st.integers(1, 3 * SLOTS).map(lambda time: time * PRECISION_MS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(used=st.lists(times, max_size=6), start_ms=times, slots=st.integers(0, SLOTS))
def test_empty_slots_are_passed_over_and_no_other(tmp_path: Path, used: list[int], start_ms: int, slots: int) -> None:
    (tmp_path / "timerwheel").unlink(missing_ok=True)
    wheel = TimerWheel(tmp_path / "timerwheel", PRECISION_MS, SLOTS)
    for time_ms in used:
        wheel.put(time_ms, Slot(0, 0, 1))
    before_ms = start_ms + slots * PRECISION_MS
    found, time_ms = [], start_ms
    while (time_ms := wheel.skip_empty(time_ms, before_ms)) < before_ms:
        if wheel.get(time_ms) is not None:  # else the search came no further
            found.append(time_ms)
            time_ms += PRECISION_MS
    assert found == [time for time in range(start_ms, before_ms, PRECISION_MS) if wheel.get(time) is not None]
    wheel.close()
