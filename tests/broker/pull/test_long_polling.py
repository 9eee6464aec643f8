"""Held pulls against a simple model: who waits where until when."""

from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.pull.held_pulls import SWEEP_SECONDS, HeldPulls
from store.queues.consume_queue import ConsumeQueue

QUEUES = [cast("ConsumeQueue", f"queue {number}") for number in range(3)]
queues = st.sampled_from(QUEUES)


class FakePull:
    """Answered when `has_news`."""

    def __init__(self, queue: ConsumeQueue, deadline: float) -> None:
        self.queue = queue
        self.deadline = deadline
        self.is_gone = False
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
        self.held = HeldPulls(lambda: self.now)
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

    def _settle(self, is_ended: object, outcome: str, also_gone: list[ConsumeQueue]) -> None:
        assert callable(is_ended)
        for pull in self.waiting:
            if not pull.is_gone:
                assert pull.outcome == (outcome if is_ended(pull) else None)
        self.waiting = [
            pull for pull in self.waiting if not (is_ended(pull) or (pull.is_gone and pull.queue in also_gone))
        ]


TestHeldPulls = Machine.TestCase
TestHeldPulls.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_sweep_ends_only_what_is_due() -> None:
    now = [0.0]
    held = HeldPulls(lambda: now[0])
    pulls = [FakePull(QUEUES[0], number * SWEEP_SECONDS / 2) for number in range(10)]
    for pull in pulls:
        held.hold(pull)
    now[0] = SWEEP_SECONDS
    held.sweep()
    assert [pull.outcome for pull in pulls] == ["over"] * 3 + [None] * 7
    assert len(held) == 7


def test_a_retry_that_fails_keeps_no_pull_from_its_end() -> None:
    now = [0.0]
    held = HeldPulls(lambda: now[0])
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


def raises() -> bool:
    raise ValueError("no record")
