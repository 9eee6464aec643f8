"""Delivery: what a producer was promised against what a consumer was given, message by message.

    acknowledged(3, queue 1, offset 7)        delivered(3, queue 1, offset 7, body)
                       '---- lost?  elsewhere?  twice?  out of order? ----'

Messages carry a sequence number from 0, dealt to queues so that numbers rise within each queue.
"""

import hashlib
from dataclasses import dataclass, field

_EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Counts of a finished run; `examples` names the first few messages of each anomaly.

    Attributes:
        sent: distinct messages given to the producer.
        acked: distinct messages acknowledged.
        delivered: distinct messages the consumer got.
        lost: acknowledged, never delivered.
        duplicates: deliveries of a message beyond its first; `stored_twice` of them lie at another queue offset
            (a retry after a lost answer), the rest are redeliveries of one stored message.
        stored_twice: see `duplicates`.
        out_of_order: first deliveries in a queue that came after a later message of that queue, by offset or by number.
        misplaced: delivered, but not at the queue offset that the acknowledgement named.
    """

    sent: int
    acked: int
    delivered: int
    lost: int
    duplicates: int
    stored_twice: int
    out_of_order: int
    misplaced: int
    examples: dict[str, list[int]]

    @property
    def is_sound(self) -> bool:
        """Everything was acknowledged and delivered, in order. Duplicates are allowed: delivery is at least once."""
        everything = self.sent == self.acked == self.delivered
        return everything and not (self.lost or self.out_of_order or self.misplaced)


@dataclass(slots=True)
class _Queue:
    """What was seen of one queue: the highest number and offset, and which number lies at each offset."""

    highest_sequence: int = -1
    highest_offset: int = -1
    by_offset: dict[int, int] = field(default_factory=dict)


class DeliveryHistory:
    """Collects a run as it happens; `report()` judges it at any moment.

    Args:
        count: messages that will be sent, numbered `[0, count)`.
    """

    def __init__(self, count: int) -> None:
        self.bodies: list[bytes | None] = [None] * count
        self._acked: dict[int, tuple[int, int]] = {}
        self._queues: dict[int, _Queue] = {}
        self._duplicates = self._stored_twice = self._delivered = 0
        self._examples: dict[str, list[int]] = {}
        self._out_of_order = 0

    @property
    def acked_count(self) -> int:
        return len(self._acked)

    @property
    def delivered_count(self) -> int:
        """Distinct messages delivered so far."""
        return self._delivered

    @property
    def undelivered_count(self) -> int:
        """Acknowledged messages still to be delivered."""
        return sum(1 for sequence in self._acked if self.bodies[sequence] is None)

    def acknowledged(self, sequence: int, queue_id: int, queue_offset: int) -> None:
        """The broker acknowledged message `sequence` as stored at that place."""
        self._acked[sequence] = (queue_id, queue_offset)

    def delivered(self, sequence: int, queue_id: int, queue_offset: int, body: bytes) -> None:
        """The consumer was given message `sequence`, which lay at that place.

        Raises:
            ValueError: a number that was never sent.
        """
        if not 0 <= sequence < len(self.bodies):
            raise ValueError(f"message {sequence} was delivered; only [0, {len(self.bodies)}) were sent")
        queue = self._queues.setdefault(queue_id, _Queue())
        stored = queue.by_offset.setdefault(queue_offset, sequence)
        if self.bodies[sequence] is not None:
            self._count_duplicate(sequence, queue_offset, queue, stored)
            return
        self.bodies[sequence] = body
        self._delivered += 1
        if sequence < queue.highest_sequence or queue_offset < queue.highest_offset:
            self._out_of_order += 1
            self._note("out_of_order", sequence)
        queue.highest_sequence = max(queue.highest_sequence, sequence)
        queue.highest_offset = max(queue.highest_offset, queue_offset)

    def sha256(self) -> str:
        """Digest of the delivered bodies in the order of their numbers; what is missing adds nothing."""
        digest = hashlib.sha256()
        for body in self.bodies:
            if body is not None:
                digest.update(body)
        return digest.hexdigest()

    def report(self) -> DeliveryReport:
        """Judge what was collected so far."""
        examples = {name: list(numbers) for name, numbers in self._examples.items()}
        lost = [sequence for sequence in self._acked if self.bodies[sequence] is None]
        misplaced = [
            sequence
            for sequence, (queue_id, offset) in self._acked.items()
            if self.bodies[sequence] is not None and self._at(queue_id, offset) != sequence
        ]
        for name, numbers in (("lost", lost), ("misplaced", misplaced)):
            if numbers:
                examples[name] = numbers[:_EXAMPLES_MAX]
        return DeliveryReport(
            sent=len(self.bodies),
            acked=len(self._acked),
            delivered=self._delivered,
            lost=len(lost),
            duplicates=self._duplicates,
            stored_twice=self._stored_twice,
            out_of_order=self._out_of_order,
            misplaced=len(misplaced),
            examples=examples,
        )

    def _count_duplicate(self, sequence: int, queue_offset: int, queue: _Queue, stored: int) -> None:
        self._duplicates += 1
        if queue_offset > queue.highest_offset:
            self._stored_twice += 1
        queue.highest_offset = max(queue.highest_offset, queue_offset)
        if stored != sequence:
            self._note("offset_reused", sequence)

    def _at(self, queue_id: int, queue_offset: int) -> int | None:
        queue = self._queues.get(queue_id)
        return queue.by_offset.get(queue_offset) if queue else None

    def _note(self, anomaly: str, sequence: int) -> None:
        examples = self._examples.setdefault(anomaly, [])
        if len(examples) < _EXAMPLES_MAX:
            examples.append(sequence)
