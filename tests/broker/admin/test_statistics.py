"""Counters over a minute, an hour and a day."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.counting.arrivals import MessageKind
from broker.counting.counting import Counting
from broker.counting.rate_table import RateTable
from broker.counting.statistics import (
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    QUEUE_GET_NUMS,
    SAMPLE_SECONDS,
    RateCounter,
    Statistics,
)
from store.log.drafts import QueuedDraft


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


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60),
    before=st.integers(0, 9),
)
def test_a_span_tells_what_was_counted_since_its_first_sample(steps: list[tuple[int, int]], before: int) -> None:
    spans = (("short", 1, 3), ("middle", 4, 3), ("long", 8, 4))
    changed: list[RateCounter] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.counting.statistics.SPANS", spans)
        number = before
        counter = RateCounter(0.0, number, changed)
        naive = [[(0, 0)] for _ in spans]
        for amount, rounds in steps:
            if amount:
                counter.add(amount, 1)
            for _ in range(rounds):
                number += 1
                for one in changed.copy():
                    one.sample(number)
                changed.clear()
                for samples, (_, every, kept) in zip(naive, spans, strict=True):
                    if number % every == 0:
                        samples.append((counter.total, counter.times))
                        del samples[: max(len(samples) - kept, 0)]
            found = [counter.oldest(span, number) for span in range(len(spans))]
            assert found == [(*samples[0], len(samples)) for samples in naive]


def test_counters_that_nothing_is_added_to_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    visits: list[int] = []
    monkeypatch.setattr(RateCounter, "sample", lambda counter, number: visits.append(number))
    clock = Clock()
    statistics = Statistics(clock)
    for number in range(100):
        statistics.counter(GROUP_GET_NUMS, f"T@g{number}").add(1)
    for _ in range(5):
        clock.now += SAMPLE_SECONDS
        statistics.sample()
    assert len(visits) == 100


def test_a_topics_counters_go_with_it() -> None:
    statistics = Statistics(Clock())
    statistics.counter("GROUP_GET_NUMS", "T@g").add(1)
    statistics.counter("GROUP_GET_NUMS", "U@g").add(1)
    statistics.forget_topic("T")
    assert statistics.find("GROUP_GET_NUMS", "T@g") is None
    assert statistics.find("GROUP_GET_NUMS", "U@g") is not None
    assert statistics.rate("none", "none") == 0.0


def test_a_groups_counters_go_with_it() -> None:
    counting = Counting("c", 10, Clock())
    for group in ("g", "h"):
        counting.departures.pull_counter("T", group, 3).add(2, 20, 5, 1)
        counting.departures.add_popped("T", group, 1, 10, is_retry=False)
    counting.forget_group("g")
    assert counting.statistics.keys(GROUP_GET_NUMS) == ["T@h"]
    assert counting.statistics.keys(QUEUE_GET_NUMS) == ["T@3@h"]
    assert counting.statistics.keys(GROUP_GET_LATENCY) == ["3@T@h"]
    assert list(counting.departures.pulled.items()) == [(("T", "h"), 2)]
    assert list(counting.departures.popped.items()) == [(("T", "h", "false"), 1)]
    assert counting.departures.pulled_to("T", "g", 3) == 0
    assert counting.departures.pulled_to("T", "h", 3) == 5


def test_pulls_that_find_nothing_make_no_counters() -> None:
    counting = Counting("c", 10, Clock())
    counting.departures.pull_counter("T", "g", 0)
    assert counting.statistics.keys(QUEUE_GET_NUMS) == []


def test_events_go_with_their_topic_or_group() -> None:
    counting = Counting("c", 10, Clock())
    events = counting.events
    for topic, group in (("T", "g"), ("U", "g"), ("T", "h")):
        events.dead_letters.add((topic, group))
        events.revive_in.add((group, topic, "CK", "PUT_OK"))
        events.commits.add((topic,))
        events.delay_s.of((topic,)).observe(1)
    counting.forget_group("h")
    assert [key for key, _ in events.dead_letters.items()] == [("T", "g"), ("U", "g")]
    counting.forget_topic("T")
    assert list(events.dead_letters.items()) == [(("U", "g"), 1)]
    assert list(events.revive_in.items()) == [(("g", "U", "CK", "PUT_OK"), 1)]
    assert list(events.commits.items()) == [(("U",), 1)]
    assert [key for key, _ in events.delay_s.items()] == [("U",)]


def draft_of(counting: Counting, queue_id: int, size: int) -> QueuedDraft:
    draft = QueuedDraft()
    draft.messages, draft.size = 1, size
    draft.tally = counting.arrivals.tally("T", queue_id)
    return draft


def test_messages_of_many_queues_are_summed_up_together() -> None:
    counting = Counting("cluster", 100, Clock())
    arrivals = counting.arrivals
    drafts = [draft_of(counting, queue_id, 1000 + queue_id) for queue_id in range(50)]
    size_bytes = sum(draft.size for draft in drafts)
    for _ in range(8):
        assert arrivals.count(drafts) == 0
    assert (arrivals.messages, arrivals.size_bytes) == (400, 8 * size_bytes)
    assert not list(arrivals.series())
    counting.tick()
    [(place, buckets)] = arrivals.series()
    assert place == ("T", MessageKind.NORMAL)
    assert (buckets.sum, buckets.counts) == (8 * size_bytes, (8 * 25, 8 * 25, 0, 0, 0, 0, 0))
    numbers, sizes = (counting.statistics.find(name, "T") for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"))
    assert numbers is not None
    assert numbers["statsDay"]["sum"] == 400
    assert numbers["statsDay"]["avgpt"] == 1.0
    assert sizes is not None
    assert sizes["statsDay"]["sum"] == 8 * size_bytes
    of_queue = counting.statistics.find("QUEUE_PUT_SIZE", "T@7")
    assert of_queue is not None
    assert of_queue["statsMinute"]["sum"] == 8 * 1007
    assert counting.statistics.keys("QUEUE_PUT_NUMS") == [f"T@{queue_id}" for queue_id in range(50)]


def test_messages_of_a_removed_topic_count_nowhere_and_its_numbers_are_used_again() -> None:
    counting = Counting("cluster", 2, Clock())
    late = draft_of(counting, 0, 100)
    counting.arrivals.count([late])
    counting.forget_topic("T")
    assert counting.statistics.keys("QUEUE_PUT_NUMS") == []
    counting.arrivals.count([late])  # was on the way
    counting.tick()
    taken = set[int]()
    for number in range(5000):
        topic = f"U{number}"
        taken.add(counting.arrivals.tally(topic, 0))
        counting.forget_topic(topic)
    assert len(taken) < 1100
    draft = draft_of(counting, 0, 5)
    counting.arrivals.count([draft])
    counting.tick()
    found = counting.statistics.find("TOPIC_PUT_SIZE", "T")
    assert found is not None
    assert found["statsDay"]["sum"] == 5
    assert [(place, buckets.sum) for place, buckets in counting.arrivals.series()] == [(("T", MessageKind.NORMAL), 5)]


def test_topics_beyond_the_limit_share_a_distribution() -> None:
    counting = Counting("cluster", 2, Clock())
    for number in range(4):
        draft = draft_of(counting, 0, 10)
        draft.tally = counting.arrivals.tally(f"T{number}", 0)
        counting.arrivals.count([draft])
    counting.tick()
    sums = {place: buckets.sum for place, buckets in counting.arrivals.series()}
    assert sums == {("T0", MessageKind.NORMAL): 10, None: 30}


@given(
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans(), st.integers(0, 5)), max_size=60),
    before=st.integers(0, 9),
)
def test_counters_of_a_table_tell_what_single_ones_tell(steps: list[tuple[int, int, bool, int]], before: int) -> None:
    """Several keys, which come and go and take each other's slots."""
    spans = (("short", 1, 3), ("middle", 4, 3), ("long", 8, 4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.counting.statistics.SPANS", spans)
        patch.setattr("broker.counting.rate_table.SPANS", spans)
        patch.setattr("broker.counting.slots._REST", 0)
        table, number = RateTable(Clock()), before
        table.sample(number)
        singles: dict[str, RateCounter] = {}
        changed: list[RateCounter] = []
        for which, amount, goes, rounds in steps:
            key = f"K{which}"
            if goes and key in singles:
                table.forget(key)
                del singles[key]
            if amount:
                single = singles.setdefault(key, RateCounter(0.0, number, changed))
                single.add(2 * amount, 2)
                slot = int(table.slots([key])[0])
                table.add(np.array([slot, slot]), np.array([amount, amount]))
            for _ in range(rounds):
                number += 1
                table.sample(number)
                for one in changed.copy():
                    one.sample(number)
                changed.clear()
            for key, single in singles.items():
                found = table.find(key)
                assert found is not None
                assert (found.total, found.times) == (single.total, single.times)
                for span in range(len(spans)):
                    assert found.oldest(span, number) == single.oldest(span, number)
