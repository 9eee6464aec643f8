"""Transactions on the leader: the table of open half messages, decisions about them, and checks with their producers.

    half, op topics --`TransactionTopics`--> OpenHalves --every round, in order--> too many checks, too old: given up
                                                 |                            '--> old enough: put back, producer asked
    END_TRANSACTION --decide---------------------'  commit: message and op record; rollback: op record

Progress is stored as consumer offsets of CID_RMQ_SYS_TRANS, as in RocketMQ. Commits behind it are found by
`delay.deliveries`, so that a commit is stored once.

Source: apache/rocketmq `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (check),
`DefaultTransactionalMessageCheckListener.java` (5.3.3). Here a message within its immunity is not stored again.
"""

import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from broker.context import BrokerContext
from broker.delay.deliveries import WAIT_SECONDS, Deliveries, DeliveryKind, origin_of
from broker.state import names
from broker.state.tables import offset_key
from broker.transactions.copies import TransactionCopies
from broker.transactions.halves import Half, half_of
from broker.transactions.ops import OpWriter
from broker.transactions.topics import TransactionTopics
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import Record
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError
from store.log.drafts import QueuedDraft
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import PLACED, AppendReceipt
from store.time_slice import TimeSlice
from store.timer.metrics import TopicCounts

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
HALF_KEY: Final = offset_key(names.HALF_TOPIC, GROUP)
OP_KEY: Final = offset_key(names.OP_HALF_TOPIC, GROUP)

_Value = TypeVar("_Value")

_SLICE_S: Final = 0.005
_RETRY_SECONDS: Final = 1.0
_LOOKED: Final = 16
"""Records in which a commit is looked for in one step."""

_REMEMBERED_MAX: Final = 1 << 16
"""Commits that are remembered for producers that ask again, since the answer was lost; and messages given up."""


class TransactionService:
    """Keeps the table of open half messages, carries out decisions, and checks with producers.

    Args:
        counts: open half messages by topic, for the file `config/transactionMetrics`.

    Attributes:
        checks: questions sent to producers.
        given_up: messages moved to TRANS_CHECK_MAX_TIME_TOPIC.
    """

    def __init__(
        self, context: BrokerContext, deliveries: Deliveries, copies: TransactionCopies, counts: TopicCounts
    ) -> None:
        self._config = context.config
        self._state = context.state
        self._deliveries = deliveries
        self._copies = copies
        self._role = context.role
        self._store = context.store
        self._appender = context.appender
        self._loop = context.loop
        self._clock_ms = context.clock_ms
        self._ops = OpWriter(context, self._on_ops_written)
        self._topics = TransactionTopics(
            context.config,
            context.store,
            on_added=lambda half: self._count(half, 1),
            on_replaced=self._free,
            on_ended=lambda half: self._count(half, -1),
            on_late=self._end_if_decided,
        )
        self._busy: dict[int, list[Callable[[], None]]] = {}  # by half offset being decided, put back or given up
        self._waiting: deque[Callable[[], None]] = deque()  # decisions that arrived while the table was loading
        self._handed: dict[int, int] = {}  # given to `deliveries` while this slave stood in: half to physical offset
        self._committed: OrderedDict[int, None] = OrderedDict()  # first records of messages committed lately
        self._given_up: OrderedDict[int, Half] = OrderedDict()  # lately, by first records; they may still be committed
        self._recorded: tuple[int, int] | None = None
        self._run = 0
        self._is_ready = False
        self._is_leading = False
        self.counts = counts
        self.checks = 0
        self.given_up = 0

    # ---- the table

    def expect(self) -> None:
        """Let decisions wait: this node leads, and `resume` will load the table."""
        self._is_leading, self._is_ready = True, False

    def resume(self) -> None:
        """Load the table, then serve decisions: this node leads, and the commits of earlier leaders are known."""
        self._run += 1
        progress = self._state.offsets
        half_start, op_start = progress.get(HALF_KEY, {}).get(0, 0), progress.get(OP_KEY, {}).get(0, 0)
        self._topics.restart(half_start, op_start)
        self._free_all()
        self._committed.clear()
        self._given_up.clear()
        self._handed.clear()
        self._recorded = (half_start, op_start)
        self.expect()
        self._load(self._run)

    def stop(self) -> None:
        """Stop, and record decisions if this node may still write."""
        if self._is_leading and self._role.writable:
            self._ops.flush()
            self._record()
        else:
            self._ops.forget()
        self._run += 1
        self._is_leading = self._is_ready = False
        waiting, self._waiting = self._waiting, deque()
        for decide in waiting:
            decide()
        if not self._role.writable:
            self._free_all()

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Read the half and op topics if they are among these queues, which have new messages."""
        if self._is_ready and any(queue.topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC) for queue in queues):
            self._follow_on()

    def _follow_on(self) -> None:
        try:
            self._topics.follow(None)
        except Refusal as refusal:  # tried again at the next message or round
            log.error("the transaction topics cannot be read now: %s", refusal.remark)

    def when_ready(self, decide: Callable[[], None]) -> None:
        """Call `decide` when the table is loaded, or when this node stops leading; at once if neither is awaited."""
        if self._is_ready or not self._is_leading:
            decide()
        else:
            self._waiting.append(decide)

    @property
    def open_count(self) -> int:
        """Number of undecided half messages."""
        return len(self._topics.table)

    def _load(self, run: int) -> None:
        if run != self._run:
            return
        try:
            is_loaded = self._topics.follow(TimeSlice(_SLICE_S))
        except Refusal as refusal:
            log.error("transactions cannot be loaded yet: %s", refusal.remark)
            self._loop.call_later(_RETRY_SECONDS, self._load, run)
            return
        if not is_loaded:
            self._loop.call_soon(self._load, run)
            return
        for half in self._topics.table.halves():
            self._end_if_decided(half)
        self._is_ready = True
        self._count_anew()
        self._check_later(self._config.transaction_check_interval_ms / 1000)
        while self._waiting:
            self._waiting.popleft()()

    def _end_if_decided(self, half: Half) -> None:
        """End a half message that is committed, or of which the log has a copy among those given up."""
        is_committed = half.first in self._committed or half.physical_offset in self._deliveries.committed
        if is_committed or half.physical_offset in self._deliveries.origins:
            if is_committed:
                _remember(self._committed, half.first, None)
            self._topics.table.end(half)
            self._count(half, -1)
            if self._role.writable:
                self._ops.decided(half.queue_offset)

    def first_left(self) -> Generator[None, None, int]:
        """Return the queue offset of the first half message that is open and that no other master has, found in steps.

        It holds for the last time that this slave stood in; 0 when it never did.
        """
        noted = yield from self._deliveries.noted_elsewhere(DeliveryKind.TRANSACTION)
        left = (half for half, physical in self._handed.items() if physical not in noted)
        return min([self._topics.table.progress()[0], *left])

    def look_up(self, physical_offset: int) -> Record | None:
        """See `TransactionTopics.look_up`."""
        return self._topics.look_up(physical_offset)

    # ---- decisions

    def is_resumed(self, record: Record) -> bool:
        """Return whether this message, which was given up, is in the half topic again and undecided."""
        return self._topics.table.find(self._first_of(record)) is not None

    def is_committed_late(self, record: Record) -> bool:
        """Return whether this message, which was given up, is known to be committed since."""
        return self._first_of(record) in self._committed

    def is_decided_late(self, record: Record, decide: Callable[[], None]) -> bool:
        """Return whether a message that was given up is being decided or put back; see `is_busy`."""
        return self._waits(self._given_up.get(self._first_of(record)), decide)

    def is_known(self, record: Record) -> bool:
        """Return whether this node knows what became of this message, which was given up, since that."""
        first = self._first_of(record)
        return first in self._given_up or first in self._committed or self._topics.table.find(first) is not None

    def look_for_commit(self, record: Record) -> Iterator[None]:
        """Look in the log, in steps, for a commit of this message, which was given up; one is remembered.

        Raises:
            Refusal: DISK_FAILED, the log cannot be read now.
        """
        first, store = self._first_of(record), self._store
        run, before, at, end = -1, 0, 0, 0
        try:
            while run != self._run or at > before:  # another leader may have committed it, if this one was away
                if run != self._run:
                    run, at, end = self._run, record.physical_offset, store.log.confirm_offset
                before = at
                for place, later in islice(store.log.walk(at, end), _LOOKED):  # no view is kept: files may be deleted
                    at = place + len(later)
                    origin, is_commit = origin_of(later)
                    if is_commit and self._is_copy(record, first, origin):
                        _remember(self._committed, first, None)
                        return
                yield
        except (CorruptRecordError, StoreError) as error:
            raise Refusal(Cause.DISK_FAILED, str(error)) from error

    def _is_copy(self, record: Record, first: int, offset: int) -> bool:
        """Return whether the half message at `offset` is the last copy of what was given up, or was put back later."""
        if offset <= record.physical_offset:
            return offset == record.prepared_transaction_offset
        copy = self.look_up(offset)
        return copy is not None and half_of(copy, 0).first == first

    def _first_of(self, record: Record) -> int:
        """Return the physical offset of the first record of a message that was given up.

        What is given up names the last copy, and this the first record. If the copy is deleted, it stands for it.
        """
        origin = record.prepared_transaction_offset
        copy = self.look_up(origin) if origin else None
        return half_of(copy if copy is not None and copy.topic == names.HALF_TOPIC else record, 0).first

    def ask_again(self, record: Record, done: Callable[[AppendReceipt | Refusal], None]) -> bool:
        """Put a message that was given up back into the half topic; returns False when it would be too long.

        `done` is called with the outcome of the append.

        Raises:
            Refusal: it cannot be appended now.
        """
        first = self._first_of(record)
        draft = self._copies.put_back(record, 0, first)
        if draft is None:
            return False
        half, run = self._given_up.get(first), self._run

        def settle(outcome: AppendReceipt | Refusal) -> None:
            if half is not None and run == self._run and isinstance(outcome, Refusal) and outcome.cause not in PLACED:
                _remember(self._given_up, half.first, half)
            done(outcome)

        self._appender.add(draft, settle)
        self._given_up.pop(first, None)
        return True

    def is_busy(self, record: Record, decide: Callable[[], None]) -> bool:
        """Return whether the message of which this is a copy is being decided or put back.

        If so, `decide` is called when that is done, or when this node stops leading.

        Raises:
            Refusal: DISK_FAILED, the half topic cannot be read up to this record now.
        """
        if record.queue_offset >= self._topics.table.half_end:
            self._topics.follow(None)
        return self._waits(self._undecided(record), decide)

    def _waits(self, half: Half | None, decide: Callable[[], None]) -> bool:
        waiting = self._busy.get(half.queue_offset) if half is not None else None
        if waiting is not None:
            waiting.append(decide)
        return waiting is not None

    def begin_decision(self, record: Record) -> Half | None:
        """Begin a decision about the message of which this is a copy; returns None when it is not open any more.

        It is not when it is decided, when an earlier leader has given it up, and when the log of one has deleted it
        undecided.
        """
        half = self._undecided(record)
        if half is not None:
            self._busy[half.queue_offset] = []
        return half

    def _undecided(self, record: Record) -> Half | None:
        one = half_of(record, 0)
        return self._topics.table.find_copy_of(one) or self._given_up.get(one.first)

    def is_committed(self, record: Record) -> bool:
        """Return whether the message of which this is a copy is known to be committed; older commits are not."""
        return half_of(record, 0).first in self._committed or record.physical_offset in self._deliveries.committed

    def commit(self, half: Half, draft: QueuedDraft, done: Callable[[bool], None]) -> None:
        """Store the decided message; `done` is called with whether it is stored."""

        def settle(is_stored: bool) -> None:
            if is_stored:
                _remember(self._committed, half.first, None)
            done(is_stored)

        self._deliver(half, draft, settle)

    def _deliver(self, half: Half, draft: QueuedDraft, done: Callable[[bool], None]) -> None:
        def settle(is_stored: bool) -> None:
            if is_stored:
                self._decided(half)
            else:
                self._deliveries.end(DeliveryKind.TRANSACTION, half.queue_offset)
                self._free(half)
            done(is_stored)

        self._deliveries.deliver(DeliveryKind.TRANSACTION, half.queue_offset, [draft], settle)

    def give_back(self, half: Half) -> None:
        """End a decision that cannot be carried out; the half message stays open, or given up."""
        self._free(half)

    def roll_back(self, half: Half) -> None:
        """Decide without storing the message: only the op record is written."""
        self._decided(half)

    def _decided(self, half: Half) -> None:
        if self._topics.table.is_open(half):
            self._topics.table.end(half)
            self._count(half, -1)
        self._given_up.pop(half.first, None)
        self._free(half)
        self._ops.decided(half.queue_offset)

    def _free(self, half: Half) -> None:
        for decide in self._busy.pop(half.queue_offset, ()):
            self._loop.call_soon(decide)

    def _free_all(self) -> None:
        busy, self._busy = self._busy, {}
        for waiting in busy.values():
            for decide in waiting:
                self._loop.call_soon(decide)

    def _on_ops_written(self, queue_offsets: list[int]) -> None:
        for queue_offset in queue_offsets:
            self._deliveries.end(DeliveryKind.TRANSACTION, queue_offset)
        self._record()

    def _record(self) -> None:
        """Append the progress to the log if it has changed."""
        half_offset, op_offset = self._topics.table.progress()
        if self._recorded != (half_offset, op_offset) and self._role.writable:
            self._recorded = (half_offset, op_offset)
            progress = {HALF_KEY: {0: half_offset}, OP_KEY: {0: op_offset}}
            self._deliveries.record(DeliveryKind.TRANSACTION, progress, refused=self._forget_recorded)

    def _forget_recorded(self) -> None:
        self._recorded = None

    # ---- asking

    def _check_later(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._check, self._run)

    def _check(self, run: int) -> None:
        """One round of checks, in slices."""
        if run != self._run or not self._is_ready:
            return
        self._follow_on()
        self._check_some(run, deque(self._topics.table.halves()))
        self._check_later(self._config.transaction_check_interval_ms / 1000)

    def _check_some(self, run: int, halves: deque[Half]) -> None:
        time_slice = TimeSlice(_SLICE_S)
        while halves and run == self._run:
            half = halves.popleft()
            if half.queue_offset not in self._busy and self._topics.table.is_open(half):
                try:
                    self._check_half(half)
                except Refusal as refusal:
                    log.error(
                        "transaction %s cannot be checked now and is checked again: %s", half.unique_key, refusal.remark
                    )
            if time_slice.is_over():
                self._loop.call_soon(self._check_some, run, halves)
                return
        if run == self._run:
            self._record()

    def _check_half(self, half: Half) -> None:
        age_ms = self._clock_ms() - half.born_ms
        immunity_ms = self._config.transaction_timeout_ms if half.immunity_ms is None else half.immunity_ms
        if not self._role.writable:
            if age_ms >= immunity_ms and not self._deliveries.is_crowded:
                self._ask_elsewhere(half)
            return
        if half.check_times >= self._config.transaction_check_max or age_ms > self._config.file_reserved_ms:
            self._give_up(half)
            return
        if age_ms >= immunity_ms or age_ms < 0:
            self._put_back(half)

    def _ask_elsewhere(self, half: Half) -> None:
        """Hand a half message to the master of another name, which asks its producer, while this one is away."""
        record = self.look_up(half.physical_offset)
        draft = self._copies.for_another_master(record) if record is not None else None
        if draft is None:
            return

        def done(_: bool) -> None:
            self._topics.table.end(half)
            self._free(half)

        self._busy[half.queue_offset] = []
        self._handed[half.queue_offset] = half.physical_offset
        self._deliveries.deliver(DeliveryKind.TRANSACTION, half.queue_offset, [draft], done)

    def _put_back(self, half: Half) -> None:
        """Store a copy of the half message with one more check, then ask its producer about the copy."""
        record = self.look_up(half.physical_offset)
        if record is None:
            self._topics.table.end(half)  # the log has deleted its record
            self._count(half, -1)
            return
        draft = self._copies.put_back(record, half.check_times + 1, half.first)
        if draft is None:  # too long with the number of checks: its producer is asked about the stored copy
            self.checks += self._copies.ask(record, half.group)
            return

        run = self._run

        def done(outcome: AppendReceipt | Refusal) -> None:
            if run != self._run:
                return
            if isinstance(outcome, Refusal):
                if outcome.cause not in PLACED:
                    self._free(half)
                    return
                if self._store.log.confirm_offset < draft.physical_offset + draft.size:
                    self._loop.call_later(WAIT_SECONDS, done, outcome)  # the copy may still be confirmed
                    return
            # It is still open behind its copy if this is damaged, or cannot name it, since it lies at 0 in the log.
            if self._topics.table.is_open(half) and self._topics.table.half_end > draft.queue_offset:
                self._topics.table.end(half)
                self._count(half, -1)
                self._free(half)
            with contextlib.suppress(Refusal):  # if it cannot be read, it is asked about in the next round
                copy = self.look_up(draft.physical_offset)
                self.checks += copy is not None and self._copies.ask(copy, half.group)

        self._busy[half.queue_offset] = []
        self._appender.add(draft, done)

    def _give_up(self, half: Half) -> None:
        record = self.look_up(half.physical_offset)
        log.warning(
            "transaction %s of topic %s is given up after %d checks without an answer",
            half.unique_key,
            half.topic,
            half.check_times,
        )
        draft = self._copies.given_up_copy(record) if record is not None else None
        if draft is None:
            self._decided(half)
            _remember(self._given_up, half.first, half)
            return
        self._busy[half.queue_offset] = []
        self.given_up += 1
        self._deliver(half, draft, lambda is_stored: _remember(self._given_up, half.first, half) if is_stored else None)

    # ---- counts

    def _count(self, half: Half, change: int) -> None:
        if self._is_ready:
            self.counts.add(half.topic, change)

    def _count_anew(self) -> None:
        found = Counter(half.topic for half in self._topics.table.halves())
        for topic in self.counts.counts.keys() | found.keys():
            if change := found[topic] - self.counts.counts.get(topic, 0):
                self.counts.add(topic, change)


def _remember(known: OrderedDict[int, _Value], first: int, value: _Value) -> None:
    known[first] = value
    if len(known) > _REMEMBERED_MAX:
        known.popitem(last=False)
