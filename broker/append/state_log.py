"""Connects the replicated tables to the log: changes become records, committed records change the tables.

    propose(change) -> draft of the state topic -> batch of this turn -> commit -> dispatched, in log order: applied
                                                                            '----> done(None)

Invariant: every node applies a change at the same place between the messages around it.
"""

import logging
from collections.abc import Callable

from broker.append.appender import Appender
from broker.append.drafts import DraftMaker
from broker.state import names
from broker.state.tables import ChangeDone, ReplicatedState, StateChange, StateFormatError
from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Refusal
from store.message_store import MessageStore
from store.replicated_log import AppendReceipt

log = logging.getLogger(__name__)


class StateLog:
    """Writes and reads the state topic.

    Attributes:
        on_refused: called whenever the log refuses a change.
        skipped: number of records of the state topic that could not be read.
    """

    def __init__(self, state: ReplicatedState, appender: Appender, drafts: DraftMaker) -> None:
        self._state = state
        self._appender = appender
        self._drafts = drafts
        self.on_refused: Callable[[], None] = lambda: None
        self.skipped = 0

    def propose(self, change: StateChange, done: ChangeDone) -> None:
        """Append a change; `done` is called with None when it is committed and applied, else with the refusal."""

        def settle(outcome: AppendReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal):
                self.on_refused()
                done(outcome)
            else:
                done(None)

        self._appender.add(self._drafts.state(change.encode()), settle)

    def apply_record(self, physical_offset: int, record: memoryview) -> StateChange | None:
        """Apply a dispatched record of the state topic to the tables; called in log order, on every node.

        When the log is dispatched again after a crash, the tables already contain the changes of its older records.
        Those changes are returned all the same, since queues that were removed after them exist again.

        Returns:
            The change, or None for a record that cannot be read: every node skips it.
        """
        return self._apply(self._state, physical_offset, record)

    def replay(self, store: MessageStore, state: ReplicatedState) -> int:
        """Apply to `state` the dispatched state records that it does not have; return their number.

        Only these records are read: the state topic's own queue has their positions.
        """
        queue = store.queues.find(names.STATE_TOPIC, 0)
        if queue is None:
            return 0
        count = 0
        for physical_offset, record in store.reader.records_from(queue, state.applied_offset):
            self._apply(state, physical_offset, record)
            count += 1
        return count

    def _apply(self, state: ReplicatedState, physical_offset: int, record: memoryview) -> StateChange | None:
        decoded = decode_record(record)
        try:
            change = StateChange.decode(decoded.body, f"state record at {physical_offset}")
        except StateFormatError as error:
            self.skipped += 1
            log.error("a state record is skipped: %s", error)
            change = None
        if physical_offset >= state.applied_offset:
            if change is not None:
                if state.newer:
                    change = state.newer.without(change)
                state.apply(change, decoded.store_timestamp, physical_offset)
            state.applied_offset = physical_offset + decoded.size
        return change
