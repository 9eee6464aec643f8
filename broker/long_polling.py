"""Held pulls: requests that found nothing new, kept until there is something, or their time is over.

    pull finds nothing -> hold(queue) --commit pass touches the queue--> tried again: answered, or held on
                                '------- time over -------> answered

The commit pass says which queues got messages; only their pulls are looked at. One timer serves all of them.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from store.consume_queue import ConsumeQueue

SWEEP_SECONDS = 0.25


class HeldPull(Protocol):
    """A pull that waits. `deadline` is in seconds of the loop's clock."""

    queue: ConsumeQueue
    deadline: float

    @property
    def is_gone(self) -> bool:
        """Nobody waits for the answer any more."""

    def retry(self) -> bool:
        """Look again; true when it was answered, false when it must be held on."""

    def give_up(self) -> None:
        """Answer that the time is over."""


class HeldPulls:
    """All held pulls by queue; `clock` is the one of their deadlines."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[ConsumeQueue, list[HeldPull]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def now(self) -> float:
        """Present time on the clock of the deadlines."""
        return self._clock()

    def hold(self, pull: HeldPull) -> None:
        """Keep a pull until its queue gets messages or its deadline is over."""
        self._held.setdefault(pull.queue, []).append(pull)

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """These queues have new messages: try their pulls again."""
        if not self._held:
            return
        for queue in queues:
            pulls = self._held.pop(queue, None)
            if pulls is None:
                continue
            still = [pull for pull in pulls if not pull.is_gone and not pull.retry()]
            if still:
                self._held.setdefault(queue, []).extend(still)

    def sweep(self) -> None:
        """Answer those whose time is over, drop those nobody waits for. To be called every `SWEEP_SECONDS`."""
        now = self._clock()
        for queue, pulls in list(self._held.items()):
            left = [pull for pull in pulls if not pull.is_gone and pull.deadline > now]
            if len(left) == len(pulls):
                continue
            for pull in pulls:
                if not pull.is_gone and pull.deadline <= now:
                    pull.give_up()
            if left:
                self._held[queue] = left
            else:
                del self._held[queue]

    def release(self, queues: Iterable[ConsumeQueue] | None = None) -> None:
        """Answer the pulls of these queues now (all when None): the topic goes, or the broker stops."""
        for queue in list(self._held if queues is None else queues):
            for pull in self._held.pop(queue, ()):
                if not pull.is_gone:
                    pull.give_up()
