"""All counters of a broker, which are a subsystem of it."""

import time
from collections.abc import Callable, Iterable, Sequence

from broker.counting.arrivals import SETTLE_SECONDS, Arrivals
from broker.counting.calls import STORED_CODES, TICKS_A_SECOND, CallLatencies, Sender, code_of
from broker.counting.departures import Departures
from broker.counting.events import Events
from broker.counting.statistics import SLICE_SECONDS, Statistics
from broker.subsystem import Subsystem
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.refusal import Refusal
from store.log.drafts import QueuedDraft
from store.replicated_log import AppendReceipt


class Counting(Subsystem):
    """Counters of one broker; as a subsystem, sums them up and drops those of removed topics and groups.

    Args:
        cluster: the cluster's name.
        limit: largest number of label sets of one metric.
        clock: seconds, monotonic.
    """

    def __init__(self, cluster: str, limit: int, clock: Callable[[], float]) -> None:
        self.statistics = Statistics(clock)
        self.arrivals = Arrivals(self.statistics, cluster, limit)
        self.statistics.before_reading = self.arrivals.settle
        self.departures = Departures(self.statistics, cluster, limit)
        self.calls = CallLatencies()
        self.events = Events(limit)

    def settled(
        self,
        drafts: Sequence[QueuedDraft],
        answers: Sequence[Sender],
        outcome: AppendReceipt | Refusal,
        since: float,
    ) -> None:
        """Count a batch that began at `since` (seconds, monotonic) and has its outcome. The hot path."""
        calls = self.calls
        ticks = int((time.monotonic() - since) * TICKS_A_SECOND)
        if isinstance(outcome, Refusal):
            code = code_of(outcome)
            calls.add_senders(answers, code, ticks)
            if code not in STORED_CODES:
                calls.appends.failed += sum([draft.messages for draft in drafts])
                return
        elif calls.by_code:
            calls.add_senders(answers, ResponseCode.SUCCESS, ticks)
        else:
            calls.senders[ticks] = calls.senders.get(ticks, 0) + len(answers)
        messages = len(drafts) + self.arrivals.count(drafts)
        calls.appends.waiting[ticks] = calls.appends.waiting.get(ticks, 0) + messages

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Sample rates and sum up counts."""
        return (SLICE_SECONDS, self.statistics.sample), (SETTLE_SECONDS, self.tick)

    def tick(self) -> None:
        """Sum up what was noted; called every `SETTLE_SECONDS`."""
        self.arrivals.settle()
        self.calls.settle()

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that was removed."""
        self.arrivals.forget_topic(topic)
        self.departures.forget_topic(topic)
        self.events.forget_topic(topic)
        self.statistics.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Drop the counts of a consumer group that was removed."""
        self.departures.forget_group(group)
        self.events.forget_group(group)
        self.statistics.forget_group(group)
