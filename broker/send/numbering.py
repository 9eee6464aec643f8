"""Batches whose messages their producer has numbered: one that is sent again stores only what is missing.

    batch + producer + number of the first message
       '-> what the lane has already, left out -> state record, messages, each with its number  (one append)

A lane is one producer's messages to one queue; its numbers rise, and one request of it is under way at a time. The
state record says which messages lie behind it. After a failover that kept only some of these, the next leader finds in
its own log which they are, and takes the rest. So nothing depends on what a leader remembers.

A batch without messages asks what is stored. The answer's `lastNumber` says it of the lane, and its `begunIn` names the
queues of the topic in which the producer has messages with this number or a higher one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from broker.append.target import SendTarget
from broker.context import BrokerContext
from broker.state import names
from broker.state.lanes import Lane, lane_key
from broker.state.tables import StateChange, StateFormatError
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.properties import NUMBER
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import I64_MAX, filled, long
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError
from store.log.drafts import QueuedDraft
from store.queues.batch_queue import BatchQueue
from store.replicated_log import AppendReceipt

PRODUCER: Final = "numberedBy"
FIRST: Final = "firstNumber"
LAST: Final = "lastNumber"
BEGUN: Final = "begunIn"
BATCH_MAX: Final = 4096
_PRODUCER_FORM: Final = re.compile(r"[A-Za-z0-9._/-]{1,64}")
_FORGOTTEN_PER_RECORD: Final = 1000
_SOON_MS: Final = 20


class _UnderWay:
    """A request whose messages are in a batch of the log, or may be.

    Attributes:
        is_answered: the log has told the outcome, which leaves open whether the messages are placed.
    """

    def __init__(self, marker: QueuedDraft, last_draft: QueuedDraft) -> None:
        self._marker, self._last_draft = marker, last_draft
        self.is_answered = False

    @property
    def end(self) -> int:
        """Physical offset of its last message; -1 if nothing was placed."""
        if getattr(self._marker, "physical_offset", None) is None:
            return -1
        return self._last_draft.physical_offsets()[-1]


class NumberedBatch:
    """A batch of a lane that is being taken.

    Attributes:
        stored: the last number of the lane that is stored, as far as that matters for this batch; -1 without one.
        skipped: how many of its first messages are stored already.
        begun_in: queues of the topic where this producer has messages from the batch's first number on; of a question.
    """

    begun_in: Sequence[int] = ()

    def __init__(self, numbering: "Numbering", key: str, producer: str, first: int, count: int, stored: int) -> None:
        self._numbering, self._key, self._producer = numbering, key, producer
        self._first, self._count, self.stored = first, count, stored
        self.skipped = min(max(stored - first + 1, 0), count)

    def numbered(self, properties: list[bytes]) -> list[bytes]:
        """Return the properties of the messages that are missing, each with its number."""
        name = f"{NUMBER}\x01{self._producer}:"
        return [
            own + (b"" if not own or own[-1] == 2 else b"\x02") + f"{name}{number}\x02".encode()
            for number, own in enumerate(properties[self.skipped :], self._first + self.skipped)
        ]

    def answer_stored(self, connection: Connection, command: Command) -> None:
        """Answer with what is stored, since nothing is missing."""
        begun = {} if self._count else {BEGUN: ",".join(map(str, self.begun_in))}
        connection.respond(command, ResponseCode.SUCCESS, {LAST: str(self.stored), **begun})

    def begin(self, last_draft: QueuedDraft) -> None:
        """Put the state record into this turn's batch; the messages must follow at once."""
        lane = Lane(self._first + self.skipped, self._first + self._count - 1)
        self._numbering.begin(self._key, lane, last_draft)


class Numbering:
    """Knows which numbered messages are stored. Only a leader is asked."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._state = context.state
        self._appender = context.appender
        self._drafts = context.drafts
        self._metadata = context.metadata
        self._role = context.role
        self._propose = context.appender.propose
        self._clock_ms = context.clock_ms
        self._under_way: dict[str, _UnderWay] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # offset of a lane's state record, last number behind it

    def take(self, fields: Mapping[str, str], target: SendTarget, count: int) -> NumberedBatch:
        """Look at a batch of `count` messages with these fields of its header.

        Raises:
            Refusal: INVALID_PARAMETER, MALFORMED_FIELD, MESSAGE_ILLEGAL, BUSY, or QUERY_NOT_FOUND: the log has deleted
                what would tell how much of it is stored.
        """
        producer = filled(fields, PRODUCER)
        first = long(fields, FIRST)
        if _PRODUCER_FORM.fullmatch(producer) is None:
            remark = f"{PRODUCER} is {producer[:100]!r}, not 1 to 64 letters, digits, '.', '_', '/' or '-'"
            raise Refusal(Cause.INVALID_PARAMETER, remark)
        if not 0 <= first <= I64_MAX - count:
            raise Refusal(Cause.INVALID_PARAMETER, f"{FIRST} is {first}, not a number from 0 to {I64_MAX - count}")
        if count > BATCH_MAX:
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"a numbered batch of {count} messages, the limit is {BATCH_MAX}")
        if isinstance(target.queue, BatchQueue):
            raise Refusal(Cause.MESSAGE_ILLEGAL, "a topic with batch queues takes no numbered messages")
        topic = target.topic.decode()
        key = lane_key(topic, target.queue_id, producer)
        stored = self._last_stored(key, producer, first)
        if count and stored < first + count - 1:
            self._check_room(key)
        batch = NumberedBatch(self, key, producer, first, count, stored)
        if not count:
            config = self._metadata.existing_topic(topic)
            keys = (lane_key(topic, queue_id, producer) for queue_id in range(config.write_queues))
            batch.begun_in = [n for n, each in enumerate(keys) if self._has_begun(each, producer, first)]
        return batch

    def begin(self, key: str, lane: Lane, last_draft: QueuedDraft) -> None:
        """Put the state record of a request into this turn's batch."""
        marker = self._drafts.state(StateChange(lanes={key: lane}).encode())
        under_way = self._under_way[key] = _UnderWay(marker, last_draft)

        def answered(_: AppendReceipt | Refusal) -> None:
            under_way.is_answered = True

        self._appender.add(marker, answered)

    def follow(self) -> None:
        """Forget what only this node as the leader knew: another one may cut what it has placed."""
        self._under_way.clear()
        self._counted.clear()

    def forget_old(self) -> None:
        """Propose to remove lanes that are not used any more; only a leader does."""
        if not self._role.writable:
            return
        self.settle_all()
        before_ms = self._clock_ms() - self._config.lane_expiry_hours * 3_600_000
        old = [
            key for key, lane in self._state.lanes.items() if lane.time_ms < before_ms and key not in self._under_way
        ]
        for start in range(0, len(old), _FORGOTTEN_PER_RECORD):
            self._propose(StateChange(lanes=dict.fromkeys(old[start : start + _FORGOTTEN_PER_RECORD])), _ignore)

    def settle_all(self) -> None:
        """Let go of requests that have come to their end."""
        for key in list(self._under_way):
            try:
                self._settle(key)
            except Refusal:
                continue

    def _settle(self, key: str) -> None:
        """Let go of the lane's last request if the table tells its outcome.

        Raises:
            Refusal: BUSY, it does not yet.
        """
        under_way = self._under_way.get(key)
        if under_way is None:
            return
        if not under_way.is_answered or self._store.dispatched_offset <= under_way.end:
            remark = f"a request of the lane {key} is under way"
            raise Refusal(Cause.BUSY, remark, retry_after_ms=_SOON_MS)
        del self._under_way[key]

    def _check_room(self, key: str) -> None:
        most = self._config.lanes_max
        lanes = self._state.lanes
        if key in lanes or len(lanes) + len(self._under_way) < most:
            return
        self.settle_all()
        if len(lanes) + len(self._under_way) >= most:
            remark = f"numbers of {most} lanes are kept at most (maxNumberedLanes)"
            raise Refusal(Cause.INVALID_PARAMETER, remark)

    def _has_begun(self, key: str, producer: str, first: int) -> bool:
        """Return whether messages from `first` on are stored; errors as `_last_stored`.

        A lane whose last request begins behind `first` has them, however much of that request is stored.
        """
        lane = self._state.lanes.get(key)
        return (lane is not None and lane.first > first) or self._last_stored(key, producer, first) >= first

    def _last_stored(self, key: str, producer: str, first: int) -> int:
        """Return the last number that is stored, as far as that matters for a batch that begins with `first`.

        Raises:
            Refusal: as `take`.
        """
        self._settle(key)
        lane = self._state.lanes.get(key)
        if lane is None:
            return -1
        if first > lane.last:
            return lane.last
        counted = self._counted.get(key)
        if counted is None or counted[0] != lane.offset:
            if len(self._counted) >= self._config.lanes_max:
                self._counted.clear()
            counted = self._counted[key] = lane.offset, lane.first - 1 + self._count(key, producer, lane)
        return counted[1]

    def _count(self, key: str, producer: str, lane: Lane) -> int:
        """Return how many messages of the lane's last request are in the log, behind its state record."""
        log, wanted = self._store.log, lane.last - lane.first + 1
        if lane.offset < log.min_offset:
            remark = f"whether messages of the lane {key} up to {lane.last} are stored is not known any more"
            raise Refusal(Cause.QUERY_NOT_FOUND, f"{remark}: this part of the log is deleted")
        found = -1
        try:
            for _, record in log.walk(lane.offset, log.confirm_offset):
                if found < 0 and not _tells(record, key, lane):
                    return 0
                if found == wanted or (found >= 0 and not _is(record, key, f"{producer}:{lane.first + found}")):
                    break
                found += 1
        except (StoreError, CorruptRecordError) as error:
            raise Refusal(Cause.SYSTEM_ERROR, f"the messages of the lane {key} cannot be read: {error}") from error
        return max(found, 0)


def _is(record: memoryview, key: str, number: str) -> bool:
    """Return whether a record is the message of a lane with a number, and no copy of another lane's message."""
    decoded, producer = decode_record(record), number.rpartition(":")[0]
    return decoded.property_map.get(NUMBER) == number and lane_key(decoded.topic, decoded.queue_id, producer) == key


def _tells(record: memoryview, key: str, lane: Lane) -> bool:
    """Return whether a record is the state record of a lane's request: a cut may have put another one there."""
    decoded = decode_record(record)
    if decoded.topic != names.STATE_TOPIC:
        return False
    try:
        told = StateChange.decode(decoded.body, "state record").lanes.get(key)
    except StateFormatError:
        return False
    return told is not None and (told.first, told.last) == (lane.first, lane.last)


def _ignore(_: Refusal | None) -> None:
    """Do nothing: nobody waits, and what is refused is proposed again."""
