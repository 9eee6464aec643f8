"""SimDisk: one node's disk, with what a crash may do to it; SimLog and SimHardStates, the ports on top of it.

    written ---- flush returns ----> durable
       |                                '-- survives everything but a wipe
       '-- a killed process: survives (page cache); a power cut: each unflushed entry is kept, lost or torn on its own

Injected faults: slow and stalled flushes, a flush that fails for good, a full disk; at a power cut entries and hard
states that are kept, lost or torn in any combination, also a hard state before its rename; an empty disk in place of
the old one. Never injected: a damaged durable entry, a flush that returns without effect, a truncation or reset that is
half done (the port promises that they are durable on return). So a violation is always a bug of the product.

Entries are 16 bytes (term, payload); a message's payload holds its queue offset, as if the group served one queue.
`ENTRIES_PER_FILE` make a file, with a filler at its end, so that positions have gaps and spans end at files.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from struct import Struct

from chaos.sim.clock import SimClock
from chaos.sim.log_image import NEW_CHAIN
from chaos.sim.machine import Machine
from dledger.core.messages import NO_TERM, HardState, Span, TermRun
from store.errors import DiskFailedError, DiskFullError

ENTRY = Struct(">qq")
ENTRIES_PER_FILE = 16
FILE_SIZE_BYTES = ENTRIES_PER_FILE * ENTRY.size + 24
_QUEUE_OFFSET_BITS = 24
_PLACE = Path("sim")


def position_of(index: int) -> int:
    """Return the start position of an entry."""
    return index // ENTRIES_PER_FILE * FILE_SIZE_BYTES + index % ENTRIES_PER_FILE * ENTRY.size


def payload_of(number: int, queue_offset: int) -> int:
    """Return the payload of a client's message: its number, unique in a run, and the queue offset from its leader."""
    return number << _QUEUE_OFFSET_BITS | queue_offset


def queue_offset_of(payload: int) -> int | None:
    """Return the queue offset of a client's message; None for the first entry of a term, which is in no queue."""
    return payload & ((1 << _QUEUE_OFFSET_BITS) - 1) if payload > 0 else None


class SimDisk(Machine[int]):
    """The part of a node that outlives a process: the log's image and the hard state.

    Attributes:
        is_installing: an install was begun and not finished.
        tables_index: last entry that the state machine's files contain.
        on_failed: called when a flush fails.
    """

    durable_index = -1
    hard_state: HardState | None = None

    def __init__(self, clock: SimClock, rng: Random, flush_us: int) -> None:
        super().__init__(clock, rng, flush_us)
        self.is_installing = False
        self.tables_index = -1
        self.on_failed: Callable[[], None] = lambda: None
        self._saving: HardState | None = None

    @property
    def is_sound(self) -> bool:
        return self.hard_state is not None and not (self.hard_state.recovering or self.amnesiac or self.is_installing)

    def why_tables_lack(self) -> str | None:
        if self.tables_index >= self.first_index - 1:
            return None
        return f"the log begins at {self.first_index}, the tables end at {self.tables_index}"

    def save_hard_state(self, state: HardState, done: Callable[[], None]) -> None:
        """Save the hard state by write, rename and sync, then call `done`."""
        self._saving = state
        self.when_flushed(lambda: self._saved(state, done))

    def when_flushed(self, done: Callable[[], None]) -> None:
        """Begin a flush, and call `done` when it returns; call `on_failed` if the disk fails it."""
        self.clock.call_in(self.latency_us(), lambda: self._flush_returns(done))

    def _flush_returns(self, done: Callable[[], None]) -> None:
        if self.is_stalled:
            self.clock.call_in(20_000, lambda: self._flush_returns(done))
        elif self.has_failed:
            self.on_failed()
        else:
            done()

    def _saved(self, state: HardState, done: Callable[[], None]) -> None:
        if self._saving is state:
            self.hard_state, self._saving = state, None
            if not state.recovering:
                self.amnesiac = False
            done()

    def process_died(self) -> None:
        """End the process: the page cache stays; a save under way is done or not."""
        self._settle_save()

    def power_cut(self, *, forgets: bool) -> None:
        """Keep, lose or tear each unflushed entry; recovery keeps those before the first gap."""
        self._settle_save()
        kept = self.durable_index + 1
        while kept <= self.last_index and self.rng.random() < 0.7:
            kept += 1
        self.truncate_after(max(kept - 1, self.first_index - 1))
        self.amnesiac = self.amnesiac or forgets

    def opened(self) -> None:
        """Note that recovery has flushed the log it found, which is durable now; drop an unfinished install."""
        if self.is_installing:
            self.reset(0, NO_TERM, NEW_CHAIN)
            self.is_installing, self.amnesiac = False, True
        self.durable_index = self.last_index

    def truncate_after(self, last_index: int) -> None:
        """Drop the entries above `last_index`, durably."""
        super().truncate_after(last_index)
        self.durable_index = min(self.durable_index, self.last_index)

    def reset(self, first_index: int, prev_term: int, prev_chain: int) -> None:
        """Drop everything, durably."""
        super().reset(first_index, prev_term, prev_chain)
        self.durable_index = first_index - 1

    def _settle_save(self) -> None:
        if self._saving is not None and self.rng.random() < 0.5:
            self.hard_state = self._saving
        self._saving = None


class SimLog:
    """`dledger.ports.EntryStore` on a `SimDisk`: one process's view.

    `on_append(index)` is called after each written entry, `on_truncate(last_index)` before anything is dropped.
    """

    def __init__(self, disk: SimDisk, on_append: Callable[[int], None], on_truncate: Callable[[int], None]) -> None:
        self._disk = disk
        self._on_append = on_append
        self._on_truncate = on_truncate
        self._generation = 0
        self._is_flushing = False
        self._waiting: list[Callable[[int, int], None]] = []
        self.base_chain: Callable[[int], int] = lambda index: NEW_CHAIN
        self.is_closed = False
        disk.opened()

    @property
    def first_index(self) -> int:
        return self._disk.first_index

    @property
    def first_position(self) -> int:
        return position_of(self._disk.first_index)

    @property
    def prev_term(self) -> int:
        return self._disk.prev_term

    @property
    def last_index(self) -> int:
        return self._disk.last_index

    @property
    def durable_index(self) -> int:
        return self._disk.durable_index

    @property
    def damaged_index(self) -> int | None:
        return None

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def term_runs(self) -> Sequence[TermRun]:
        runs: list[TermRun] = []
        for index, (term, _) in enumerate(self._disk.entries, self._disk.first_index):
            if not runs or runs[-1].term != term:
                runs.append(TermRun(term, index))
        return runs

    def read(self, first_index: int, size_limit_bytes: int) -> Span | None:
        disk = self._disk
        if first_index > disk.last_index:
            return None
        start = first_index - disk.first_index
        assert start >= 0, (first_index, disk.first_index)
        entries, term = disk.entries, disk.entries[start][0]
        limit = min(
            len(entries),
            start + max(1, size_limit_bytes // ENTRY.size),
            start + ENTRIES_PER_FILE - first_index % ENTRIES_PER_FILE,
        )
        end = start + 1
        while end < limit and entries[end][0] == term:
            end += 1
        data = b"".join([ENTRY.pack(*entry) for entry in entries[start:end]])
        position = position_of(first_index)
        return Span(term, first_index, first_index + end - start - 1, position, position + len(data), data)

    def append_span(self, span: Span) -> None:
        assert span.start_position == position_of(span.first_index), span
        self._check_room()
        next_index = self._disk.last_index + 1
        assert span.first_index <= next_index, (span.first_index, next_index)
        for term, payload in ENTRY.iter_unpack(span.data[(next_index - span.first_index) * ENTRY.size :]):
            self.write(term, payload)

    def append_term_start(self, index: int, term: int) -> None:
        self._check_room()
        assert index == self._disk.last_index + 1, (index, self._disk.last_index)
        self.write(term, -term)

    def write(self, term: int, payload: int) -> None:
        """Append one entry."""
        self._disk.append(term, payload)
        self._on_append(self._disk.last_index)

    def truncate_after(self, last_index: int) -> None:
        self._on_truncate(last_index)
        self._generation += 1
        self._disk.truncate_after(last_index)

    def begin_install(self, first_index: int, start_position: int, prev_term: int, *, keep: bool = False) -> None:
        assert not keep, "no entry is damaged here"
        assert start_position == position_of(first_index), (first_index, start_position)
        self._generation += 1
        self._disk.reset(first_index, prev_term, self.base_chain(first_index - 1))
        self._disk.is_installing = True

    def finish_install(self) -> None:
        self._disk.is_installing = False

    def request_flush(self, done: Callable[[int, int], None]) -> None:
        self._waiting.append(done)
        if not self._is_flushing:
            self._flush()

    def flush_now_and_then(self) -> None:
        """Begin a flush as ASYNC_FLUSH does, without a notice of its end."""
        if not self._is_flushing:
            self._flush()

    def _flush(self) -> None:
        self._is_flushing = True
        index, generation, waiting = self._disk.last_index, self._generation, self._waiting
        self._waiting = []
        self._disk.when_flushed(lambda: self._flushed(index, generation, waiting))

    def _flushed(self, index: int, generation: int, waiting: list[Callable[[int, int], None]]) -> None:
        if self.is_closed:
            return
        self._is_flushing = False
        if generation == self._generation:
            self._disk.durable_index = max(self._disk.durable_index, index)
        for done in waiting:
            done(index, generation)
        if self._waiting:
            self._flush()

    def _check_room(self) -> None:
        if self._disk.has_failed:
            raise DiskFailedError(_PLACE, "simulated")
        if self._disk.is_full:
            raise DiskFullError(_PLACE, ENTRY.size)


class SimHardStates:
    """`dledger.ports.HardStateStore` on a `SimDisk`."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def load(self) -> HardState:
        state = self._disk.hard_state
        if state is None:
            return HardState(recovering=True, forgot_votes=True)
        return replace(state, recovering=state.recovering or self._disk.amnesiac)

    def save(self, state: HardState, done: Callable[[], None]) -> None:
        self._disk.save_hard_state(state, done)
