"""One queue for a judge: its delivered offsets, the gaps below them, and the order of acknowledgements."""

import bisect

from chaos.checkers.slots import GrowingArray


class Queue:
    """One queue. Memory grows with the gaps among the delivered offsets, and with the open sends.

    Attributes:
        index: its number.
        numbers: for each delivered offset, the number of its message plus one.
        highest: the highest delivered offset; -1: none.
        gaps: ranges of offsets below `highest` that were not delivered, `(first, one past the last)`, rising.
        committed: the last committed offset that was seen.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.numbers = GrowingArray("<q")
        self.highest = -1
        self.gaps: list[tuple[int, int]] = []
        self.committed = 0
        self._lowest: int | None = None
        self._ended_s: list[float] = []
        self._holders: list[tuple[int, int]] = []  # for each end: the highest offset acknowledged by then, and its send

    @property
    def first_missing(self) -> int:
        """The lowest offset that was not delivered."""
        return self.gaps[0][0] if self.gaps else self.highest + 1

    def part_of(self, offset: int) -> str:
        """Return whether an offset lies before, within or after the delivered ones."""
        if self._lowest is None or offset > self.highest:
            return "postfix"
        return "prefix" if offset < self._lowest else "middle"

    def delivered(self, offset: int) -> tuple[bool, bool]:
        """Note a delivered offset; return whether it is its first, and whether it or a later one came before."""
        self._lowest = offset if self._lowest is None else min(self._lowest, offset)
        if offset > self.highest:
            if offset > self.highest + 1:
                self.gaps.append((self.highest + 1, offset))
            self.highest = offset
            return True, False
        at = bisect.bisect_right(self.gaps, (offset, 1 << 62)) - 1
        if at < 0 or not self.gaps[at][0] <= offset < self.gaps[at][1]:
            return False, True
        begin, end = self.gaps[at]
        self.gaps[at : at + 1] = [gap for gap in ((begin, offset), (offset + 1, end)) if gap[0] < gap[1]]
        return True, True

    def acknowledged(self, number: int, offset: int, invoked_s: float, at_s: float, oldest_s: float) -> int | None:
        """Note a send's acknowledgement; return a send that was acknowledged before it began, at a later offset.

        Args:
            number: number of the send.
            offset: where it is stored.
            invoked_s: when it began.
            at_s: when it was acknowledged.
            oldest_s: no open send began before.

        Returns:
            Number of the other send; None if there is none.
        """
        earlier = bisect.bisect_left(self._ended_s, invoked_s) - 1
        highest, holder = self._holders[earlier] if earlier >= 0 else (-1, -1)
        best = max(self._holders[-1] if self._holders else (-1, -1), (offset, number))
        self._ended_s.append(at_s)
        self._holders.append(best)
        useless = bisect.bisect_left(self._ended_s, oldest_s) - 1
        if useless > len(self._ended_s) // 2:
            del self._ended_s[:useless], self._holders[:useless]
        return holder if highest > offset else None
