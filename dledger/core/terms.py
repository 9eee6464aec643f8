"""The terms of a log's entries as runs: all that the Raft rules need to know of a log, without its bytes.

    index    0 1 2 3 4 5 6 7 8          first_index 0, last_index 8
    term     1 1 1 1 2 2 2 5 5          runs (1, 0) (2, 4) (5, 7)

Terms never fall along a log, so a run is found by bisection; nearly always it is the last one.
"""

from bisect import bisect_right
from collections.abc import Sequence

from dledger.core.messages import NO_TERM, TERM_RUNS_MAX, TermRun


class TermRuns:
    """Terms of the entries `first_index .. last_index`, and of the entry before them.

    Attributes:
        first_index, last_index: both included; `last_index` is `first_index - 1` when the log is empty.
        prev_term: term of `first_index - 1`; `NO_TERM` when there is none or it is not known any more.

    Invariants: the runs are in order, with strictly rising terms and first indexes. The first run of a log with entries
    starts at `first_index`, the last one contains `last_index`. An empty log has no run.
    """

    __slots__ = ("_firsts", "_terms", "first_index", "last_index", "prev_term")

    def __init__(self, first_index: int, last_index: int, prev_term: int, runs: Sequence[TermRun]) -> None:
        self.first_index = first_index
        self.last_index = last_index
        self.prev_term = prev_term
        self._terms = [run.term for run in runs]
        self._firsts = [run.first_index for run in runs]

    @property
    def last_term(self) -> int:
        """Term of the last entry; of the entry before the first one when the log is empty."""
        return self._terms[-1] if self._terms else self.prev_term

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None outside `[first_index - 1, last_index]`."""
        firsts = self._firsts
        if firsts and index >= firsts[-1]:
            return self._terms[-1] if index <= self.last_index else None
        if index < self.first_index:
            return self.prev_term if index == self.first_index - 1 else None
        return self._terms[bisect_right(firsts, index) - 1] if firsts else None

    def holds(self, index: int, term: int) -> bool:
        """Return whether the log has the entry `index` with that `term`.

        If so, it equals every other log that has this entry, up to the entry.
        """
        return self.first_index <= index and self.term_at(index) == term

    def extend(self, term: int, last_index: int) -> None:
        """Append entries up to `last_index`, all of `term`, which is not below the last entry's term."""
        assert term >= self.last_term, (term, self.last_term)
        assert last_index > self.last_index, (last_index, self.last_index)
        if not self._terms or self._terms[-1] != term:
            self._terms.append(term)
            self._firsts.append(self.last_index + 1)
        self.last_index = last_index

    def truncate_after(self, last_index: int) -> None:
        """Remove the entries above `last_index`, which is at least `first_index - 1`."""
        assert self.first_index - 1 <= last_index, (self.first_index, last_index)
        self.last_index = min(self.last_index, last_index)
        while self._firsts and self._firsts[-1] > last_index:
            self._firsts.pop()
            self._terms.pop()

    def reset(self, first_index: int, prev_term: int) -> None:
        """Remove all entries; the next one is `first_index`."""
        self.first_index, self.last_index, self.prev_term = first_index, first_index - 1, prev_term
        self._terms.clear()
        self._firsts.clear()

    def trim(self, first_index: int, prev_term: int) -> None:
        """Remove the entries before `first_index`, which were deleted."""
        assert self.first_index <= first_index <= self.last_index + 1, (first_index, self.last_index)
        while len(self._firsts) > 1 and self._firsts[1] <= first_index:
            del self._firsts[0], self._terms[0]
        if first_index > self.last_index:
            self._firsts.clear()
            self._terms.clear()
        elif self._firsts:
            self._firsts[0] = first_index
        self.first_index, self.prev_term = first_index, prev_term

    def first_conflict(self, first_index: int, last_index: int, term: int) -> int | None:
        """Return the first index held in `[first_index, last_index]` whose term is not `term`; None if all agree."""
        last_held = min(last_index, self.last_index)
        if first_index > last_held:
            return None
        if self.term_at(first_index) != term:
            return first_index
        run = bisect_right(self._firsts, first_index)
        if run < len(self._firsts) and self._firsts[run] <= last_held:
            return self._firsts[run]
        return None

    def runs_from(self, index: int) -> tuple[TermRun, ...]:
        """Return the newest runs, at most `TERM_RUNS_MAX`, back to the one with `index`; the base counts as a run."""
        runs = [TermRun(term, first) for term, first in zip(self._terms, self._firsts)]
        if self.prev_term != NO_TERM:
            runs.insert(0, TermRun(self.prev_term, self.first_index - 1))
        start = max((i for i, run in enumerate(runs) if run.first_index <= index), default=0)
        return tuple(runs[max(start, len(runs) - TERM_RUNS_MAX) :])

    def fork(self, runs: Sequence[TermRun], last_index: int) -> int:
        """Return where another log, known by its newest runs and its last index, may part from this one.

        Returns:
            The greatest index at which both logs have the same term, so that they are equal up to it (log matching); or
            the index before the known part, if the two logs differ everywhere in their known parts.
        """
        index = min(self.last_index, last_index)
        remaining = len(runs)
        while index >= self.first_index - 1:
            while remaining and runs[remaining - 1].first_index > index:
                remaining -= 1
            if not remaining:
                return index
            theirs, mine = runs[remaining - 1].term, self.term_at(index)
            assert mine is not None, (index, self.first_index, self.last_index)
            if theirs == mine:
                return index
            index = (runs[remaining - 1].first_index if theirs > mine else self._run_start(index)) - 1
        return index

    def _run_start(self, index: int) -> int:
        position = bisect_right(self._firsts, index)
        return self._firsts[position - 1] if position else self.first_index - 1
