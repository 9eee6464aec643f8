"""Slots: indexes into arrays that hold the values of many counters, so that a few calls change many of them."""

from collections import deque
from typing import Final

_REST: Final = 1024
"""Number of freed slots that are not used again yet: messages on their way may still refer to them."""


class Slots:
    """Hands out indexes, from 0 on.

    Attributes:
        end: every slot ever taken is below.
    """

    __slots__ = ("_freed", "end")

    def __init__(self) -> None:
        self.end = 0
        self._freed: deque[int] = deque()

    def take(self) -> int:
        """Return an index that was never handed out, or one that was freed long ago."""
        if len(self._freed) > _REST:
            return self._freed.popleft()
        self.end += 1
        return self.end - 1

    def free(self, slot: int) -> None:
        """Let the index be handed out again, later."""
        self._freed.append(slot)


def room_for(end: int, length: int) -> int:
    """Return the length to which arrays of this length must grow to have the slots below `end`."""
    return length if end <= length else max(64, 2 * length, end)
