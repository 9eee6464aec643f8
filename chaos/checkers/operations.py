"""Judges every operation of a run: messages lost, stored twice, moved, invented, delivered early or out of order.

    sends       invoked, completed, outcome, place ---.
                                                       >-- Judge --> Findings
    deliveries  number, place, moment, member --------'

Sends may overlap: order is promised only where one send was acknowledged before the next began. A place is a queue, as
text, and an offset in it. The judge takes operations one by one, in the order of time, and keeps data that grows with
their number in files (`slots`): 40 bytes a message.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.checkers.queues import Queue
from chaos.checkers.slots import GrowingArray
from ledgermq.history import HistoryError, Op, Operation, Outcome

_EXAMPLES_MAX = 5
_EXCUSED_S = 60.0
_QUEUES_MAX = 0xFFFF
_OFFSETS_MAX = 1 << 20
_OUTCOMES = {Op.OK: 1, Op.FAIL: 2, Op.INFO: 3}
_OK, _FAIL, _INFO = _OUTCOMES.values()
_LATE_IN_KEY, _CONFIRMED = 1, 2


@dataclass(slots=True)
class CheckedSend:
    """One message that was given to a producer.

    Attributes:
        number: its sequence number.
        invoked_s, completed_s: when the call began and ended.
        outcome: `ok` acknowledged, `fail` certainly not stored, `info` unknown.
        queue, offset: where it was stored, according to the acknowledgement.
        attempts: number of the client's tries.
        due_s: time before which it must not be delivered.
    """

    number: int
    invoked_s: float
    completed_s: float = 0.0
    outcome: Outcome = Outcome.INFO
    queue: str = ""
    offset: int = -1
    attempts: int = 1
    due_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that a consumer was given; `number` is None if the body is not one that was sent."""

    number: int | None
    at_s: float
    queue: str
    offset: int
    member: str = ""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of a finished run; `examples` has the first few of each anomaly.

    Attributes:
        sent, acked, failed, unknown: sends by outcome.
        delivered: distinct messages that were delivered.
        lost: acknowledged, never delivered, and not in the log at the acknowledged place; or gone from there after the
            delivery.
        undelivered: acknowledged, never delivered, but still in the log, or not looked for.
        phantom: deliveries of a message that was never sent, or of other bytes than were sent.
        aborted: delivered, though the send was refused as not stored, or the transaction rolled back.
        overstored: further offsets of a message than its producer had tries.
        misplaced: delivered at another offset than the acknowledged one; and deliveries of another message from an
            offset that was delivered before.
        holes: offsets of a queue below the last delivered one that no consumer was given.
        reordered: acknowledged before another send to the same queue began, but stored after it.
        disordered: first deliveries of an offset after a later one of the same queue.
        late_in_key: first deliveries of a message after a later one of the same order key.
        early: delivered before the transaction was committed, or before the delay was over.
        commits: committed offsets that went back, or passed an offset that no consumer was given.
        repeated: redeliveries more than 60 s after the last fault and the last change of the group; of messages whose
            acknowledgement was confirmed, where consumers acknowledge single messages.
        stored_twice: further offsets of a message after retries of its producer.
        redelivered: further deliveries of one offset.
    """

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    delivered: int = 0
    lost: int = 0
    undelivered: int = 0
    phantom: int = 0
    aborted: int = 0
    overstored: int = 0
    misplaced: int = 0
    holes: int = 0
    reordered: int = 0
    disordered: int = 0
    late_in_key: int = 0
    early: int = 0
    commits: int = 0
    repeated: int = 0
    stored_twice: int = 0
    redelivered: int = 0
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def duplicates(self) -> int:
        """Number of deliveries of a message beyond its first."""
        return self.stored_twice + self.redelivered

    @property
    def is_sound(self) -> bool:
        """Whether no promise is broken. Duplicates are allowed: delivery is at least once."""
        return not any(getattr(self, name) for _, name, _ in PROMISES)


PROMISES = (
    ("L1", "lost", "no acknowledged message is lost"),
    ("L3", "phantom", "every delivered message was sent, byte for byte"),
    ("L4", "aborted", "nothing that was refused or rolled back was delivered"),
    ("L5", "overstored", "no message is stored more often than it was tried"),
    ("L6", "misplaced", "each message is at the offset that its answer named"),
    ("L7", "holes", "no offset of a queue was left out"),
    ("L8", "reordered", "a send that was acknowledged before another began is before it"),
    ("L10", "disordered", "deliveries of a queue rise"),
    ("L11", "commits", "committed offsets never go back, nor pass what was not delivered"),
    ("L12", "repeated", "nothing was delivered again without a reason"),
    ("L16", "early", "nothing was delivered before its time, or before its transaction was committed"),
    ("L16", "late_in_key", "messages of one key were delivered in their order"),
    ("L17", "undelivered", "the consumer has caught up"),
)
"""Code of `docs/chaos.md`, name of the count of broken ones in `RunCounts`, and words for people."""


@dataclass(slots=True)
class _Tally:
    """Counts and examples by the name of the anomaly."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, anomaly: str, example: str, count: int = 1) -> None:
        self.counts[anomaly] = self.counts.get(anomaly, 0) + count
        examples = self.examples.setdefault(anomaly, [])
        if len(examples) < _EXAMPLES_MAX:
            examples.append(example)


def missing(sends: Iterable[CheckedSend], deliveries: Iterable[Delivery]) -> list[CheckedSend]:
    """Return the acknowledged sends that were never delivered, in order."""
    seen = {delivery.number for delivery in deliveries}
    return [send for send in sends if send.outcome is Outcome.OK and send.number not in seen]


def judge(
    sends: Sequence[CheckedSend],
    deliveries: Sequence[Delivery],
    still_in_log: frozenset[int],
    gone: frozenset[int] = frozenset(),
) -> RunCounts:
    """Judge a finished run; `sends` by number, from 0, `deliveries` as they came. See `Judge.findings`."""
    operations = [Operation(Op.INVOKE, send.invoked_s, send.number) for send in sends]
    operations += [completion(send) for send in sends]
    operations += [delivered(delivery) for delivery in deliveries]
    judge = Judge()
    try:
        for operation in sorted(operations, key=lambda one: one.at_s):
            judge.feed(operation)
        return judge.findings(still_in_log, gone)
    finally:
        judge.close()


def completion(send: CheckedSend) -> Operation:
    """Return the operation with which a send ends."""
    op = Op(send.outcome.value)
    at_s = send.completed_s or send.invoked_s
    return Operation(op, at_s, send.number, send.queue, send.offset, send.attempts, send.due_s)


def delivered(delivery: Delivery) -> Operation:
    """Return the operation of a delivery."""
    queue, offset = delivery.queue, delivery.offset
    return Operation(Op.DELIVER, delivery.at_s, delivery.number, queue, offset, name=delivery.member)


class Judge:
    """Judges operations, which must come in the order of time.

    Memory grows with the open sends, the queues, the order keys and the gaps of queues, not with the messages.
    """

    def __init__(self) -> None:
        self._messages = GrowingArray("<BBBBHqdd")  # outcome, tries, copies, marks, queue, offset, due, first delivery
        self._queues: dict[str, Queue] = {}
        self._names: list[str] = []
        self._under_way: dict[int, tuple[float, str]] = {}
        self._keys: dict[str, int] = {}
        self._key_of: dict[int, str] = {}
        self._sent = self._delivered = 0
        self._tally = _Tally()
        self._excused_until_s = float("-inf")
        self._acks_single = self._commits_may_go_back = False
        self._steps = {
            Op.RUN: self._run, Op.INVOKE: self._invoke, Op.OK: self._complete, Op.FAIL: self._complete,
            Op.INFO: self._complete, Op.DELIVER: self._deliver, Op.ACK: self._ack, Op.SHARE: self._excuse,
            Op.COMMIT: self._commit, Op.FAULT: self._excuse,
        }  # fmt: skip

    def feed(self, operation: Operation) -> None:
        """Take the next operation.

        Raises:
            HistoryError: it contradicts the operations before.
            OSError: there is no room for temporary files.
        """
        self._steps[operation.op](operation)

    def close(self) -> None:
        """Close the temporary files."""
        self._messages.close()
        for queue in self._queues.values():
            queue.numbers.close()

    def findings(self, still_in_log: frozenset[int] = frozenset(), gone: frozenset[int] = frozenset()) -> RunCounts:
        """Return the counts, after the last operation, by one walk over all messages. Call it once.

        Args:
            still_in_log: acknowledged numbers that were not delivered, but found where the acknowledgement said, or not
                looked for.
            gone: numbers of delivered ones that were looked for there, and were not found.
        """
        outcomes = [0, 0, 0, 0]
        for number in range(self._sent):
            outcome, *rest = self._messages.get(number)
            outcomes[outcome] += 1
            self._judge_message(number, outcome, *rest, is_found=number in still_in_log)
        for number in sorted(gone):
            self._tally.note("lost", f"message {number}, delivered, then cut from the log")
        for name, queue in self._queues.items():
            for begin, end in queue.gaps:
                self._tally.note("holes", f"{name}: offsets {begin} to {end - 1}", end - begin)
        return RunCounts(
            sent=self._sent, acked=outcomes[_OK], failed=outcomes[_FAIL], unknown=outcomes[_INFO] + outcomes[0],
            delivered=self._delivered, examples=self._tally.examples, **self._tally.counts,
        )  # fmt: skip

    def _judge_message(
        self, number: int, outcome: int, tries: int, copies: int, marks: int, queue_id: int, offset: int, due_s: float,
        first_s: float, *, is_found: bool,
    ) -> None:  # fmt: skip
        if not copies:
            if outcome == _OK:
                anomaly = "undelivered" if is_found else "lost"
                self._tally.note(anomaly, f"message {number}, {self._where(queue_id, offset)}")
            return
        if outcome == _FAIL:
            self._tally.note("aborted", f"message {number}")
        if outcome == _OK and copies > tries:
            self._tally.note("overstored", f"message {number}: {copies} times, after {tries} tries")
        if outcome == _OK and offset >= 0 and self._queue(self._names[queue_id]).numbers.get(offset)[0] != number + 1:
            self._tally.note("misplaced", f"message {number}, {self._where(queue_id, offset)}")
        if first_s < due_s:
            self._tally.note("early", f"message {number} was delivered {due_s - first_s:.3f} s before its time")
        if marks & _LATE_IN_KEY and outcome == _OK:
            self._tally.note("late_in_key", f"message {number}")

    def _where(self, queue_id: int, offset: int) -> str:
        if offset < 0:
            return "acknowledged"
        name = self._names[queue_id]
        part = self._queue(name).part_of(offset)
        return f"acknowledged at {name} offset {offset} ({part} of what was delivered)"

    def _run(self, operation: Operation) -> None:
        self._acks_single = operation.name == "pop"
        self._commits_may_go_back = operation.queue != "raft"
        self._excuse(operation)

    def _excuse(self, operation: Operation) -> None:
        self._excused_until_s = operation.at_s + _EXCUSED_S

    def _invoke(self, operation: Operation) -> None:
        if operation.number != self._sent:
            raise HistoryError(f"send {operation.number} begins where {self._sent} is the next")
        self._messages.set(self._sent, 0, 0, 0, 0, 0, -1, 0.0, 0.0)
        self._under_way[self._sent] = operation.at_s, operation.name
        if operation.name:
            self._key_of[self._sent] = operation.name
        self._sent += 1

    def _complete(self, operation: Operation) -> None:
        number = operation.number
        if number is None or (begun := self._under_way.pop(number, None)) is None:
            raise HistoryError(f"send {number} ends, and is not under way")
        if operation.tries < 0:
            raise HistoryError(f"send {number} ends after {operation.tries} tries")
        invoked_s, _ = begun
        _, _, copies, marks, _, _, _, first_s = self._messages.get(number)
        queue_id = 0
        self._check_offset(operation)
        if operation.offset >= 0:
            queue_id = self._queue(operation.queue).index
        tries, outcome = min(operation.tries, 255), _OUTCOMES[operation.op]
        self._messages.set(number, outcome, tries, copies, marks, queue_id, operation.offset, operation.due_s, first_s)
        if outcome == _OK and operation.offset >= 0:
            oldest_s = next(iter(self._under_way.values()))[0] if self._under_way else operation.at_s
            before = self._queue(operation.queue).acknowledged(
                number, operation.offset, invoked_s, operation.at_s, oldest_s
            )
            # the first copy of a message that was stored twice may be at the acknowledged place
            if before is not None and operation.tries == 1:
                text = f"{operation.queue}: message {number} is before message {before}, which was first"
                self._tally.note("reordered", text)

    def _deliver(self, operation: Operation) -> None:
        number, queue = operation.number, self._queue(operation.queue)
        if number is None or not 0 <= number < self._sent:
            self._tally.note("phantom", f"{operation.queue} offset {operation.offset}")
            return
        outcome, tries, copies, marks, queue_id, offset, due_s, first_s = self._messages.get(number)
        if operation.offset < 0:  # a copy in a retry topic, since the message was not acknowledged in time
            self._repeat(operation, number, marks)
            return
        self._check_offset(operation)
        is_new, is_late = queue.delivered(operation.offset)
        if not is_new:
            if (before := queue.numbers.get(operation.offset)[0] - 1) != number:
                text = f"{operation.queue} offset {operation.offset} was message {before}, then message {number}"
                self._tally.note("misplaced", text)
            else:
                self._repeat(operation, number, marks)
            return
        queue.numbers.set(operation.offset, number + 1)
        if is_late and not self._acks_single:
            text = f"{operation.queue} offset {operation.offset} came after {queue.highest}"
            self._tally.note("disordered", text)
        if copies:
            self._tally.note("stored_twice", f"message {number}")
        else:
            self._delivered += 1
            first_s = operation.at_s
            marks |= self._mark_of_key(number)
        self._messages.set(number, outcome, tries, min(copies + 1, 255), marks, queue_id, offset, due_s, first_s)

    def _check_offset(self, operation: Operation) -> None:
        """Refuse an offset beyond the number of sends: files grow with offsets, and must not fill the disk."""
        if operation.offset > _OFFSETS_MAX + 16 * self._sent:
            raise HistoryError(f"{operation.queue} offset {operation.offset} after {self._sent:,} sends")

    def _mark_of_key(self, number: int) -> int:
        key = self._key_of.pop(number, None)
        if key is None:
            return 0
        highest = self._keys.get(key, -1)
        self._keys[key] = max(highest, number)
        return _LATE_IN_KEY if number < highest else 0

    def _repeat(self, operation: Operation, number: int, marks: int) -> None:
        self._tally.note("redelivered", f"message {number}")
        has_reason = self._acks_single and not marks & _CONFIRMED
        if operation.at_s > self._excused_until_s and not has_reason:
            self._tally.note("repeated", f"message {number} from {operation.queue} offset {operation.offset}")

    def _ack(self, operation: Operation) -> None:
        if operation.number is None or not 0 <= operation.number < self._sent:
            raise HistoryError(f"message {operation.number} is acknowledged, and was never sent")
        outcome, tries, copies, marks, *rest = self._messages.get(operation.number)
        self._messages.set(operation.number, outcome, tries, copies, marks | _CONFIRMED, *rest)

    def _commit(self, operation: Operation) -> None:
        queue = self._queue(operation.queue)
        if operation.offset > queue.first_missing:
            text = f"{operation.queue}: {operation.offset}, and offset {queue.first_missing} was not delivered"
            self._tally.note("commits", text)
        may_go_back = self._commits_may_go_back and operation.at_s <= self._excused_until_s
        if operation.offset < queue.committed and not may_go_back:
            self._tally.note("commits", f"{operation.queue}: {operation.offset} after {queue.committed}")
        queue.committed = operation.offset

    def _queue(self, name: str) -> Queue:
        queue = self._queues.get(name)
        if queue is None:
            if len(self._names) >= _QUEUES_MAX:
                raise HistoryError(f"there are more than {_QUEUES_MAX:,} queues")
            queue = self._queues[name] = Queue(len(self._names))
            self._names.append(name)
        return queue
