"""Batches that are placed in the log and not answered yet. The oldest is answered first.

The end of a batch is a physical offset in the classic log, an entry index in Raft's.
"""

from collections import deque
from collections.abc import Callable

from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt, Done


class WaitingBatches:
    """A queue of (end, deadline, done), with rising ends."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float, Done]] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, end: int, deadline_s: float, done: Done) -> None:
        """Add a batch that ends at `end`, which is the last one so far."""
        self._batches.append((end, deadline_s, done))

    @property
    def next_deadline_s(self) -> float | None:
        """The deadline of the oldest batch, in seconds; None when no batch waits."""
        return self._batches[0][1] if self._batches else None

    def complete(self, end: int, receipt: Callable[[], AppendReceipt]) -> None:
        """Answer the batches up to `end`, for which the mode's promise holds; `receipt` is called once, if any."""
        batches = self._batches
        if not batches or batches[0][0] > end:
            return
        value = receipt()
        while batches and batches[0][0] <= end:
            batches.popleft()[2](value)

    def refuse_after(self, end: int, refusal: Callable[[], Refusal]) -> None:
        """Refuse the batches that end after `end`, which will not be completed."""
        batches = self._batches
        refused: list[Done] = []
        while batches and batches[-1][0] > end:
            refused.append(batches.pop()[2])
        for done in reversed(refused):
            done(refusal())

    def refuse_late(self, now_s: float, refusal: Callable[[int], Refusal]) -> None:
        """Refuse the batches whose deadline has passed; `refusal` is called with the number of batches that wait."""
        batches = self._batches
        while batches and batches[0][1] <= now_s:
            waiting = len(batches)
            batches.popleft()[2](refusal(waiting))
