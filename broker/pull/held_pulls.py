"""Held pulls: requests that found nothing new, kept until there is something, or their time is over.

    pull finds nothing -> hold(queue) --commit pass touches the queue--> tried again: answered, or held on
                                       '------- time over -------> answered

The commit pass names the queues that got messages, and only their pulls are tried. One timer serves all of them, and
looks only at those whose time ends.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from store.queues.consume_queue import ConsumeQueue

SWEEP_SECONDS = 0.25
_THOROUGH_SWEEPS = 20


class HeldPull(Protocol):
    """A pull that waits. `deadline` is in seconds of the loop's clock."""

    queue: ConsumeQueue
    deadline: float

    @property
    def is_gone(self) -> bool:
        """Whether the client's connection is closed."""

    def retry(self) -> bool:
        """Read again; return True if it was answered, False if it must be held on."""

    def give_up(self) -> None:
        """Answer without messages, since its time is over."""


class HeldPulls:
    """All held pulls by queue, and by the time at which they end; `clock` is that of their deadlines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[ConsumeQueue, list[HeldPull]] = {}
        self._ends: dict[int, dict[HeldPull, None]] = {}  # by the sweep that ends them, so that no sweep looks at all
        self._sweeps = 0

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def now(self) -> float:
        """Present time on the clock of the deadlines."""
        return self._clock()

    def hold(self, pull: HeldPull) -> None:
        """Hold a pull until its queue gets messages or its deadline, which does not change, is over."""
        self._held.setdefault(pull.queue, []).append(pull)
        self._ends.setdefault(int(pull.deadline / SWEEP_SECONDS), {})[pull] = None

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Try the pulls of these queues again, since they have new messages."""
        if not self._held:
            return
        for queue in queues:
            pulls = self._held.pop(queue, None)
            if pulls is None:
                continue
            still = []
            for pull in pulls:
                if pull.is_gone or pull.retry():
                    self._forget_end(pull)
                else:
                    still.append(pull)
            if still:
                self._held.setdefault(queue, []).extend(still)

    def sweep(self) -> None:
        """Answer pulls whose time is over, and drop those of closed connections. Call it every `SWEEP_SECONDS`.

        Closed connections are looked for in one of `_THOROUGH_SWEEPS` sweeps.
        """
        now = self._clock()
        last = int(now / SWEEP_SECONDS)
        is_thorough = self._sweeps % _THOROUGH_SWEEPS == 0
        self._sweeps += 1
        ends = [end for end in self._ends if is_thorough or end <= last]
        over = {pull: None for end in ends for pull in self._ends[end] if pull.deadline <= now or pull.is_gone}
        self._drop(over)
        for pull in over:
            if not pull.is_gone:
                pull.give_up()

    def release(self, queues: Iterable[ConsumeQueue] | None = None) -> None:
        """Answer the pulls of these queues now (all when None): the topic is removed, or the broker stops."""
        for queue in list(self._held if queues is None else queues):
            for pull in self._held.pop(queue, ()):
                self._forget_end(pull)
                if not pull.is_gone:
                    pull.give_up()

    def _drop(self, pulls: Mapping[HeldPull, None]) -> None:
        for queue in {pull.queue for pull in pulls}:
            # A failed retry left the pulls of its queue only in `_ends`.
            left = [pull for pull in self._held.pop(queue, ()) if pull not in pulls]
            if left:
                self._held[queue] = left
        for pull in pulls:
            self._forget_end(pull)

    def _forget_end(self, pull: HeldPull) -> None:
        end = int(pull.deadline / SWEEP_SECONDS)
        pulls = self._ends[end]
        del pulls[pull]
        if not pulls:
            del self._ends[end]
