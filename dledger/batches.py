"""Batches that wait for their commit: placed at the right, completed or refused from the left."""

from collections import deque
from collections.abc import Callable

from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt, Done


class WaitingBatches:
    """A queue of (last index, deadline, done) in the log's order."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float, Done]] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, last_index: int, deadline_s: float, done: Done) -> None:
        """A batch whose last entry is `last_index` was placed."""
        self._batches.append((last_index, deadline_s, done))

    def complete(self, commit_index: int, receipt: Callable[[], AppendReceipt]) -> None:
        """Everything up to `commit_index` is committed; `receipt` is asked once, if a batch is covered."""
        batches = self._batches
        if not batches or batches[0][0] > commit_index:
            return
        value = receipt()
        while batches and batches[0][0] <= commit_index:
            batches.popleft()[2](value)

    def refuse_after(self, last_index: int, refusal: Callable[[], Refusal]) -> None:
        """Batches that reach beyond `last_index` will not be completed."""
        batches = self._batches
        refused: list[Done] = []
        while batches and batches[-1][0] > last_index:
            refused.append(batches.pop()[2])
        for done in reversed(refused):
            done(refusal())

    def refuse_late(self, now_s: float, refusal: Callable[[int], Refusal]) -> None:
        """Batches whose deadline passed: `refusal` gets how many wait."""
        batches = self._batches
        while batches and batches[0][1] <= now_s:
            waiting = len(batches)
            batches.popleft()[2](refusal(waiting))
