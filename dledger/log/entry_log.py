"""The Raft log on mapped files: `data/` has the entries, `index/` the position of each.

    data/   | header | record | header | record | ... | filler |      the commit log itself: nothing is written twice
    index/  | unit | unit | unit ...                                  derived; rebuilt from the data when in doubt
    start   first index kept, its position, the term before it        written before files are dropped

A leader appends drafts, a follower copies its leader's bytes to the same positions; replication and reads use views of
the mapping. Appended entries are visible at once and durable when the flusher reports it. Owned by the loop's thread.

Source: openmessaging/dledger 0.3.1.2 `store/file/DLedgerMmapFileStore.java`.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dledger.core.messages import NO_TERM, Span, TermRun
from dledger.log.entry import INDEX_UNIT_SIZE, check_span, read_header
from dledger.log.integrity import LogIntegrity
from dledger.log.opening import OpenedLog
from dledger.log.start_file import LogStart, save_start
from dledger.log.writer import LogWriter, misfit
from ledgermq.message.draft import RecordDraft
from store.errors import AllocationPendingError, DiskFullError, DiskReadError, NoDescriptorError
from store.files.mapped_file import MappedFile

_log = logging.getLogger(__name__)


class FlushRequests(Protocol):
    """The part of a flusher that the log uses: `store.log.flusher.Flusher`."""

    def request(self, offset: int, done: Callable[[int], None]) -> None:
        """Call `done(flushed_offset)` later, once everything below `offset` is durable."""


@dataclass(frozen=True, slots=True)
class DroppedFiles:
    """Files that no longer belong to the log and are still to be deleted, oldest first."""

    data: list[MappedFile]
    index: list[MappedFile]


class EntryLog:
    """`dledger.ports.EntryStore` on disk.

    Invariants: `first_index - 1 <= durable_index <= last_index`. Every entry `first_index .. last_index` has an index
    unit with the same position, size and term. The term runs cover exactly these entries.

    Args:
        directory: the node's Raft directory, which has the `start` file.
        opened: result of `open_log`.
        store_host: this node's address for the store host field of records: 8 or 20 bytes.
        term_start: makes the record that opens a term.

    Attributes:
        data: the data files, for the flusher.
        units: the index.
        integrity: knows the damaged entries, and verifies entries that recovery did not read.
    """

    def __init__(
        self, directory: Path, opened: OpenedLog, *, store_host: bytes, term_start: Callable[[int], RecordDraft]
    ) -> None:
        self.data = opened.data
        self.units = opened.units
        self.integrity = LogIntegrity(
            opened.data,
            opened.units,
            opened.found.damages,
            records=opened.records,
            verified_from=opened.verified_from,
            term_at=self.term_at,
        )
        self._directory = directory
        self._start = opened.start
        self._term_start = term_start
        self._term_runs = list(opened.term_runs)
        self._last_index = self._flushed_index = opened.found.last_index
        self._generation = 0
        # (end position, last index) of entries that are not durable yet, in rising order
        self._marks: deque[tuple[int, int]] = deque()
        self._flusher: FlushRequests | None = None
        self._checked: tuple[Span, bytearray] | None = None
        self._writer = LogWriter(opened.data, opened.units, store_host)

    def attach(self, flusher: FlushRequests) -> None:
        """Use `flusher` for flushes from now on."""
        self._flusher = flusher

    # ---- where things are

    @property
    def first_index(self) -> int:
        return self._start.first_index

    @property
    def first_position(self) -> int:
        return self._start.start_position

    @property
    def prev_term(self) -> int:
        return self._start.prev_term

    @property
    def last_index(self) -> int:
        return self._last_index

    @property
    def durable_index(self) -> int:
        """Newest entry that a flush covers. A damaged entry, and all entries after it, do not count as held."""
        damaged = self.damaged_index
        return self._flushed_index if damaged is None else min(self._flushed_index, damaged - 1)

    @property
    def damaged_index(self) -> int | None:
        return self.integrity.first_blocking

    @property
    def flushed_index(self) -> int:
        """Newest entry that a flush covers, damaged or not."""
        return self._flushed_index

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def term_runs(self) -> Sequence[TermRun]:
        return tuple(self._term_runs)

    @property
    def max_position(self) -> int:
        """Absolute end of the last entry, or of the filler after it."""
        return self.data.max_offset

    def term_at(self, index: int) -> int:
        """Return the term of an entry, or of the entry before the first; `NO_TERM` for any other index."""
        if self.first_index <= index <= self._last_index:
            return self._term_runs[self._run_of(index)].term
        return self.prev_term if index == self.first_index - 1 else NO_TERM

    def end_position(self, index: int) -> int:
        """Absolute end of the entry `index`; the start of the log for an index before the first."""
        if index < self.first_index:
            return self.first_position
        position, size, _ = self.units[index]
        return position + size

    def read(self, first_index: int, size_limit_bytes: int) -> Span | None:
        """Return entries from `first_index` on, of one term and file; at least one.

        None past the end, at a damaged one, and while no descriptor is left to map a file.
        """
        if first_index > self._last_index:
            return None
        run = self._run_of(first_index)
        last = self._last_index if run + 1 == len(self._term_runs) else self._term_runs[run + 1].first_index - 1
        try:
            start, _, term = self.units[first_index]
            file = self.data.file_at(start)
            assert file is not None, f"entry {first_index} is kept, its file at {start} is not"
            last = self.units.last_ending_by(first_index, last, min(start + size_limit_bytes, file.end_offset))
            last = self.integrity.sound_until(first_index, last)
            if last < first_index:
                return None
            start, _, term = self.units[first_index]  # which may have been mended
            end = self.end_position(last)
            return Span(term, first_index, last, start, end, self.data.slice(start, end - start))
        except NoDescriptorError:
            return None
        except DiskReadError:
            self.integrity.examine(first_index, last)
            return None

    # ---- the leader writes

    def append_drafts(self, drafts: Sequence[RecordDraft], term: int, now_ms: int) -> None:
        """Encode the drafts behind the last entry, all or none, and set their times and physical offsets.

        Raises:
            RecordTooLargeError: one of them fits into no file.
            DiskFullError, DiskFailedError, AllocationPendingError: no room; nothing was changed.
        """
        self._writer.append_drafts(drafts, self._last_index + 1, term, now_ms)
        self._grow(term, self._last_index + len(drafts))

    def append_term_start(self, index: int, term: int) -> None:
        """Write the entry that opens `term` at `index`, as the leader of that term.

        Raises:
            DiskFullError, DiskFailedError: no room, or not in time; nothing was changed.
        """
        assert index == self._last_index + 1, f"term start at {index}, the log ends at {self._last_index}"
        draft = self._term_start(term)
        try:
            self.append_drafts([draft], term, draft.born_timestamp)
        except AllocationPendingError as error:
            raise DiskFullError(error.file, self.data.file_size) from error

    def _grow(self, term: int, last_index: int) -> None:
        """Make the entries up to `last_index` visible; the new ones, of `term`, are in the files."""
        runs = self._term_runs
        if not runs or runs[-1].term != term:
            runs.append(TermRun(term, self._last_index + 1))
        self._last_index = last_index
        self._marks.append((self.data.max_offset, last_index))

    # ---- a follower copies

    def check(self, span: Span) -> None:
        """Check a peer's span before the core sees it; the index units computed are kept for `append_span`.

        Raises:
            EntryFormatError: its headers are not a chain of entries of its term.
        """
        units = check_span(span.data, span.first_index, span.last_index, span.term, span.start_position)
        self._checked = (span, units)

    def append_span(self, span: Span) -> None:
        """Copy a leader's entries to the same position; entries already held are skipped.

        Raises:
            EntryFormatError: the span does not join the log, because the leader's files have another size.
            DiskFullError, DiskFailedError: no room, or not in time; nothing was changed.
        """
        if span.last_index <= self._last_index:
            return
        if self._checked is None or self._checked[0] is not span:
            self.check(span)
        assert self._checked is not None
        units = memoryview(self._checked[1])
        self._checked = None
        skipped = self._last_index + 1 - span.first_index
        start = self.max_position if skipped else span.start_position
        if skipped < 0 or not span.start_position <= start < span.end_position:
            raise misfit(span, self.data)
        self._writer.append_span(span, start, self._last_index + 1, units[skipped * INDEX_UNIT_SIZE :])
        self._grow(span.term, span.last_index)

    # ---- durable

    def request_flush(self, done: Callable[[int, int], None]) -> None:
        """Make durable what is written, then call `done(durable_index, generation at this call)` later."""
        assert self._flusher is not None, "attach() comes first"
        generation = self._generation

        def flushed(offset: int) -> None:
            self.note_flushed(offset)
            done(self.durable_index, generation)

        self._flusher.request(self.data.max_offset, flushed)

    def note_flushed(self, offset: int) -> None:
        """Note that everything below `offset` is durable."""
        marks = self._marks
        while marks and marks[0][0] <= offset:
            self._flushed_index = marks.popleft()[1]

    # ---- dropping

    def truncate_after(self, last_index: int) -> None:
        """Drop the entries above `last_index`. Durable on return, also the zeros in their place.

        Otherwise a power cut could bring an old entry back behind a new one of the same size: entries are not chained
        by CRC.

        Raises:
            DiskFailedError: the sync failed; the disk cannot be trusted any more.
        """
        if last_index >= self._last_index:
            return
        self._generation += 1
        end = self.end_position(last_index)
        self.data.cut(end)
        self.units.truncate_after(last_index)
        self.integrity.forget_after(last_index)
        while self._term_runs and self._term_runs[-1].first_index > last_index:
            self._term_runs.pop()
        self._last_index = last_index
        self._flushed_index = min(self._flushed_index, last_index)
        self._marks = deque(mark for mark in self._marks if mark[1] < last_index)
        if self._flushed_index < last_index:
            self._marks.append((end, last_index))

    def begin_install(self, first_index: int, start_position: int, prev_term: int, *, keep: bool = False) -> None:
        """Drop everything; the next entry is `first_index` at `start_position`. Durable on return.

        With `keep` only the entries below `first_index` are dropped. Until `finish_install` a start of this directory
        drops what it finds and reports it in `OpenedLog`. May be called again when it, or a step between the two, has
        failed.

        Raises:
            DiskFullError, AllocationPendingError: no room yet.
            DiskFailedError: the disk failed.
        """
        self._generation += 1
        start = LogStart(first_index, start_position, prev_term, installing=True)
        save_start(self._directory, start)
        self._start = start
        if keep:
            self._term_runs = self._runs_from(first_index)
            self._marks = deque(mark for mark in self._marks if mark[1] >= first_index)
            self._flushed_index = max(self._flushed_index, first_index - 1)
            self.integrity.forget_before(first_index)
            self.data.delete_before(start_position)
            self.units.delete_before(first_index)
            return
        self.data.reset_to(start_position)
        self.units.reset(first_index)
        self.integrity.forget_after(-1)
        self._term_runs.clear()
        self._marks.clear()
        self._last_index = self._flushed_index = first_index - 1

    def finish_install(self) -> None:
        """Use the log again: the state machine has been restored from the install. Durable on return.

        Raises:
            DiskFullError: no room yet.
            DiskFailedError: the disk failed.
        """
        start = replace(self._start, installing=False)
        save_start(self._directory, start)
        self._start = start

    def take_before(self, position: int) -> DroppedFiles | None:
        """Remove the data files that end at or before `position`, but never the last one; None if there is none.

        The log's new start is durable on return, and the caller deletes the files (`MappedFileQueue.remove`). The
        caller has made sure that all entries in them are committed and no longer needed. On a full disk the new start
        is not written, since deleting is what makes room: the next start of the directory then takes it from the oldest
        file left.

        Raises:
            DiskFailedError: the new start cannot be written; nothing was dropped.
        """
        doomed = [file for file in self.data.files[:-1] if file.end_offset <= position]
        if not doomed or not self.data.files[len(doomed)].write_position:
            return None
        kept = self.data.files[len(doomed)]
        first = read_header(kept.view, 0).entry_index
        prev_term = self.term_at(first - 1)
        start = LogStart(first, kept.start_offset, prev_term)
        try:
            save_start(self._directory, start)
        except DiskFullError as error:
            _log.warning("old files are deleted although the log's new start could not be saved: %s", error)
        self._start = start
        self._term_runs = self._runs_from(first)
        self.integrity.forget_before(first)
        return DroppedFiles(self.data.take_before(kept.start_offset), self.units.take_before(first))

    def release_idle(self) -> None:
        """Call it every few seconds: see `MappedFileQueue.release_idle`."""
        self.data.release_idle()
        self.units.release_idle()

    def close(self) -> None:
        """Close the files without flushing them; the flusher does that."""
        self.data.close()
        self.units.close()

    def _runs_from(self, first_index: int) -> list[TermRun]:
        """Return the runs of the entries from `first_index` on, of which there is at least one."""
        run = self._run_of(first_index)
        return [TermRun(self._term_runs[run].term, first_index), *self._term_runs[run + 1 :]]

    def _run_of(self, index: int) -> int:
        """Return the index in `term_runs` of the run that holds the entry `index`."""
        runs = self._term_runs
        if runs[-1].first_index <= index:
            return len(runs) - 1
        return bisect_right(runs, index, key=lambda run: run.first_index) - 1
