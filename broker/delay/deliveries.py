"""Deliveries that no recorded progress covers yet, so that a message is delivered once across changes of the leader.

    log   ...| mark |... deliveries ... progress+mark ... deliveries ...| end         the leader dies here
                                             '---- the next leader scans the log from the mark on ----'

A delayed message, a timer, a committed transaction or a revived POP message is delivered as a new record in its topic
that names its origin (the physical offset, in the record's field for prepared transactions). The progress is recorded a
little later in the state topic, together with a mark: every delivery that the progress does not cover lies behind the
mark. A new leader reads the origins behind the oldest mark before it delivers anything. The mark is moved every
16 MiB.

RocketMQ delivers such messages twice.
"""

import asyncio
import enum
import logging
import struct
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from broker.append.appender import Appender
from broker.counting.arrivals import Arrivals, MessageKind
from broker.state.tables import MARKS_KEY, Propose, ReplicatedState, StateChange
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK
from ledgermq.message.pop_handle import RETRY_PREFIX
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.refusal import Refusal
from store.errors import StoreError
from store.log.drafts import QueuedDraft
from store.replicated_log import PLACED, AppendReceipt, ReplicatedLog
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

REFRESH_BYTES: Final = 16 << 20
_SCAN_BYTES_MAX: Final = (
    1 << 30
)  # scanned behind a mark; it is farther away only if nothing of its kind was delivered since
_SLICE_S: Final = 0.005
_SLICE_CHECK_RECORDS: Final = 64

_SYS_FLAG = struct.Struct(">i")
_ORIGIN = struct.Struct(">q")
_SYS_FLAG_AT: Final = 36
_ORIGIN_AT: Final = 76
_HOST_V6_EXTRA: Final = 12

WAIT_SECONDS: Final = 0.1
"""How often a delivery whose outcome is unknown is checked for being confirmed."""
_RETRY_SECONDS: Final = 1.0
ELSEWHERE_MAX: Final = 1024
"""Messages under way to other masters, beyond which no more are begun: each is in memory until it is stored."""

_CONFIRMED: Final = AppendReceipt(generation=0, copies=0, durable_copies=0)
_RETRY_PREFIX: Final = RETRY_PREFIX.encode()

Delivered = Callable[[bool], None]
Offsets = Mapping[str, Mapping[int, int]]


class DeliveryKind(enum.IntEnum):
    """The kinds of deliveries; the value is the queue id under which the kind's mark is stored."""

    DELAY = 0
    TIMER = 1
    TRANSACTION = 2
    REVIVE = 3


_MESSAGE_KINDS: Final = {
    DeliveryKind.DELAY: MessageKind.DELAY,
    DeliveryKind.TIMER: MessageKind.DELAY,
    DeliveryKind.TRANSACTION: MessageKind.TRANSACTION,
}
"""How deliveries are counted as arrivals; a revived message is not counted again."""


Noted = Generator[None, None, set[int]]
"""Steps that return the physical offsets of messages that waited here and that other masters have stored."""


class Elsewhere(Protocol):
    """Takes the deliveries of a slave that stands in for its master: such a slave writes no records."""

    def deliver(self, kind: DeliveryKind, drafts: Sequence[QueuedDraft], done: Delivered) -> None:
        """Store the drafts at masters of other names; call `done(True)` later, when no more can be done for them."""

    def stop(self) -> None:
        """Begin no further delivery: the master is back."""


class Deliveries:
    """The marks, and the origins found behind them.

    Attributes:
        run: changes with each `scan` and each `stop`.
        elsewhere: where deliveries go; None: into the log of this node.
        noted_elsewhere: what this slave has delivered elsewhere, of a kind of deliveries.
        origins: physical offsets of delayed messages and timers that are delivered already.
        committed: physical offsets of half messages that are committed already.
        revived: store time (ms) of the last copy in a retry topic, by that topic and the physical offset of the origin.
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
        self._open: dict[DeliveryKind, dict[Hashable, int]] = {kind: {} for kind in DeliveryKind}
        self._marks: dict[DeliveryKind, int] = {}
        self.run = 0
        self._unsettled = 0
        self._settled = asyncio.Event()
        self._under_way_elsewhere = 0
        self.elsewhere: Elsewhere | None = None
        self.noted_elsewhere: Callable[[DeliveryKind], Noted] = _nothing_noted
        self.origins: set[int] = set()
        self.committed: set[int] = set()
        self.revived: dict[tuple[str, int], int] = {}

    # ---- while this node leads

    @property
    def is_crowded(self) -> bool:
        """Whether so much is under way elsewhere that further deliveries should wait."""
        return self._under_way_elsewhere >= ELSEWHERE_MAX

    def deliver(self, kind: DeliveryKind, token: Hashable, drafts: Sequence[QueuedDraft], done: Delivered) -> None:
        """Append drafts that name their origins; the mark stays before them until `end(kind, token)`.

        `done` is called once, later: with True when they are confirmed, with False when they were not placed. After a
        time-out the outcome is awaited. `done` is not called when this node stops leading first: then only the scan of
        the next leader can tell.
        """
        if self.elsewhere is not None:
            self._deliver_elsewhere(self.elsewhere, kind, drafts, done)
            return
        tokens = self._open[kind]
        tokens.setdefault(token, self._log.max_offset)
        recorded = self._marks.get(kind)
        if recorded is None or min(tokens.values()) - recorded > REFRESH_BYTES:
            self.record(kind, {})  # there is no mark yet, or it is far behind: one is recorded before these drafts
        self._unsettled += 1
        run = self.run

        def settle(outcome: AppendReceipt | Refusal) -> None:
            if run != self.run:
                return
            if isinstance(outcome, Refusal) and outcome.cause in PLACED:
                end = drafts[-1].physical_offset + drafts[-1].size
                if self._log.confirm_offset < end:
                    self._loop.call_later(WAIT_SECONDS, settle, outcome)
                    return
                outcome = _CONFIRMED
            self._settle_one()
            done(not isinstance(outcome, Refusal))

        message_kind = _MESSAGE_KINDS.get(kind)
        if message_kind is not None:
            for draft in drafts:
                draft.tally = self._arrivals.tally_of((draft.topic.decode(), draft.queue_id, message_kind))
        for draft in drafts[:-1]:
            self._appender.add(draft)
        self._appender.add(drafts[-1], settle)

    def end(self, kind: DeliveryKind, token: Hashable) -> None:
        """End deliveries: the progress recorded next covers them, or they were not placed."""
        self._open[kind].pop(token, None)

    def tokens(self, kind: DeliveryKind) -> list[Hashable]:
        """Return the tokens of deliveries that have not ended."""
        return list(self._open[kind])

    def record(
        self,
        kind: DeliveryKind,
        progress: Offsets,
        ended: Iterable[Hashable] = (),
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Append progress and the mark to the log.

        Args:
            kind: the kind of the deliveries.
            progress: consumer offsets; they cover the deliveries `ended`.
            ended: tokens of deliveries that end with this record, unless it is refused.
            refused: called when the record is refused while this node leads.
        """
        if self.elsewhere is not None:
            return  # what is delivered elsewhere is noted there
        tokens = self._open[kind]
        taken = {token: tokens.pop(token) for token in ended if token in tokens}
        mark = min(tokens.values(), default=self._log.max_offset)
        before = self._marks.get(kind)
        self._marks[kind] = mark
        self._unsettled += 1
        run = self.run

        def settle(refusal: Refusal | None) -> None:
            if run != self.run:
                return
            self._settle_one()
            if refusal is not None:
                self._marks.pop(kind, None)
                if before is not None:
                    self._marks[kind] = before
                tokens.update({token: min(at, tokens.get(token, at)) for token, at in taken.items()})
                if refused is not None:
                    refused()

        self._propose(StateChange(offsets={**progress, MARKS_KEY: {kind: mark}}), settle)

    def refresh(self) -> None:
        """Move marks that are more than `REFRESH_BYTES` behind; to be called periodically on the leader."""
        for kind, recorded in list(self._marks.items()):
            mark = min(self._open[kind].values(), default=self._log.max_offset)
            if mark - recorded > REFRESH_BYTES:
                self.record(kind, {})

    async def drain(self) -> None:
        """Wait until all appended deliveries and progress are confirmed or refused."""
        while self._unsettled:
            self._settled.clear()
            await self._settled.wait()

    # ---- when it begins or ceases to lead

    def scan(self, then: Callable[[], None]) -> None:
        """Scan the log behind the marks, in slices; call `then` at the end, unless `stop` was called first."""
        self.stop()
        marks = self._state.offsets.get(MARKS_KEY, {})
        end = self._log.confirm_offset
        self._marks = {kind: marks[kind] for kind in DeliveryKind if kind in marks}
        self._slice(self.run, _spans(self._marks.values(), self._log.min_offset, end), then)

    def stop(self) -> None:
        """Forget everything: this node does not lead any more."""
        self.run += 1
        self._unsettled = self._under_way_elsewhere = 0
        self._settled.set()
        self._marks.clear()
        self.origins.clear()
        self.committed.clear()
        self.revived.clear()
        for tokens in self._open.values():
            tokens.clear()

    def _deliver_elsewhere(
        self, elsewhere: Elsewhere, kind: DeliveryKind, drafts: Sequence[QueuedDraft], done: Delivered
    ) -> None:
        run = self.run

        def settle(is_delivered: bool) -> None:
            if run == self.run:
                self._under_way_elsewhere -= len(drafts)
                done(is_delivered)

        self._under_way_elsewhere += len(drafts)
        elsewhere.deliver(kind, drafts, settle)

    def _settle_one(self) -> None:
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    def _slice(self, run: int, spans: deque[tuple[int, int]], then: Callable[[], None]) -> None:
        if run != self.run:
            return
        time_slice = TimeSlice(_SLICE_S)
        try:
            while spans:
                if not self._scan_span(spans, time_slice):
                    self._loop.call_soon(self._slice, run, spans, then)
                    return
                spans.popleft()
        except CorruptRecordError:
            pass  # dispatch stopped at this record, too, and has logged it
        except StoreError as error:
            log.error("waiting messages cannot be delivered yet: %s", error)
            self._loop.call_later(_RETRY_SECONDS, self._slice, run, spans, then)
            return
        then()

    def _scan_span(self, spans: deque[tuple[int, int]], time_slice: TimeSlice) -> bool:
        """Scan the first span; returns False when the slice was over first, the span then begins where it stopped."""
        start, end = spans[0]
        for count, (position, record) in enumerate(self._log.walk(start, end)):
            spans[0] = position, end
            if count % _SLICE_CHECK_RECORDS == _SLICE_CHECK_RECORDS - 1 and time_slice.is_over():
                return False
            self._scan_record(record)
        return True

    def _scan_record(self, record: memoryview) -> None:
        origin, is_commit = origin_of(record)
        if origin:
            (self.committed if is_commit else self.origins).add(origin)
            if DeliveryKind.REVIVE in self._marks:
                *_, store_ms, topic, _ = dispatch_fields(record, 0)
                if topic.startswith(_RETRY_PREFIX):
                    self.revived[topic.decode(errors="replace"), origin] = store_ms


def origin_of(record: memoryview) -> tuple[int, bool]:
    """Return the physical offset of the message that a record delivers, else 0, and whether that is a half message."""
    (flags,) = _SYS_FLAG.unpack_from(record, _SYS_FLAG_AT)
    at = _ORIGIN_AT
    if flags & (BORN_HOST_V6 | STORE_HOST_V6):
        at += _HOST_V6_EXTRA * (bool(flags & BORN_HOST_V6) + bool(flags & STORE_HOST_V6))
    (origin,) = _ORIGIN.unpack_from(record, at)
    return origin, flags & TRANSACTION_MASK == TRANSACTION_COMMIT


def _nothing_noted(_kind: DeliveryKind) -> Noted:
    yield from ()
    return set()


def _spans(marks: Iterable[int], first: int, end: int) -> deque[tuple[int, int]]:
    """Return the spans `[start, end)` to scan behind the marks, sorted and disjoint."""
    spans: deque[tuple[int, int]] = deque()
    for start in sorted(max(mark, first) for mark in marks):
        until = min(start + _SCAN_BYTES_MAX, end)
        if spans and start <= spans[-1][1]:
            spans.append((spans.pop()[0], until))  # extended: no record need start where a span ends
        elif start < until:
            spans.append((start, until))
    return spans
