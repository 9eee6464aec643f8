"""Answers to senders: one pass over a committed batch, one joined write per connection.

Most answers differ only in five numbers, so their JSON is one `bytes %` each (0.4 us; building and dumping a dict takes
twice as long). Binary headers and refusals are rare and use the general code.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from broker.counting.calls import STORED_CODES, CallLatencies, as_senders_see, code_of
from ledgermq.message.ids import offset_message_id
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.log.drafts import QueuedDraft
from store.replicated_log import AppendReceipt

Answer = tuple[Connection, Command, QueuedDraft, bytes]
"""The sender's connection and request, what is placed for it, and its UNIQ_KEY."""


class StoredPlace(NamedTuple):
    """Where a message is stored, and in which generation it was placed there."""

    physical_offset: int
    queue_id: int
    queue_offset: int
    generation: int


_LENGTHS = struct.Struct(">II").pack
_BATCH_TAIL = (
    b'%b%b","queueId":"%d","queueOffset":"%d","transactionId":"%b"},"flag":1,"language":"PYTHON",'
    b'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
)
_TAIL = _BATCH_TAIL.replace(b"%b%b", b"%b%016X", 1)

REGION = "DefaultRegion"


class SendAnswers:
    """Writes the answers of a batch when its outcome is known.

    Args:
        store_host: encoded address and port under which clients can view the message.
        region, trace_on: fields of every answer.
        calls: gets the times that senders waited.

    Attributes:
        messages: number of requests answered with a place.
        refusals: number of requests refused after they were put into a batch, by the cause's slug.
    """

    def __init__(self, store_host: bytes, calls: CallLatencies, region: str = REGION, trace_on: bool = True) -> None:
        self._store_host = store_host
        self._calls = calls
        self._marks = {"MSG_REGION": region, "TRACE_ON": str(trace_on).lower()}
        self._beginning = b'{"code":0,"extFields":' + orjson.dumps(self._marks).removesuffix(b"}")
        self._host_hex = store_host.hex().upper().encode()
        self.messages = 0
        self.refusals: Counter[str] = Counter()

    def __call__(self, answers: Sequence[Answer], outcome: AppendReceipt | Refusal) -> None:
        """Answer all senders in `answers`."""
        outcome = as_senders_see(outcome)
        if isinstance(outcome, Refusal):
            self._refuse(answers, outcome)
        else:
            self._accept(answers, outcome)

    def answer_alone(self, answer: Answer, outcome: AppendReceipt | Refusal, since: float) -> None:
        """Answer one sender that has waited since `since` (seconds of the monotonic clock)."""
        self([answer], outcome)
        self._calls.sent(answer[1], code_of(outcome), since)

    def answer_parked(
        self, answer: Answer, outcome: AppendReceipt | Refusal, since: float, more: dict[str, str]
    ) -> None:
        """Answer the sender of a message that waits in a system topic; `more` replaces or adds fields."""
        connection, command, draft, key = answer
        outcome = as_senders_see(outcome)
        if not isinstance(outcome, Refusal):
            self._answer_at_length(connection, command, draft, key, outcome, more)
            self.messages += 1
        elif outcome.code in STORED_CODES:
            self.refusals[outcome.cause.slug] += 1
            fields = self._fields(draft, key) | more
            connection.respond(command, outcome.code, fields, remark=outcome.remark)
        else:
            self._refuse([answer], outcome)
        self._calls.sent(command, code_of(outcome), since)

    def answer_stored(
        self, connection: Connection, command: Command, place: StoredPlace, key: bytes, since: float
    ) -> None:
        """Answer the sender of a message that was found in the log, where it is confirmed; `since` as above.

        How many copies there were when it was confirmed is not known here, so the answer does not say it.
        """
        fields = self._fields_at([place.physical_offset], place.queue_id, place.queue_offset, key)
        connection.respond(command, ResponseCode.SUCCESS, fields | {"term": str(place.generation)})
        self.messages += 1
        self._calls.sent(command, ResponseCode.SUCCESS, since)

    def count_refused(self, command: Command, refusal: Refusal, since: float) -> None:
        """Count the refusal of a message that was placed; its sender is answered elsewhere. `since` as above."""
        self.refusals[refusal.cause.slug] += 1
        self._calls.appends.failed += 1
        self._calls.sent(command, refusal.code, since)

    def _accept(self, answers: Sequence[Answer], receipt: AppendReceipt) -> None:
        head = b'%b,"copies":"%d","durableCopies":"%d","term":"%d","msgId":"%b' % (
            self._beginning,
            receipt.copies,
            receipt.durable_copies,
            receipt.generation,
            self._host_hex,
        )
        waiting: dict[Connection, list[bytes]] = {}
        last: Connection | None = None
        parts: list[bytes] = []
        for connection, command, draft, key in answers:
            if connection is not last:
                last = connection
                parts = waiting.setdefault(connection, [])
            if command.header_type != 0 or not key.isalnum():
                self._answer_at_length(connection, command, draft, key, receipt)
            elif draft.messages == 1:
                text = _TAIL % (
                    head,
                    draft.physical_offset,
                    draft.queue_id,
                    draft.queue_offset,
                    key,
                    command.opaque,
                )
                size = len(text)
                parts += (_LENGTHS(size + 4, size), text)
            else:
                text = self._batch_answer(head, command, draft, key)
                parts += (_LENGTHS(len(text) + 4, len(text)), text)
        self.messages += len(answers)
        for connection, parts in waiting.items():
            if parts:
                connection.answer(parts, len(parts) // 2)

    def _batch_answer(self, head: bytes, command: Command, batch: QueuedDraft, key: bytes) -> bytes:
        """Return the answer to a batch; `head` ends with the store host of the first message's id."""
        offsets = batch.physical_offsets()
        more = (b",%b%%016X" % self._host_hex) * (len(offsets) - 1)
        ids = (b"%016X" + more) % tuple(offsets)
        return _BATCH_TAIL % (head, ids, batch.queue_id, batch.first_queue_offset(), key, command.opaque)

    def _answer_at_length(
        self,
        connection: Connection,
        command: Command,
        draft: QueuedDraft,
        key: bytes,
        receipt: AppendReceipt,
        more: dict[str, str] | None = None,
    ) -> None:
        promise = {
            "copies": str(receipt.copies),
            "durableCopies": str(receipt.durable_copies),
            "term": str(receipt.generation),
        }
        connection.respond(command, ResponseCode.SUCCESS, self._fields(draft, key) | promise | (more or {}))

    def _fields(self, draft: QueuedDraft, key: bytes) -> dict[str, str]:
        return self._fields_at(draft.physical_offsets(), draft.queue_id, draft.first_queue_offset(), key)

    def _fields_at(self, offsets: Iterable[int], queue_id: int, queue_offset: int, key: bytes) -> dict[str, str]:
        return {
            **self._marks,
            "msgId": ",".join(offset_message_id(self._store_host, offset) for offset in offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": key.decode(errors="replace"),
        }

    def _refuse(self, answers: Sequence[Answer], refusal: Refusal) -> None:
        self.refusals[refusal.cause.slug] += len(answers)
        is_stored = refusal.code in STORED_CODES
        for connection, command, draft, key in answers:
            if is_stored:
                connection.respond(command, refusal.code, self._fields(draft, key), remark=refusal.remark)
            else:
                connection.refuse(command, refusal)
