"""Held pulls against a simple model: who waits where until when."""

import functools
import itertools
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.pull.held_pulls import SWEEP_SECONDS, HeldPulls
from store.queues.consume_queue import ConsumeQueue
from tests.limits import IS_WHOLE

QUEUES = [cast("ConsumeQueue", f"queue {number}") for number in range(3)]
queues = st.sampled_from(QUEUES)


def at_once(seconds: float, call: Callable[[], None]) -> None:
    """The next turns of the loop, now."""
    call()


class FakePull:
    """Answered when `has_news`."""

    def __init__(self, queue: ConsumeQueue, deadline: float) -> None:
        self.queue = queue
        self.connection = "c"
        self.deadline = deadline
        self.is_gone = False
        self.is_blocked = False
        self.has_news = False
        self.outcome: str | None = None

    def retry(self) -> bool:
        if self.has_news:
            self.outcome = "answered"
        return self.has_news

    def give_up(self) -> None:
        self.outcome = "over"


class Machine(RuleBasedStateMachine):
    """The model: a list of pulls; each is told once what became of it, and not too early or late."""

    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.held = HeldPulls(lambda: self.now, at_once)
        self.waiting: list[FakePull] = []
        self.sweeps = 0

    @rule(queue=queues, seconds=st.floats(-1, 20))
    def hold(self, queue: ConsumeQueue, seconds: float) -> None:
        pull = FakePull(queue, self.now + seconds)
        self.held.hold(pull)
        self.waiting.append(pull)

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.waiting:
            data.draw(st.sampled_from(self.waiting)).is_gone = True

    @rule(data=st.data())
    def news(self, data: st.DataObject) -> None:
        if self.waiting:
            data.draw(st.sampled_from(self.waiting)).has_news = True

    @rule(woken=st.lists(queues, max_size=2))
    def wake(self, woken: list[ConsumeQueue]) -> None:
        self.held.wake(woken)
        self._settle(lambda pull: pull.queue in woken and pull.has_news, "answered", also_gone=woken)

    @rule(seconds=st.floats(0, 3), sweeps=st.integers(1, 25))
    def sweep(self, seconds: float, sweeps: int) -> None:
        self.now += seconds
        for _ in range(sweeps):
            self.held.sweep()
        self._settle(lambda pull: pull.deadline <= self.now, "over", also_gone=QUEUES if sweeps >= 20 else [])

    @rule(released=st.one_of(st.none(), st.lists(queues, max_size=2)))
    def release(self, released: list[ConsumeQueue] | None) -> None:
        self.held.release(released)
        chosen = QUEUES if released is None else released
        self._settle(lambda pull: pull.queue in chosen, "over", also_gone=chosen)

    @invariant()
    def holds_who_waits(self) -> None:
        assert sum(not pull.is_gone for pull in self.waiting) <= len(self.held) <= len(self.waiting)
        counts = self.held._of_queue
        assert sum(counts.values()) == len(self.held) and all(counts.values())

    def _settle(self, is_ended: object, outcome: str, also_gone: list[ConsumeQueue]) -> None:
        assert callable(is_ended)
        for pull in self.waiting:
            if not pull.is_gone:
                assert pull.outcome == (outcome if is_ended(pull) else None)
        self.waiting = [
            pull for pull in self.waiting if not (is_ended(pull) or (pull.is_gone and pull.queue in also_gone))
        ]


TestHeldPulls = Machine.TestCase
TestHeldPulls.settings = settings(max_examples=60 if IS_WHOLE else 20, stateful_step_count=25, deadline=None)


def test_a_sweep_ends_only_what_is_due() -> None:
    now = [0.0]
    held = HeldPulls(lambda: now[0], at_once)
    pulls = [FakePull(QUEUES[0], number * SWEEP_SECONDS / 2) for number in range(10)]
    for pull in pulls:
        held.hold(pull)
    now[0] = SWEEP_SECONDS
    held.sweep()
    assert [pull.outcome for pull in pulls] == ["over"] * 3 + [None] * 7
    assert len(held) == 7


def test_a_retry_that_fails_keeps_no_pull_from_its_end() -> None:
    now = [0.0]
    held = HeldPulls(lambda: now[0], at_once)
    pulls = [FakePull(QUEUES[number // 2], 1.0) for number in range(3)]
    for pull in pulls:
        held.hold(pull)
    pulls[0].retry = raises  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no record"):
        held.wake([QUEUES[0]])
    now[0] = 1.0
    held.sweep()
    assert [pull.outcome for pull in pulls] == ["over"] * 3
    assert len(held) == 0


def test_a_pull_whose_client_does_not_read_waits_until_it_does_and_not_for_ever() -> None:
    now, turns = [0.0], list[tuple[float, Callable[[], None]]]()
    held = HeldPulls(lambda: now[0], lambda seconds, call: turns.append((seconds, call)))
    pulls = [FakePull(QUEUES[0], 1.0) for _ in range(3)]
    for pull in pulls:
        held.hold(pull)
        pull.has_news = True
    pulls[0].is_blocked = pulls[1].is_blocked = True
    held.wake([QUEUES[0]])
    assert [pull.outcome for pull in pulls] == [None, None, "answered"]
    assert [seconds for seconds, _ in turns] == [0.02], "not in each turn"
    pulls[0].is_blocked = False
    turns.pop()[1]()
    assert [pull.outcome for pull in pulls] == ["answered", None, "answered"]
    now[0] = 2.0
    held.sweep()
    assert pulls[1].outcome is None, "an answer that nobody reads takes memory, also when the time is over"
    pulls[1].is_gone = True
    turns.pop()[1]()
    assert (len(held), turns) == (0, [])


def test_many_pulls_are_tried_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("broker.pull.held_pulls.time.perf_counter", lambda: next(clock) / 1000)
    turns = list[Callable[[], None]]()
    held = HeldPulls(lambda: 0.0, lambda seconds, call: turns.append(call))
    pulls = [FakePull(QUEUES[0], 1.0) for _ in range(20)]
    for pull in pulls:
        held.hold(pull)
        pull.has_news = True
    tried = []
    held.wake([QUEUES[0]])
    held.wake([QUEUES[0]])  # comes while they are tried
    while turns:
        tried.append(sum(pull.outcome is not None for pull in pulls))
        turns.pop(0)()
        assert len(turns) <= 1
    assert tried == [5, 10, 15, 20][: len(tried)] and all(pull.outcome == "answered" for pull in pulls)
    assert len(held) == 0


def test_blocked_pulls_that_take_several_slices_rest_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("broker.pull.held_pulls.time.perf_counter", lambda: next(clock) / 1000)
    turns = list[tuple[float, Callable[[], None]]]()
    held = HeldPulls(lambda: 0.0, lambda seconds, call: turns.append((seconds, call)))
    for _ in range(16):  # four slices of four or five
        held.hold(pull := FakePull(QUEUES[0], 1.0))
        pull.is_blocked = True
    held.hold(reader := FakePull(QUEUES[1], 1.0))
    held.wake([QUEUES[0]])
    pauses = []
    for _ in range(8):
        [(pause_s, call)] = turns
        pauses.append(pause_s)
        turns.clear()
        call()
    assert pauses == [0.0, 0.0, 0.0, 0.02] * 2
    while turns[0][0] == 0.0:
        turns.pop()[1]()
    reader.has_news = True
    held.wake([QUEUES[1]])
    assert reader.outcome == "answered", "at once, whoever else is blocked"
    assert len(turns) == 1


def test_pulls_that_wait_to_be_tried_are_released_with_their_queue() -> None:
    turns = list[Callable[[], None]]()
    held = HeldPulls(lambda: 0.0, lambda seconds, call: turns.append(call))
    pulls = [FakePull(queue, 1.0) for queue in QUEUES[:2]]
    for pull in pulls:
        held.hold(pull)
        pull.is_blocked = True
    held.wake(QUEUES[:2])
    held.release([QUEUES[0]])
    assert [pull.outcome for pull in pulls] == ["over", None]
    held.release()
    assert [pull.outcome for pull in pulls] == ["over", "over"]
    turns.pop()()
    assert (len(held), turns) == (0, [])


def test_queues_are_released_in_the_order_in_which_they_are_named() -> None:
    """Not in that of their places in memory, by which a simulation would be another one each time."""
    for order in itertools.permutations(QUEUES):
        told = list[ConsumeQueue]()
        held = HeldPulls(lambda: 0.0, at_once)
        for queue in QUEUES:
            pull = FakePull(queue, 1.0)
            pull.give_up = functools.partial(told.append, queue)  # type: ignore[method-assign]
            held.hold(pull)
        held.release(order)
        assert told == [*order]


def raises() -> bool:
    raise ValueError("no record")
