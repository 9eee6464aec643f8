"""Reads the half and op topics into the table of open half messages: from the progress on, then each new record.

half topic --> message added, or replacing its earlier copy        op topic --> messages that a record names are removed

A record that the disk cannot read holds up those behind it only in a log of which other nodes have copies, since the
log gets it from them. Elsewhere it is passed over, and tried again from time to time. While that is an op record, a
message which it names may be asked about, and delivered, once more.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from broker.config import BrokerConfig
from broker.state import names
from broker.transactions.halves import Half, OpenHalves, half_of
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""How long records that were passed over are not tried again."""
_FAILURES_MAX = 16
"""Reads that may fail in one try of records that were passed over: the loop waits for each."""


class TransactionTopics:
    """Reads both topics.

    Args:
        on_added: called with each new half message.
        on_replaced: called with each copy that a later one replaced.
        on_ended: called with each half message that an op record ended.
        on_late: called with each half message that was passed over and is open now.

    Attributes:
        table: the open half messages.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        on_added: Callable[[Half], None],
        on_replaced: Callable[[Half], None],
        on_ended: Callable[[Half], None],
        on_late: Callable[[Half], None],
    ) -> None:
        self._config = config
        self._store = store
        self._on_added = on_added
        self._on_replaced = on_replaced
        self._on_ended = on_ended
        self._on_late = on_late
        self._try_again_s = 0.0
        self.table = OpenHalves()

    def restart(self, half_start: int, op_start: int) -> None:
        """Empty the table; read on from these queue offsets, or from the ends of queues that are shorter."""
        half_queue, op_queue = (self._store.queues.find(topic, 0) for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC))
        self.table = OpenHalves(
            min(half_start, half_queue.max_offset if half_queue is not None else 0),
            min(op_start, op_queue.max_offset if op_queue is not None else 0),
        )

    def follow(self, time_slice: TimeSlice | None) -> bool:
        """Read both topics to their ends; returns False when the time slice was over first.

        Raises:
            Refusal: DISK_FAILED, a record cannot be read until the log has it from another node; the records before it
                are in the table.
        """
        table = self.table
        halves, ops = (self._store.queues.find(topic, 0) for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC))
        if halves is not None:
            table.half_end = max(table.half_end, halves.min_offset)  # what lies before is deleted
        if ops is not None:
            table.op_end = max(table.op_end, ops.min_offset)
        self._try_again(ops)
        while halves is not None and table.half_end < halves.max_offset:
            try:
                self._take_half(self._record_at(halves, table.half_end))
            except Refusal as refusal:
                self._pass_over(refusal)
                if (unit := halves.unit(table.half_end)) is not None:
                    table.unread[unit[0]] = table.half_end
            table.half_end += 1
            if time_slice is not None and time_slice.is_over():
                return False
        while ops is not None and table.op_end < ops.max_offset:
            try:
                self._take_op(ops, table.op_end)
            except Refusal as refusal:
                self._pass_over(refusal)
                table.pass_over_op(table.op_end)
            if time_slice is not None and time_slice.is_over():
                return False
        return True

    def look_up(self, physical_offset: int) -> Record | None:
        """Return the record at a physical offset; None when there is none or it is damaged.

        A half message that was passed over is open from now on.

        Raises:
            Refusal: DISK_FAILED, it cannot be read now.
        """
        record = None
        try:
            found = self._store.reader.look_up(physical_offset)
            record = decode_record(found) if found is not None else None
        except StoreError as error:
            raise Refusal(Cause.DISK_FAILED, str(error)) from error
        except CorruptRecordError as error:
            log.error("a record of the transaction topics at %d is damaged and ignored: %s", physical_offset, error)
        if self.table.unread.pop(physical_offset, None) is not None and record is not None:
            self._take_late(half_of(record, self._config.transaction_timeout_ms))
        return record

    def _take_late(self, half: Half) -> None:
        later = self.table.find(half.first)
        if later is None or later.queue_offset < half.queue_offset:  # else a copy that was stored after it is open
            self._take(half)
            self._on_late(half)

    def _pass_over(self, refusal: Refusal) -> None:
        """Log that a record cannot be read.

        Raises:
            Refusal: the log gets it from another node.
        """
        if self._store.log.state.role.is_member:
            raise refusal
        log.error("a record of the transaction topics is passed over until it can be read: %s", refusal.remark)
        self._try_again_s = asyncio.get_running_loop().time() + _RETRY_SECONDS

    def _try_again(self, ops: ConsumeQueue | None) -> None:
        """Take records that were passed over and can be read now; those that cannot are the last to be tried next."""
        table = self.table
        if not (table.unread or table.unread_ops) or asyncio.get_running_loop().time() < self._try_again_s:
            return
        self._try_again_s = asyncio.get_running_loop().time() + _RETRY_SECONDS
        for physical_offset in _not_taken(list(table.unread), self.look_up):
            if (queue_offset := table.unread.pop(physical_offset, None)) is not None:
                table.unread[physical_offset] = queue_offset
        if ops is not None:
            for op_offset in _not_taken(table.unread_ops.copy(), lambda op_offset: self._take_op(ops, op_offset)):
                table.unread_ops.remove(op_offset)
                table.unread_ops.append(op_offset)

    def _take_op(self, ops: ConsumeQueue, op_offset: int) -> None:
        record = self._record_at(ops, op_offset)
        for half in self.table.end_all(op_offset, record.body if record is not None else b""):
            self._on_ended(half)

    def _take_half(self, record: Record | None) -> None:
        if record is not None:
            self._take(half_of(record, self._config.transaction_timeout_ms))

    def _take(self, half: Half) -> None:
        earlier = self.table.add(half)
        if earlier is None:
            self._on_added(half)
        else:
            self._on_replaced(earlier)

    def _record_at(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        unit = queue.unit(queue_offset)
        return self.look_up(unit[0]) if unit is not None else None


def _not_taken(places: Iterable[int], take: Callable[[int], object]) -> list[int]:
    """Take what is at these places, until too many cannot be read; return these."""
    failed: list[int] = []
    for place in places:
        try:
            take(place)
        except Refusal:
            failed.append(place)
            if len(failed) == _FAILURES_MAX:
                break
    return failed
