"""Batches placed in the log and not answered yet: placed at the right, completed or refused from the left.

A batch's end is a physical offset in the classic log, an index in Raft's. The oldest is answered first.
"""

from collections import deque
from collections.abc import Callable

from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt, Done


class WaitingBatches:
    """A queue of (end, deadline, done) in the log's order."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float, Done]] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, end: int, deadline_s: float, done: Done) -> None:
        """A batch that ends at `end`, the last one so far, was placed."""
        self._batches.append((end, deadline_s, done))

    @property
    def next_deadline_s(self) -> float | None:
        """When the oldest batch is late; None when none waits."""
        return self._batches[0][1] if self._batches else None

    def complete(self, end: int, receipt: Callable[[], AppendReceipt]) -> None:
        """The promise holds for everything up to `end`; `receipt` is asked once, if a batch is covered."""
        batches = self._batches
        if not batches or batches[0][0] > end:
            return
        value = receipt()
        while batches and batches[0][0] <= end:
            batches.popleft()[2](value)

    def refuse_after(self, end: int, refusal: Callable[[], Refusal]) -> None:
        """Batches that reach beyond `end` will not be completed."""
        batches = self._batches
        refused: list[Done] = []
        while batches and batches[-1][0] > end:
            refused.append(batches.pop()[2])
        for done in reversed(refused):
            done(refusal())

    def refuse_late(self, now_s: float, refusal: Callable[[int], Refusal]) -> None:
        """Batches whose deadline passed: `refusal` gets how many wait."""
        batches = self._batches
        while batches and batches[0][1] <= now_s:
            waiting = len(batches)
            batches.popleft()[2](refusal(waiting))
