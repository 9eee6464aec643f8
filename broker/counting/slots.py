"""Slots: numbers under which arrays keep what many counters have, so that many are changed by a few calls."""

from collections import deque
from typing import Final

_REST: Final = 1024
"""So many freed slots rest, since messages on the way may still carry their numbers."""


class Slots:
    """Numbers from 0 on.

    Attributes:
        end: every slot ever taken is below.
    """

    __slots__ = ("_freed", "end")

    def __init__(self) -> None:
        self.end = 0
        self._freed: deque[int] = deque()

    def take(self) -> int:
        """Return a slot that was never taken, or one that was freed long ago."""
        if len(self._freed) > _REST:
            return self._freed.popleft()
        self.end += 1
        return self.end - 1

    def free(self, slot: int) -> None:
        """Let the slot be taken again, later."""
        self._freed.append(slot)


def room_for(end: int, length: int) -> int:
    """Return the length to which arrays of this length grow for slots below `end`."""
    return length if end <= length else max(64, 2 * length, end)
