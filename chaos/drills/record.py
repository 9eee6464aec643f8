"""The observations of a run of drills: sends, deliveries, samples, injections. Times are monotonic seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.checkers.operations import CheckedSend, Delivery, completion, delivered
from chaos.checkers.timing import percentile
from chaos.drills.catalogue import Drill, Step
from chaos.fabric.contract import ClusterView, Verb
from ledgermq.history import Op, Operation, Outcome


@dataclass(frozen=True, slots=True)
class Event:
    """A step that was carried out: when it began and ended, and the proof of its effect."""

    begin_s: float
    end_s: float
    step: Step
    proof: str


@dataclass(slots=True)
class Injection:
    """One drill: from its first fault to its last repair.

    Attributes:
        leader_before, leader_after: names by the routes; None without a leader.
        hold_s: intended length of the fault in seconds.
        trouble: why the fault was not injected or not repaired; empty if all steps took effect.
    """

    drill: Drill
    begin_s: float
    leader_before: str | None = None
    end_s: float = 0.0
    leader_after: str | None = None
    events: list[Event] = field(default_factory=list)
    trouble: str = ""
    hold_s: float = 0.0

    def stalls(self) -> list[tuple[float, float]]:
        """Return for each pause of a node its earliest begin and its latest end."""
        began: dict[tuple[str, ...], float] = {}
        stalls = []
        for event in self.events:
            if event.step.verb is Verb.PAUSE:
                began[event.step.words] = event.begin_s
            elif event.step.verb is Verb.RESUME and event.step.words in began:
                stalls.append((began.pop(event.step.words), event.end_s))
        return stalls


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster by its routes at one moment; `view` is None if nobody answered, `term` if unknown."""

    at_s: float
    view: ClusterView | None
    term: int | None


@dataclass(frozen=True, slots=True)
class Second:
    """The figures of the live line, of the last second unless noted otherwise.

    Attributes:
        acked: number of acknowledgements.
        p99_ms: 99th percentile of their latency.
        waiting: sends without an answer now.
        lag: acknowledged messages that are not delivered yet.
        lost: undelivered acknowledged messages of whose queue later ones were delivered.
    """

    acked: int
    p99_ms: float
    waiting: int
    lag: int
    lost: int


class DrillRecord:
    """Collects the observations of a run.

    Args:
        began_s: when the run began.
        tell: called with each operation, in the order of time.

    Attributes:
        acks: the acknowledged sends, in the order of their acknowledgements.
        term: Raft term of the last acknowledgement that had one.
        troubles: what was not looked for in the logs in the end, and why.
        unread_count: number of acknowledged messages that were neither delivered nor looked for.
        steady_s: when acknowledgements first came steadily; earlier latencies include the first connections.
    """

    def __init__(self, began_s: float, tell: Callable[[Operation], None] = lambda _: None) -> None:
        self.began_s = self.steady_s = began_s
        self.tell = tell
        self.sends: list[CheckedSend] = []
        self.deliveries: list[Delivery] = []
        self.samples: list[Sample] = []
        self.injections: list[Injection] = []
        self.acks: list[CheckedSend] = []
        self.term: int | None = None
        self.troubles: list[str] = []
        self.unread_count = 0
        self._undelivered: dict[int, CheckedSend] = {}
        self._delivered: set[int] = set()
        self._highest: dict[str, int] = {}
        self._ended = 0

    def invoked(self, now_s: float, key: str = "") -> CheckedSend:
        """Record that a new message is given to the producer; `key` is its order key. Return its send."""
        send = CheckedSend(len(self.sends), now_s)
        self.sends.append(send)
        self.tell(Operation(Op.INVOKE, now_s, send.number, name=key))
        return send

    def acknowledged(self, send: CheckedSend, now_s: float, queue: str, offset: int, attempts: int) -> None:
        """Record the acknowledgement of a send."""
        send.completed_s, send.outcome = now_s, Outcome.OK
        send.queue, send.offset, send.attempts = queue, offset, attempts
        self._ended += 1
        self.tell(completion(send))
        self.acks.append(send)
        if send.number not in self._delivered:
            self._undelivered[send.number] = send

    def failed(self, send: CheckedSend, now_s: float, outcome: Outcome) -> None:
        """Record that the producer gave up; `outcome` is `fail` or `info`."""
        send.completed_s, send.outcome = now_s, outcome
        self._ended += 1
        self.tell(completion(send))

    def delivered(self, delivery: Delivery) -> None:
        """Record a delivery."""
        self.tell(delivered(delivery))
        self.deliveries.append(delivery)
        self._highest[delivery.queue] = max(self._highest.get(delivery.queue, -1), delivery.offset)
        if delivery.number is not None:
            self._delivered.add(delivery.number)
            self._undelivered.pop(delivery.number, None)

    @property
    def undelivered_count(self) -> int:
        """Number of acknowledged messages that are not delivered yet."""
        return len(self._undelivered)

    @property
    def delivered_count(self) -> int:
        """Number of distinct messages delivered so far."""
        return len(self._delivered)

    @property
    def waiting_count(self) -> int:
        """Number of sends without an answer."""
        return len(self.sends) - self._ended

    def second(self, now_s: float) -> Second:
        """Return the figures of the second before `now_s`."""
        recent: list[float] = []
        for send in reversed(self.acks):
            if send.completed_s < now_s - 1.0:
                break
            recent.append(1000 * (send.completed_s - send.invoked_s))
        passed = sum(send.offset < self._highest.get(send.queue, -1) for send in self._undelivered.values())
        return Second(len(recent), percentile(recent, 99), self.waiting_count, len(self._undelivered), passed)

    def ack_times_s(self) -> Sequence[float]:
        """Return the times of acknowledgements, rising."""
        return [send.completed_s for send in self.acks]

    def delivery_times_s(self) -> Sequence[float]:
        """Return the times of deliveries, rising."""
        return [delivery.at_s for delivery in self.deliveries]
