"""Every send and every delivery of a run, judged: what was lost, stored twice, moved, made up or put out of order.

    sends       invoked, completed, outcome, place ---.
                                                       >-- judge --> Findings
    deliveries  number, place, moment, intact --------'

Unlike `delivery`, sends may overlap: order is owed only where one send was acknowledged before the next began. A place
is a queue, as text, and an offset in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.history import Outcome

_EXAMPLES_MAX = 5


@dataclass(slots=True)
class Send:
    """One message that was given to a producer.

    Attributes:
        number: its sequence number.
        invoked_s, completed_s: moments of the call and of its end.
        outcome: `ok` acknowledged, `fail` certainly not stored, `info` unknown.
        queue, offset: where it was stored, by the acknowledgement.
        attempts: tries of the client.
    """

    number: int
    invoked_s: float
    completed_s: float = 0.0
    outcome: Outcome = Outcome.INFO
    queue: str = ""
    offset: int = -1
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that a consumer was given; `number` is None where the body is none of ours, or damaged."""

    number: int | None
    at_s: float
    queue: str
    offset: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of a finished run; `examples` names the first few of each anomaly.

    Attributes:
        sent, acked, failed, unknown: sends by outcome.
        delivered: distinct messages that were delivered.
        lost: acknowledged, never delivered, and not in the log where the acknowledgement said; or gone from there after
            the delivery.
        undelivered: acknowledged, never delivered, but still in the log.
        phantom: deliveries of a message that was never sent, or of other bytes than were sent.
        aborted: delivered, though the send was refused as not stored.
        misplaced: delivered, but not at the offset that the acknowledgement named; and deliveries of another message
            from an offset that was delivered before.
        reordered: acknowledged before another send to the same queue began, but stored after it; and first deliveries
            of an offset after a later one of the same queue.
        stored_twice: further offsets of a message, after a retry whose first try had been stored.
        redelivered: further deliveries of one offset.
    """

    sent: int
    acked: int
    failed: int
    unknown: int
    delivered: int
    lost: int
    undelivered: int
    phantom: int
    aborted: int
    misplaced: int
    reordered: int
    stored_twice: int
    redelivered: int
    examples: Mapping[str, Sequence[str]]

    @property
    def duplicates(self) -> int:
        """Deliveries of a message beyond its first."""
        return self.stored_twice + self.redelivered

    @property
    def is_sound(self) -> bool:
        """No promise is broken. Duplicates are allowed: delivery is at least once."""
        return not (self.lost or self.undelivered or self.phantom or self.aborted or self.misplaced or self.reordered)


@dataclass(slots=True)
class _Tally:
    """Counts and examples by the name of the anomaly."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, anomaly: str, example: str) -> None:
        self.counts[anomaly] = self.counts.get(anomaly, 0) + 1
        examples = self.examples.setdefault(anomaly, [])
        if len(examples) < _EXAMPLES_MAX:
            examples.append(example)


def missing(sends: Iterable[Send], deliveries: Iterable[Delivery]) -> list[Send]:
    """Return the acknowledged sends that were never delivered."""
    seen = {delivery.number for delivery in deliveries}
    return [send for send in sends if send.outcome is Outcome.OK and send.number not in seen]


def judge(
    sends: Sequence[Send],
    deliveries: Sequence[Delivery],
    still_in_log: frozenset[int],
    gone: frozenset[int] = frozenset(),
) -> Findings:
    """Judge a run in O(n log n).

    Args:
        sends: by number, from 0.
        deliveries: in the order in which they came.
        still_in_log: of the `missing` ones, the numbers that were found in the log where the acknowledgement said.
        gone: numbers of delivered ones that were looked for there, and were not found.
    """
    tally = _Tally()
    places = _places(sends, deliveries, tally)
    for send in missing(sends, deliveries):
        anomaly = "undelivered" if send.number in still_in_log else "lost"
        tally.note(anomaly, f"message {send.number}, acknowledged at {send.queue} offset {send.offset}")
    for number in sorted(gone):
        tally.note("lost", f"message {number}, delivered, then cut from {sends[number].queue}")
    _check_places(sends, places, tally)
    _check_order_of_sends(sends, tally)
    outcomes = [send.outcome for send in sends]
    counts = tally.counts
    return Findings(
        sent=len(sends),
        acked=outcomes.count(Outcome.OK),
        failed=outcomes.count(Outcome.FAIL),
        unknown=outcomes.count(Outcome.INFO),
        delivered=len(places),
        lost=counts.get("lost", 0),
        undelivered=counts.get("undelivered", 0),
        phantom=counts.get("phantom", 0),
        aborted=counts.get("aborted", 0),
        misplaced=counts.get("misplaced", 0),
        reordered=counts.get("reordered", 0),
        stored_twice=counts.get("stored_twice", 0),
        redelivered=counts.get("redelivered", 0),
        examples=tally.examples,
    )


def _places(sends: Sequence[Send], deliveries: Sequence[Delivery], tally: _Tally) -> dict[int, set[tuple[str, int]]]:
    """Return each delivered number's places; note repeats, steps back and what was never sent."""
    places: dict[int, set[tuple[str, int]]] = {}
    seen: dict[tuple[str, int], int] = {}
    highest: dict[str, int] = {}
    for delivery in deliveries:
        place = (delivery.queue, delivery.offset)
        if delivery.number is None or not 0 <= delivery.number < len(sends):
            tally.note("phantom", f"{delivery.queue} offset {delivery.offset}")
            continue
        if (before := seen.get(place)) is not None:
            if before == delivery.number:
                tally.note("redelivered", f"message {delivery.number}")
            else:
                text = f"{delivery.queue} offset {delivery.offset} was message {before}, then message {delivery.number}"
                tally.note("misplaced", text)
            continue
        seen[place] = delivery.number
        if delivery.offset < highest.get(delivery.queue, -1):
            tally.note("reordered", f"{delivery.queue} offset {delivery.offset} came after {highest[delivery.queue]}")
        highest[delivery.queue] = max(highest.get(delivery.queue, -1), delivery.offset)
        mine = places.setdefault(delivery.number, set())
        if mine:
            tally.note("stored_twice", f"message {delivery.number}")
        mine.add(place)
    return places


def _check_places(sends: Sequence[Send], places: Mapping[int, set[tuple[str, int]]], tally: _Tally) -> None:
    for number, mine in places.items():
        send = sends[number]
        if send.outcome is Outcome.OK and (send.queue, send.offset) not in mine:
            tally.note("misplaced", f"message {number}, acknowledged at {send.queue} offset {send.offset}")
        if send.outcome is Outcome.FAIL:
            tally.note("aborted", f"message {number}")


def _check_order_of_sends(sends: Sequence[Send], tally: _Tally) -> None:
    """Sweep each queue in the order of calls, with the highest offset that was acknowledged before."""
    queues: dict[str, list[Send]] = {}
    for send in sends:
        if send.outcome is Outcome.OK:
            queues.setdefault(send.queue, []).append(send)
    for queue, mine in queues.items():
        ended = sorted(mine, key=lambda send: send.completed_s)
        next_ended, highest, holder = 0, -1, -1
        for send in sorted(mine, key=lambda send: send.invoked_s):
            while ended[next_ended].completed_s < send.invoked_s:
                if ended[next_ended].offset > highest:
                    highest, holder = ended[next_ended].offset, ended[next_ended].number
                next_ended += 1
            # a message that was stored twice may have its first copy where it belongs
            if send.offset < highest and send.attempts == 1:
                tally.note("reordered", f"{queue}: message {send.number} is before message {holder}, which was first")
