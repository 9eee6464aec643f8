"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): the hot path.

    frame -> fields -> target (one look-up) -> limits -> draft -> batch of this turn     nothing stored yet
                                                                     '- commit -> `append.answers`

Per message: dict look-ups, a few searches in the properties' text (in bytes they cost several times as much), one
draft, one tuple. No task, no future. A plain message whose header differs from an earlier one of its connection only in
its own values (`ledgermq.remoting.codec.repeated_headers`) takes all other fields from that one. Code that a plain
message does not need (retry topics, other spellings of the header) is in functions of its own.

Source: apache/rocketmq `broker/.../processor/SendMessageProcessor.java` (5.x).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.append.answers import Answer
from broker.append.target import SendTarget
from broker.context import BrokerContext
from broker.delay.parking import Parking, refuse_in_batch
from broker.groups.locks import GroupLocks
from broker.send.batches import TAGS, answered_as_one, plain_batch, tags_code_at
from broker.send.fields import (
    TELLS_MAX_RECONSUME_TIMES,
    check_inner_batch,
    check_key,
    check_light_names,
    needs_new_stamp,
    shortened,
    stamp,
    waits,
    with_new_stamp,
)
from broker.send.numbering import PRODUCER, Numbering
from broker.send.oneway import OnewayMessages
from broker.state import names
from ledgermq.message.batch import Cut, cut_batch
from ledgermq.message.batch_unit import BATCH_MESSAGES_MAX
from ledgermq.message.errors import MalformedBatchError
from ledgermq.message.flags import BORN_HOST_V6, HOST_MASK, INNER_BATCH, NEED_UNWRAP, STORE_HOST_V6, TRANSACTION_MASK
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.message.properties import INNER_NUM, PROPERTIES_LENGTH_MAX, find_property
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import ONEWAY_FLAG, Command
from ledgermq.remoting.codec.fields import I64_MAX, integer, long, text
from ledgermq.remoting.codec.repeated_headers import RepeatedSend
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.log.drafts import QueuedDraft
from store.queues.batch_queue import BatchQueue
from store.replicated_log import AppendReceipt

_HOST_V6_EXTRA: Final = 12
Header = tuple[int, int, int]
"""System flag, born time in ms, reconsume times."""

Numbers = tuple[int, int, int]
"""System flag, reconsume times, flag."""

_NUMBERS_MAX: Final = 1024  # combinations kept; senders repeat a few

_UNIQ_KEY: Final = b"UNIQ_KEY\x01"
_RETRY_PREFIX: Final = names.RETRY_PREFIX.encode()
_NO_TARGETS: Final[Mapping[bytes, SendTarget]] = {}
_SHARDING_KEY: Final = "__SHARDINGKEY\x01"
_NOT_PLAIN: Final = (*("CLUSTER\x01", "POP_CK\x01", "INNER_", _SHARDING_KEY, "DELAY\x01", "TRAN_MSG\x01", "TIMER_DEL"),)
"""Properties that `SendProcessor._send` looks for."""


class BornHost:
    """The born host of a connection's messages: encoded, its flag bits, and bytes that it adds to a record."""

    __slots__ = ("encoded", "extra_size", "flags")

    def __init__(self, connection: Connection) -> None:
        self.encoded = connection.peer_host
        is_v6 = len(self.encoded) == 20
        self.flags = BORN_HOST_V6 if is_v6 else 0
        self.extra_size = _HOST_V6_EXTRA if is_v6 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSend:
    """What plain messages have in common whose headers fit one pattern of a connection.

    Attributes:
        is_plain: False: they are not, and the rest means nothing.
        before, after: properties in front of the key and behind it, as they are stored.
        size: bytes that host and properties add to a record.
    """

    is_plain: bool
    before: bytes
    after: bytes
    size: int
    sys_flag: int
    reconsume_times: int
    flag: int
    tags_code: int


class SendProcessor:
    """Turns send requests into drafts of the turn's batch."""

    def __init__(
        self,
        context: BrokerContext,
        locks: GroupLocks,
        parking: Parking,
        ids: UniqueIdGenerator,
        numbering: Numbering,
    ) -> None:
        config, counting, store_host = context.config, context.counting, context.store_host
        self._metadata = context.metadata
        self._targets = context.targets
        self._known = context.targets.known
        self._repeated = context.targets.repeated
        self._appender = context.appender
        self._oneway = OnewayMessages(context.appender, context.loop)
        self._answer_all = context.answers
        self._new_topics = context.new_topics
        self._locks = locks
        self._parking = parking
        self._ids = ids
        self._numbering = numbering
        self._fifo_tally = counting.arrivals.fifo_tally
        self._calls = counting.calls
        self._dead_letters = counting.events.dead_letters
        self._body_max = config.max_message_size_bytes
        self._batch_max = config.batch_messages_max
        self._record_max = config.max_message_size_bytes + (64 << 10)
        self._stamp = stamp(config)
        self._multi_dispatch = config.store.kinds.multi_dispatch
        is_v6 = len(store_host) == 20
        self._store_flags = STORE_HOST_V6 if is_v6 else 0
        self._store_extra = _HOST_V6_EXTRA if is_v6 else 0
        self._read_numbers: dict[tuple[str | None, ...], Numbers] = {}

    def send_v1(self, connection: Connection, command: Command) -> None:
        """Code 10: the same fields under long names."""
        self._calls.by_code = True
        self._send(connection, command, shortened(command.ext))

    def send_v2(self, connection: Connection, command: Command) -> None:
        """Code 310; a few clients use long names with it, too."""
        if command.__class__ is RepeatedSend and self._repeat(connection, command):
            return
        fields = command.ext
        self._send(connection, command, fields if "b" in fields else shortened(fields))

    def check(self, fields: Mapping[str, str]) -> None:
        """Check header, topic and queue of a send with these (short) fields.

        Raises:
            Refusal: the send would be refused.
        """
        for name in ("a", "c"):
            text(fields, name)
        long(fields, "g")
        self._numbers(fields, ())
        if (fields.get("b"), fields.get("e")) not in self._known:
            self._checked_target(fields)

    def place(self, connection: Connection, fields: Mapping[str, str], body: bytes | memoryview) -> QueuedDraft:
        """Put a message into this turn's batch like a send with these (short) fields, without an answer.

        Raises:
            Refusal: as for a send.
        """
        self._send(connection, Command(RequestCode.SEND_MESSAGE_V2, flag=ONEWAY_FLAG, body=body), fields)
        return self._appender.drafts[-1]

    def send_batch(self, connection: Connection, command: Command) -> None:
        """Code 320: many messages of one topic and queue in one body; all or none are stored.

        Each message keeps its own properties. (Java appends those of the request to each, so that all have the same
        UNIQ_KEY, while its clients look for the ids that they gave. In a batch to a compacted topic Java accepts
        messages without a key, and drops them later; here the batch is refused.)
        """
        self._calls.by_code = True
        fields = command.ext if "b" in command.ext else shortened(command.ext)
        target = self._known.get((fields.get("b"), fields.get("e"))) or self._targets.find(fields)
        if fields["b"].startswith(names.RETRY_PREFIX):
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"batch request does not support retry group {fields['b']}")
        if len(command.body) > self._body_max:
            raise self._body_refused(len(command.body), "batch")
        try:
            cuts, properties = cut_batch(command.body, self._batch_max + 1)
        except MalformedBatchError as error:
            raise Refusal(Cause.MALFORMED_FIELD, f"body: {error}") from error
        if len(cuts) > self._batch_max:
            remark = f"a batch of more than {self._batch_max} messages (maxMessagesOfBatch)"
            raise Refusal(Cause.MESSAGE_ILLEGAL, remark)
        numbered = self._numbering.take(command.ext, target, len(cuts)) if PRODUCER in command.ext else None
        if numbered is not None:
            if numbered.skipped == len(cuts):
                numbered.answer_stored(connection, command)
                return
            cuts, properties = cuts[numbered.skipped :], numbered.numbered(properties)
        if not cuts:
            raise Refusal(Cause.MALFORMED_FIELD, "body: a batch without messages")
        if self._multi_dispatch:
            for own in (fields.get("i", "").encode(), *properties):
                check_light_names(own)
        if isinstance(target.queue, BatchQueue) and "UNIQ_KEY\x01" in fields.get("i", ""):
            self._send_inner_batch(connection, command, fields, target, properties)
            return
        header, _ = self._header(born := _born_host(connection), fields)
        overhead = target.overhead + born.extra_size + self._store_extra
        appender = self._appender
        batch = plain_batch(target, command.body, cuts, properties, self._stamp, overhead, self._record_max)
        if batch is None:
            drafts = self._drafts(target, born, header, command.body, zip(cuts, properties, strict=True))
            draft = answered_as_one(drafts)
        else:
            batch.sys_flag, batch.born_timestamp, batch.reconsume_times = header
            batch.born_host = born.encoded
            drafts, draft = [batch], batch
        if numbered is not None:
            numbered.begin(draft)
        appender.drafts += drafts
        appender.begin()
        if command.is_oneway:
            self._oneway.placed(connection, len(command.body))
            return
        key = find_property(fields.get("i", "").encode(), b"UNIQ_KEY") or b""
        if not waits(fields.get("i", "")):
            self._answer_when_placed((connection, command, draft, key))
        elif target.is_new:
            self._answer_when_known(fields["b"], (connection, command, draft, key))
        else:
            appender.answers.append((connection, command, draft, key))

    def _drafts(
        self,
        target: SendTarget,
        born: BornHost,
        header: Header,
        batch: bytes | memoryview,
        messages: Iterable[tuple[Cut, bytes]],
    ) -> list[QueuedDraft]:
        """Return one draft per message of a batch with special properties; `batch` is the request's body.

        Raises:
            Refusal: of the first message that cannot be taken.
        """
        view = memoryview(batch)
        mark, sharding_key = self._stamp, _SHARDING_KEY.encode()
        drafts: list[QueuedDraft] = []
        for (flag, start, end), properties in messages:
            if properties and properties[-1] != 2:
                properties += b"\x02"
            properties = with_new_stamp(mark, properties) if needs_new_stamp(properties) else properties + mark
            if b"DELAY\x01" in properties or b"TRAN_MSG\x01" in properties or b"TIMER_DEL" in properties:
                refuse_in_batch(properties)
            if target.needs_key:
                check_key(properties)
            drafts.append(made := self._draft(target, born, header, flag, view[start:end], properties))
            if sharding_key in properties:
                made.tally = self._fifo_tally(target.tally)
        return drafts

    def _send_inner_batch(
        self,
        connection: Connection,
        command: Command,
        fields: Mapping[str, str],
        target: SendTarget,
        messages: Sequence[bytes],
    ) -> None:
        """Append a batch to a topic with batch queues as one record, which its consumers split.

        `messages` are their properties.
        """
        for own in messages:
            refuse_in_batch(own)
            if target.needs_key:
                check_key(own)
        if len(messages) > BATCH_MESSAGES_MAX:
            limit = f"the limit is {BATCH_MESSAGES_MAX}"
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"the batch has {len(messages)} messages, {limit}")
        properties = fields["i"].encode()
        properties += b"" if properties[-1] == 2 else b"\x02"
        mark = self._stamp
        properties = with_new_stamp(mark, properties) if needs_new_stamp(properties) else properties + mark
        key = find_property(properties, b"UNIQ_KEY") or b""
        properties += b"%b\x01%d\x02" % (INNER_NUM.encode(), len(messages))
        born = _born_host(connection)
        (sys_flag, born_timestamp, reconsume_times), flag = self._header(born, fields)
        header = (sys_flag | INNER_BATCH | NEED_UNWRAP, born_timestamp, reconsume_times)
        draft = self._draft(target, born, header, flag, command.body, properties)
        more = {"batchUniqId": key.decode(errors="replace")}
        self._append_alone(connection, command, target, draft, key, more)

    def _send(self, connection: Connection, command: Command, fields: Mapping[str, str]) -> None:
        target = self._known.get((fields.get("b"), fields.get("e")))
        if target is None:
            target = self._checked_target(fields, command.version)
        body = command.body
        # an empty body removes its key
        if not 0 < len(body) <= self._body_max and not (target.needs_key and len(body) == 0):
            raise self._body_refused(len(body), "message")
        text = fields.get("i", "")
        properties = text.encode()
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if "CLUSTER\x01" in text or "POP_CK\x01" in text or "INNER_" in text:
            properties = with_new_stamp(self._stamp, properties)
        else:
            properties += self._stamp
        at = properties.rfind(_UNIQ_KEY)
        if at == 0 or (at > 0 and properties[at - 1] == 2):
            key = properties[at + 9 : properties.find(b"\x02", at)]
        else:
            key = find_property(properties, b"UNIQ_KEY") or b""
        if not key:
            key = self._ids.next(wall_clock_ms()).encode()
            properties += _UNIQ_KEY + key + b"\x02"

        if target.needs_key:
            check_key(properties)
        if self._multi_dispatch:
            check_light_names(properties)
        born = connection.attributes.get("born_host") or _born_host(connection)
        header, flag = self._header(born, fields)
        if (header[0] & INNER_BATCH and not isinstance(target.queue, BatchQueue)) or "INNER_NUM\x01" in text:
            check_inner_batch(header[0], target, properties)
        is_fifo = _SHARDING_KEY in text
        if "DELAY\x01" in text or "TRAN_MSG\x01" in text or "TIMER_DEL" in text:
            parked = self._parking.park(target, properties, header[2])
            if parked is not None:
                draft = self._draft(parked.target, born, header, flag, body, parked.properties)
                draft.tally = self._fifo_tally(parked.target.tally) if is_fifo else parked.target.tally
                if parked.tags_code is not None:
                    draft.tags_code = parked.tags_code
                self._append_parked(connection, command, target, draft, key, parked.recall_handle)
                return
        draft = self._draft(target, born, header, flag, body, properties)
        if is_fifo:
            draft.tally = self._fifo_tally(target.tally)
        appender = self._appender
        appender.begin()
        appender.drafts.append(draft)
        if command.flag & ONEWAY_FLAG:
            self._oneway.placed(connection, len(body))
            return
        if not waits(text):
            self._answer_when_placed((connection, command, draft, key))
        elif target.is_new:
            self._answer_when_known(fields["b"], (connection, command, draft, key))
        else:
            appender.answers.append((connection, command, draft, key))

    def _repeat(self, connection: Connection, command: RepeatedSend) -> bool:
        """Do what `_send` does, for a plain message like others before it; return False, and place nothing, for others.

        Raises:
            Refusal: of the target or a field, as by `_send`.
        """
        like = command.pattern.derived
        if like is None:
            like = command.pattern.derived = self._plain_like(connection, command)
        target = self._repeated.get(command.queue_id, _NO_TARGETS).get(command.topic)
        if target is None and like.is_plain and not command.topic.startswith(_RETRY_PREFIX):
            target = self._targets.find_repeated(command)
        body = command.body
        if target is None or target.is_new or target.needs_key or not like.is_plain:
            return False
        if not 0 < len(body) <= self._body_max:
            return False
        size = target.overhead + like.size + len(body)
        if size > self._record_max:
            return False
        draft = QueuedDraft()
        draft.messages = 1
        draft.topic = target.topic
        draft.queue_id = target.queue_id
        draft.queue = target.queue
        draft.flag = like.flag
        draft.sys_flag = like.sys_flag
        draft.born_timestamp = int(command.born)
        draft.reconsume_times = like.reconsume_times
        draft.born_host = connection.peer_host
        draft.prepared_transaction_offset = 0
        draft.body = body
        draft.properties = like.before + command.key + like.after
        draft.tags_code = like.tags_code
        draft.size = size
        draft.tally = target.tally
        appender = self._appender
        appender.begin_plain()
        appender.drafts.append(draft)
        appender.answers.append((connection, command, draft, command.key))
        return True

    def _plain_like(self, connection: Connection, command: RepeatedSend) -> PlainSend:
        """Find out what messages of a pattern have in common, by one of them.

        Raises:
            Refusal: a field is not valid.
        """
        fields, key = command.ext, command.key
        text = fields.get("i", "")
        born = _born_host(connection)
        header, flag = self._header(born, fields)
        properties = text.encode()
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += self._stamp
        before, _, after = properties.partition(_UNIQ_KEY + key)
        is_plain = (
            not any(name in text for name in _NOT_PLAIN)
            and not (before and before[-1] != 2)
            and after[:1] == b"\x02"
            and properties.count(_UNIQ_KEY) == 1
            and not header[0] & INNER_BATCH
            and not command.flag & ONEWAY_FLAG
            and not self._multi_dispatch
            and waits(text)
            and len(properties) <= PROPERTIES_LENGTH_MAX
        )
        at = properties.rfind(TAGS)
        return PlainSend(
            is_plain=is_plain,
            before=before + _UNIQ_KEY,
            after=after,
            size=born.extra_size + self._store_extra + len(properties),
            sys_flag=header[0],
            reconsume_times=header[2],
            flag=flag,
            tags_code=tags_code_at(properties, at) if at >= 0 else 0,
        )

    def _append_parked(
        self,
        connection: Connection,
        command: Command,
        target: SendTarget,
        draft: QueuedDraft,
        key: bytes,
        recall_handle: str,
    ) -> None:
        """Append a message that waits in a system topic first; its answer has the queue that was asked for."""
        more = {"queueId": str(target.queue_id)}
        if recall_handle:
            more["recallHandle"] = recall_handle
        self._append_alone(connection, command, target, draft, key, more)

    def _append_alone(
        self,
        connection: Connection,
        command: Command,
        target: SendTarget,
        draft: QueuedDraft,
        key: bytes,
        more: dict[str, str],
    ) -> None:
        """Append a message whose answer has additional fields."""
        answer = (connection, command, draft, key)
        since = time.monotonic()

        def done(outcome: AppendReceipt | Refusal) -> None:
            if self._appender.is_looked_for(answer, outcome, since):
                return
            topic = target.topic.decode()
            self._new_topics.then(topic, lambda: self._answer_all.answer_parked(answer, outcome, since, more))

        if command.is_oneway:
            self._appender.add(draft)
            self._oneway.placed(connection, len(command.body))
        else:
            self._appender.add(draft, done, waits=waits(draft.properties.decode(errors="replace")))

    def _answer_when_placed(self, answer: Answer) -> None:
        """Answer the sender of a message that waits for no flush and no other node."""
        since = time.monotonic()
        self._appender.unwaited.append(lambda outcome: self._answer_all.answer_alone(answer, outcome, since))

    def _answer_when_known(self, topic: str, answer: Answer) -> None:
        """Answer the sender of a topic's first message when the nameservers know the topic."""
        since = time.monotonic()

        def done(outcome: AppendReceipt | Refusal) -> None:
            self._new_topics.then(topic, lambda: self._answer_all.answer_alone(answer, outcome, since))

        self._appender.listeners.append(done)

    def _header(self, born: BornHost, fields: Mapping[str, str]) -> tuple[Header, int]:
        """Return the header fields that all messages of a request share, and the flag of a single message."""
        get = fields.get
        words = (get("f"), get("j"), get("h"), get("d"), get("l"))
        sys_flag, reconsume_times, flag = self._read_numbers.get(words) or self._numbers(fields, words)
        try:
            born_timestamp = int(fields["g"])
        except (KeyError, ValueError):
            born_timestamp = -1
        if not 0 <= born_timestamp <= I64_MAX:
            born_timestamp = long(fields, "g")
        return (sys_flag | born.flags | self._store_flags, born_timestamp, reconsume_times), flag

    def _numbers(self, fields: Mapping[str, str], words: tuple[str | None, ...]) -> Numbers:
        """Return the small numbers of a header; all are checked as upstream, the unused ones too."""
        if "d" in fields:
            integer(fields, "d")
        if fields.get("l"):
            integer(fields, "l")
        sys_flag = integer(fields, "f") & ~(HOST_MASK | TRANSACTION_MASK)
        numbers = (sys_flag, integer(fields, "j", 0), integer(fields, "h"))
        if len(self._read_numbers) >= _NUMBERS_MAX:
            self._read_numbers.clear()
        if words:
            self._read_numbers[words] = numbers
        return numbers

    def _draft(
        self,
        target: SendTarget,
        born: BornHost,
        header: Header,
        flag: int,
        body: bytes | memoryview,
        properties: bytes,
    ) -> QueuedDraft:
        """Make one draft and check its limits; `properties` end with 0x02."""
        size = target.overhead + born.extra_size + self._store_extra + len(body) + len(properties)
        if len(properties) > PROPERTIES_LENGTH_MAX or size > self._record_max:
            raise self._record_too_large(len(properties), size)
        at = properties.rfind(TAGS)
        draft = QueuedDraft()
        draft.messages = 1
        draft.topic = target.topic
        draft.queue_id = target.queue_id
        draft.queue = target.queue
        draft.flag = flag
        draft.sys_flag, draft.born_timestamp, draft.reconsume_times = header
        draft.born_host = born.encoded
        draft.prepared_transaction_offset = 0
        draft.body = body
        draft.properties = properties
        draft.tags_code = tags_code_at(properties, at) if at >= 0 else 0
        draft.size = size
        draft.tally = target.tally
        return draft

    def _checked_target(self, fields: Mapping[str, str], version: int = TELLS_MAX_RECONSUME_TIMES) -> SendTarget:
        target = self._targets.find(fields)
        topic = fields["b"]
        if not topic.startswith(names.RETRY_PREFIX):
            return target
        group_name = topic.removeprefix(names.RETRY_PREFIX)
        group = self._metadata.group(group_name)
        limit = group.retry_max_times if group else 16
        if version >= TELLS_MAX_RECONSUME_TIMES:
            limit = integer(fields, "l", limit)
        if integer(fields, "j", 0) > limit or self._locks.is_locked(group_name):
            origin = (find_property(fields.get("i", "").encode(), b"RETRY_TOPIC") or b"").decode(errors="replace")
            known = origin if self._metadata.topic(origin) is not None else topic  # an unknown origin may be any text
            self._dead_letters.add((known, group_name))
            dead_letters = names.dead_letter_topic(group_name)
            self._metadata.topic_for_group(dead_letters, 1)
            return self._targets.target(dead_letters, 0)
        return target

    def _body_refused(self, size: int, what: str) -> Refusal:
        return Refusal(
            Cause.MESSAGE_ILLEGAL,
            f"the message is illegal, maybe msg body or properties length not matched. The {what} body has {size} "
            f"bytes, the limit is {self._body_max} (maxMessageSize); none is too few",
        )

    def _record_too_large(self, properties_size: int, size: int) -> Refusal:
        return Refusal(
            Cause.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"Properties have {properties_size} bytes, the limit is {PROPERTIES_LENGTH_MAX}; "
            f"the record has {size}, the limit is {self._record_max}",
        )


def _born_host(connection: Connection) -> BornHost:
    found: BornHost | None = connection.attributes.get("born_host")
    if found is None:
        found = connection.attributes["born_host"] = BornHost(connection)
    return found
