"""Counters over a minute, an hour and a day."""

import pytest

from broker.statistics import SAMPLE_SECONDS, Statistics


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_spans_forget_what_is_older() -> None:
    clock = Clock()
    statistics = Statistics(clock)
    counter = statistics.counter("GROUP_GET_NUMS", "T@g")
    counter.add(60, 6)
    for _ in range(431):  # an hour, eleven minutes and fifty seconds
        clock.now += SAMPLE_SECONDS
        statistics.sample()
    counter.add(12, 3)
    spans = statistics.find("GROUP_GET_NUMS", "T@g")
    assert spans is not None
    assert spans["statsMinute"] == {"sum": 12, "avgpt": 4.0, "tps": pytest.approx(12 / 60)}
    assert spans["statsHour"]["sum"] == 12
    assert spans["statsDay"] == {"sum": 72, "avgpt": 8.0, "tps": pytest.approx(72 / 4310)}
    assert statistics.rate("GROUP_GET_NUMS", "T@g") == pytest.approx(12 / 60)


def test_a_topics_counters_go_with_it() -> None:
    statistics = Statistics(Clock())
    statistics.counter("GROUP_GET_NUMS", "T@g").add(1)
    statistics.counter("GROUP_GET_NUMS", "U@g").add(1)
    statistics.forget_topic("T")
    assert statistics.find("GROUP_GET_NUMS", "T@g") is None
    assert statistics.find("GROUP_GET_NUMS", "U@g") is not None
    assert statistics.rate("none", "none") == 0.0
