"""Reads the half and op topics into the table of open half messages: from the progress on, then each new record.

half topic --> message added, or replacing its earlier copy        op topic --> messages that a record names are removed
"""

import logging
from collections.abc import Callable

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


class TransactionTopics:
    """Reads both topics.

    Args:
        on_added: called with each new half message.
        on_replaced: called with each copy that a later one replaced.
        on_ended: called with each half message that an op record ended.

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
    ) -> None:
        self._config = config
        self._store = store
        self._on_added = on_added
        self._on_replaced = on_replaced
        self._on_ended = on_ended
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
            Refusal: DISK_FAILED, a record cannot be read now; the records before it are in the table.
        """
        table = self.table
        halves, ops = (self._store.queues.find(topic, 0) for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC))
        if halves is not None:
            table.half_end = max(table.half_end, halves.min_offset)  # what lies before is deleted
        if ops is not None:
            table.op_end = max(table.op_end, ops.min_offset)
        while halves is not None and table.half_end < halves.max_offset:
            self._take_half(self._record_at(halves, table.half_end))
            table.half_end += 1
            if time_slice is not None and time_slice.is_over():
                return False
        while ops is not None and table.op_end < ops.max_offset:
            record = self._record_at(ops, table.op_end)
            for half in table.end_all(table.op_end, record.body if record is not None else b""):
                self._on_ended(half)
            if time_slice is not None and time_slice.is_over():
                return False
        return True

    def look_up(self, physical_offset: int) -> Record | None:
        """The record at a physical offset; None when there is none or it is damaged.

        Raises:
            Refusal: DISK_FAILED, it cannot be read now.
        """
        try:
            found = self._store.reader.look_up(physical_offset)
            return decode_record(found) if found is not None else None
        except StoreError as error:
            raise Refusal(Cause.DISK_FAILED, str(error)) from error
        except CorruptRecordError as error:
            log.error("a record of the transaction topics at %d is damaged and ignored: %s", physical_offset, error)
            return None

    def _take_half(self, record: Record | None) -> None:
        if record is None:
            return
        half = half_of(record, self._config.transaction_timeout_ms)
        earlier = self.table.add(half)
        if earlier is None:
            self._on_added(half)
        else:
            self._on_replaced(earlier)

    def _record_at(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        unit = queue.unit(queue_offset)
        return self.look_up(unit[0]) if unit is not None else None
