"""END_TRANSACTION (37): a producer's decision about a half message. RESUME_CHECK_HALF_MESSAGE (323): check it again.

    0 undecided: nothing, no answer | 8 commit: message into its topic, then an op record | 12 rollback: an op record

A message is decided once: a second decision about it, or about an earlier copy, changes nothing. It is answered with
success, but for a commit of what this node does not know to be committed: it may have been given up.

Source: apache/rocketmq `broker/.../processor/EndTransactionProcessor.java` (5.3.3).
"""

from functools import partial
from typing import Final

from broker.context import BrokerContext
from broker.delay.parking import Parking
from broker.state import names
from broker.subsystem import Steps
from broker.transactions.halves import Half, half_of
from broker.transactions.service import TransactionService
from ledgermq.message.errors import InvalidMessageIdError
from ledgermq.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.properties import (
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    WAIT,
    decode_properties,
    encode_properties,
)
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.drafts import QueuedDraft
from store.replicated_log import AppendReceipt

_DECISIONS: Final = (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
_NOT_FOUND = "Find prepared transaction message failed"
_NOT_OPEN = "the message is not open any more, and not known to be committed: it may have been given up"
_NOT_PUT_BACK = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."


class TransactionRequests:
    """Serves requests about half messages."""

    def __init__(self, context: BrokerContext, service: TransactionService, parking: Parking) -> None:
        self._config = context.config
        self._metadata = context.metadata
        self._role = context.role
        self._service = service
        self._parking = parking
        self._targets = context.targets
        self._drafts = context.drafts
        self._turns = context.turns
        self._is_looking = False
        self._clock_ms = context.clock_ms
        self._events = context.counting.events

    def end(self, connection: Connection, command: Command) -> None:
        """37: carry out a decision; answered when it is in the log, unless the request is one-way."""
        fields = command.ext
        for name in ("producerGroup", "msgId"):
            text(fields, name)
        long(fields, "tranStateTableOffset")
        long(fields, "commitLogOffset")
        decision = integer(fields, "commitOrRollback")
        if decision not in _DECISIONS:
            raise Refusal(Cause.MALFORMED_FIELD, f"field commitOrRollback is {decision}, not one of {_DECISIONS}")
        if (refusal := self._role.refusal) is not None:
            connection.respond(command, ResponseCode.SLAVE_NOT_AVAILABLE, refusal.ext, remark=refusal.remark)
        elif decision in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            self._service.when_ready(lambda: self._decide(connection, command, decision))
        elif not command.is_oneway:
            connection.answer((), 1)  # as RocketMQ does: the producer is asked later

    def resume(self, connection: Connection, command: Command) -> None:
        """323: put a message that was given up back into the half topic, with no checks so far.

        An earlier leader may have committed it since: unless this node knows better, it looks for that in the log.

        Raises:
            Refusal: SYSTEM_ERROR, the id names no such message.
        """
        self._role.check_writable()
        try:
            _, offset = parse_offset_message_id(text(command.ext, "msgId"))
        except InvalidMessageIdError as error:
            raise Refusal(Cause.SYSTEM_ERROR, f"{_NOT_PUT_BACK} {error}") from error
        self._service.when_ready(lambda: self._resume(connection, command, offset))

    def _resume(self, connection: Connection, command: Command, offset: int, *, has_looked: bool = False) -> None:
        def done(outcome: AppendReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal):
                connection.refuse(command, outcome)
            else:
                connection.respond(command, ResponseCode.SUCCESS)

        try:
            record = self._service.look_up(offset)
            if record is None or record.topic != names.CHECKED_OUT_TOPIC:
                topic = "nothing" if record is None else f"a message of {record.topic}"
                raise Refusal(Cause.SYSTEM_ERROR, f"{_NOT_PUT_BACK} There is {topic} at offset {offset}")
            again = partial(self._resume, connection, command, offset)
            if self._service.is_decided_late(record, lambda: self._service.when_ready(again)):
                return
            if self._service.is_committed_late(record):
                raise Refusal(Cause.SYSTEM_ERROR, f"{_NOT_PUT_BACK} It was committed after it was given up.")
            if self._service.is_resumed(record):
                connection.respond(command, ResponseCode.SUCCESS)
            elif not has_looked and not self._service.is_known(record):
                self._look(connection, command, record)
            elif not self._service.ask_again(record, done):
                raise Refusal(Cause.SYSTEM_ERROR, "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed.")
        except Refusal as refusal:
            connection.refuse(command, refusal)

    def _look(self, connection: Connection, command: Command, record: Record) -> None:
        """Look for a commit of a message that was given up, then go on; one such search at a time.

        Raises:
            Refusal: BUSY, another search is going on.
        """

        def steps() -> Steps:
            try:
                for _ in self._service.look_for_commit(record):
                    yield
                    if connection.is_closed:
                        return
                    self._role.check_writable()
            except Refusal as refusal:
                connection.refuse(command, refusal)
                return
            finally:
                self._is_looking = False
            again = partial(self._resume, connection, command, record.physical_offset, has_looked=True)
            self._service.when_ready(again)

        if self._is_looking:
            raise Refusal(Cause.BUSY, f"{_NOT_PUT_BACK} Another message is looked for.", retry_after_ms=1000)
        self._is_looking = True
        self._turns.run_steps(steps())

    def _decide(self, connection: Connection, command: Command, decision: int) -> None:
        try:
            self._carry_out(connection, command, decision)
        except Refusal as refusal:
            connection.refuse(command, refusal)

    def _carry_out(self, connection: Connection, command: Command, decision: int) -> None:
        fields = command.ext
        self._role.check_writable()
        record = self._service.look_up(long(fields, "commitLogOffset"))
        if record is None or record.topic != names.HALF_TOPIC:
            raise Refusal(Cause.SYSTEM_ERROR, _NOT_FOUND)
        if fields.get("fromTransactionCheck", "false").lower() != "true" and self._is_too_late(record):
            remark = "the time for a decision of its own is over, the producer will be asked"
            connection.respond(command, ResponseCode.ILLEGAL_OPERATION, remark=remark)
            return
        self._check(record, fields)
        again = partial(self._decide, connection, command, decision)
        if self._service.is_busy(record, lambda: self._service.when_ready(again)):
            return
        half = self._service.begin_decision(record)
        if half is None:
            if decision == TRANSACTION_COMMIT and not self._service.is_committed(record):
                connection.respond(command, ResponseCode.ILLEGAL_OPERATION, remark=_NOT_OPEN)
            else:
                connection.respond(command, ResponseCode.SUCCESS)
        elif decision == TRANSACTION_ROLLBACK:
            self._service.roll_back(half)
            self._events.rollbacks.add((half.topic,))
            connection.respond(command, ResponseCode.SUCCESS)
        else:
            self._commit(connection, command, half, record)

    def _commit(self, connection: Connection, command: Command, half: Half, record: Record) -> None:
        try:
            draft = self._final(record, half)
        except Refusal:
            self._service.give_back(half)
            raise

        def done(is_stored: bool) -> None:
            if is_stored:
                self._events.commits.add((half.topic,))
                age_s = max(0, self._clock_ms() - record.born_timestamp) // 1000
                self._events.finish_ms.of((half.topic,)).observe(age_s)
                connection.respond(command, ResponseCode.SUCCESS)
            else:
                connection.respond(command, ResponseCode.SYSTEM_ERROR, remark="the message was not stored")

        self._service.commit(half, draft, done)

    def _is_too_late(self, record: Record) -> bool:
        immunity_ms = half_of(record, self._config.transaction_timeout_ms).immunity_ms
        return immunity_ms is not None and self._clock_ms() - record.born_timestamp > immunity_ms

    def _check(self, record: Record, fields: dict[str, str]) -> None:
        """Refuse a decision whose fields do not match the stored half message."""
        if record.property_map.get(PRODUCER_GROUP) != fields["producerGroup"]:
            raise Refusal(Cause.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != long(fields, "tranStateTableOffset"):
            raise Refusal(Cause.SYSTEM_ERROR, "The transaction state table offset wrong")

    def _final(self, record: Record, half: Half) -> QueuedDraft:
        """Return the message as consumers get it; parked when it is delayed."""
        properties = dict(record.property_map)
        name, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        self._metadata.check_decided(name)
        topic = self._metadata.existing_topic(name)
        if not queue_id.isascii() or not queue_id.isdigit():
            raise Refusal(
                Cause.SYSTEM_ERROR, f"half message at {record.physical_offset}: {name}/{queue_id} is no queue"
            )
        properties[WAIT] = "false"
        target = self._targets.target_after_waiting(topic, int(queue_id))
        parked = self._parking.delay(target, encode_properties(properties))
        if parked is not None:
            target, properties = parked.target, decode_properties(parked.properties)
        draft = self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)
        if parked is not None and parked.tags_code is not None:
            draft.tags_code = parked.tags_code
        draft.sys_flag |= TRANSACTION_COMMIT
        draft.prepared_transaction_offset = half.physical_offset
        return draft
