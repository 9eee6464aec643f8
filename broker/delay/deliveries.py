"""What was delivered and is not told by any progress yet: so that a message fires once, whoever leads.

    log   ...| mark |... deliveries ... progress+mark ... deliveries ...| end         the leader dies here
                                             '--- the next one looks through the log from the mark on ---'

A delayed message, a timer or a committed transaction is put into its topic as a new record that names its origin (the
physical offset, in the record's field for prepared transactions). Progress follows in records of the state topic, a
little later; beside it lies the mark: no delivery that the progress does not tell of lies before it. Who begins to lead
reads the origins behind the oldest mark before it delivers anything. The mark moves on at least every 16 MiB.

Ours: RocketMQ delivers such messages again.
"""

import asyncio
import enum
import logging
import struct
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

from broker.append.appender import Appender
from broker.counting.arrivals import Arrivals, MessageKind
from broker.state.tables import MARKS_KEY, Propose, ReplicatedState, StateChange
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK
from ledgermq.remoting.refusal import Refusal
from store.errors import StoreError
from store.log.queued_draft import QueuedDraft
from store.replicated_log import PLACED, AppendReceipt, ReplicatedLog
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

REFRESH_BYTES: Final = 16 << 20
_SCAN_BYTES_MAX: Final = 1 << 30  # behind a mark; farther away only where none of its kind was delivered
_SLICE_S: Final = 0.005
_SLICE_CHECK_RECORDS: Final = 64

_SYS_FLAG = struct.Struct(">i")
_ORIGIN = struct.Struct(">q")
_SYS_FLAG_AT: Final = 36
_ORIGIN_AT: Final = 76
_HOST_V6_EXTRA: Final = 12

WAIT_SECONDS: Final = 0.1
"""How often is looked whether it is there for good."""
_RETRY_SECONDS: Final = 1.0
_CONFIRMED: Final = AppendReceipt(generation=0, copies=0, durable_copies=0)

Delivered = Callable[[bool], None]
Offsets = Mapping[str, Mapping[int, int]]


class Kind(enum.IntEnum):
    """Who delivers; the value stands for a queue id beside the mark."""

    DELAY = 0
    TIMER = 1
    TRANSACTION = 2


class Deliveries:
    """Marks, and the origins found behind them.

    Attributes:
        origins: physical offsets of delayed messages and timers that are delivered already.
        committed: those of half messages.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        state: ReplicatedState,
        appender: Appender,
        propose: Propose,
        loop: asyncio.AbstractEventLoop,
        arrivals: Arrivals,
    ) -> None:
        self._log = log
        self._arrivals = arrivals
        self._appender = appender
        self._state = state
        self._propose = propose
        self._loop = loop
        self._open: dict[Kind, dict[Hashable, int]] = {kind: {} for kind in Kind}
        self._told: dict[Kind, int] = {}
        self._run = 0
        self._unsettled = 0
        self._settled = asyncio.Event()
        self.origins: set[int] = set()
        self.committed: set[int] = set()

    # ---- while this node leads

    def deliver(self, kind: Kind, token: Hashable, drafts: Sequence[QueuedDraft], done: Delivered) -> None:
        """Append drafts that name their origins; the mark stays before them until `end(kind, token)`.

        `done` hears once, later, whether they are in the log for good or were not placed; never when this node stops
        leading first, for then only a scan can tell. A time-out means neither: it is waited out.
        """
        tokens = self._open[kind]
        tokens.setdefault(token, self._log.max_offset)
        told = self._told.get(kind)
        if told is None or min(tokens.values()) - told > REFRESH_BYTES:
            self.record(kind, {})  # the first ones ever, or for long: their mark goes before them
        self._unsettled += 1
        run = self._run

        def settle(outcome: AppendReceipt | Refusal) -> None:
            if run != self._run:
                return
            if isinstance(outcome, Refusal) and outcome.cause in PLACED:
                end = drafts[-1].physical_offset + drafts[-1].size
                if self._log.confirm_offset < end:
                    self._loop.call_later(WAIT_SECONDS, settle, outcome)
                    return
                outcome = _CONFIRMED
            self._settle_one()
            done(not isinstance(outcome, Refusal))

        message_kind = MessageKind.TRANSACTION if kind is Kind.TRANSACTION else MessageKind.DELAY
        for draft in drafts:
            draft.tally = self._arrivals.tally_of((draft.topic.decode(), draft.queue_id, message_kind))
        for draft in drafts[:-1]:
            self._appender.add(draft)
        self._appender.add(drafts[-1], settle)

    def end(self, kind: Kind, token: Hashable) -> None:
        """The progress recorded next tells of them; or they were not placed."""
        self._open[kind].pop(token, None)

    def tokens(self, kind: Kind) -> list[Hashable]:
        """Deliveries that were begun and have not ended."""
        return list(self._open[kind])

    def record(
        self, kind: Kind, progress: Offsets, ended: Iterable[Hashable] = (), refused: Callable[[], None] | None = None
    ) -> None:
        """Put progress into the log, and the mark beside it.

        Args:
            kind: whose progress.
            progress: consumer offsets; tells of the deliveries `ended`.
            ended: tokens that end with this record; not when it is refused.
            refused: called then, while this node still leads.
        """
        tokens = self._open[kind]
        taken = {token: tokens.pop(token) for token in ended if token in tokens}
        mark = min(tokens.values(), default=self._log.max_offset)
        before = self._told.get(kind)
        self._told[kind] = mark
        self._unsettled += 1
        run = self._run

        def settle(refusal: Refusal | None) -> None:
            if run != self._run:
                return
            self._settle_one()
            if refusal is not None:
                self._told.pop(kind, None)
                if before is not None:
                    self._told[kind] = before
                tokens.update({token: min(at, tokens.get(token, at)) for token, at in taken.items()})
                if refused is not None:
                    refused()

        self._propose(StateChange(offsets={**progress, MARKS_KEY: {kind: mark}}), settle)

    def refresh(self) -> None:
        """Move marks on that the log's end has left far behind; to be called now and then on the leader."""
        for kind, told in list(self._told.items()):
            mark = min(self._open[kind].values(), default=self._log.max_offset)
            if mark - told > REFRESH_BYTES:
                self.record(kind, {})

    async def drain(self) -> None:
        """Wait until what was delivered and recorded is in the log, or refused."""
        while self._unsettled:
            self._settled.clear()
            await self._settled.wait()

    # ---- when it begins to

    def scan(self, then: Callable[[], None]) -> None:
        """Look behind the marks, in slices; `then` is called unless `stop` came first."""
        self.stop()
        marks = self._state.offsets.get(MARKS_KEY, {})
        end = self._log.confirm_offset
        self._told = {kind: marks[kind] for kind in Kind if kind in marks}
        self._slice(self._run, _spans(self._told.values(), self._log.min_offset, end), then)

    def stop(self) -> None:
        """No longer leading."""
        self._run += 1
        self._unsettled = 0
        self._settled.set()
        self._told.clear()
        self.origins.clear()
        self.committed.clear()
        for tokens in self._open.values():
            tokens.clear()

    def _settle_one(self) -> None:
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    def _slice(self, run: int, spans: deque[tuple[int, int]], then: Callable[[], None]) -> None:
        if run != self._run:
            return
        time_slice = TimeSlice(_SLICE_S)
        try:
            while spans:
                if not self._look_until(spans, time_slice):
                    self._loop.call_soon(self._slice, run, spans, then)
                    return
                spans.popleft()
        except CorruptRecordError:
            pass  # dispatching has met it before and says so; what lies behind is not dispatched either
        except StoreError as error:
            log.error("nothing that waits is delivered yet: %s", error)
            self._loop.call_later(_RETRY_SECONDS, self._slice, run, spans, then)
            return
        then()

    def _look_until(self, spans: deque[tuple[int, int]], time_slice: TimeSlice) -> bool:
        """Look through the first span, or its beginning; false when the slice was over first."""
        start, end = spans[0]
        for count, (position, record) in enumerate(self._log.walk(start, end)):
            spans[0] = position, end
            if count % _SLICE_CHECK_RECORDS == _SLICE_CHECK_RECORDS - 1 and time_slice.is_over():
                return False
            self._look(record)
        return True

    def _look(self, record: memoryview) -> None:
        (flags,) = _SYS_FLAG.unpack_from(record, _SYS_FLAG_AT)
        at = _ORIGIN_AT
        if flags & (BORN_HOST_V6 | STORE_HOST_V6):
            at += _HOST_V6_EXTRA * (bool(flags & BORN_HOST_V6) + bool(flags & STORE_HOST_V6))
        (origin,) = _ORIGIN.unpack_from(record, at)
        if origin:
            found = self.committed if flags & TRANSACTION_MASK == TRANSACTION_COMMIT else self.origins
            found.add(origin)


def _spans(marks: Iterable[int], first: int, end: int) -> deque[tuple[int, int]]:
    """What lies behind each mark, as far as is looked; in order and apart from each other."""
    spans: deque[tuple[int, int]] = deque()
    for start in sorted(max(mark, first) for mark in marks):
        until = min(start + _SCAN_BYTES_MAX, end)
        if spans and start <= spans[-1][1]:
            spans.append((spans.pop()[0], until))  # a span's end is no record's: none begins there
        elif start < until:
            spans.append((start, until))
    return spans
