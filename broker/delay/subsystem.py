"""Delay levels and timers, and the record of deliveries, which transactions use, too.

Deliveries <- DelayService, TimerService        Parking <- sends, TimerRequests
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries
from broker.delay.levels import DelayService
from broker.delay.parking import Parking
from broker.delay.timer_drafts import TimerDrafts
from broker.delay.timer_requests import TimerRequests
from broker.delay.timer_service import TimerService
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode
from store.queues.consume_queue import ConsumeQueue
from store.timer.timer_index import TimerIndex


class DelaySubsystem(Subsystem):
    """Parks messages, and delivers them when they are due.

    Args:
        timer_index: as loaded from disk.
    """

    def __init__(self, context: BrokerContext, timer_index: TimerIndex) -> None:
        config, metadata, store = context.config, context.metadata, context.store
        targets, drafts, clock_ms = context.targets, context.drafts, context.clock_ms
        self._flush_seconds = config.timer_flush_interval_ms / 1000
        self.deliveries = deliveries = Deliveries(
            store.log,
            context.state,
            context.appender,
            context.appender.propose,
            context.loop,
            context.counting.arrivals,
        )
        self.parking = Parking(config, targets, timer_index, clock_ms)
        self.levels = DelayService(context, deliveries)
        timer_drafts = TimerDrafts(metadata, store, targets, drafts)
        self.timer = TimerService(context, timer_index, deliveries, timer_drafts)
        self._timer_requests = TimerRequests(context, self.timer, self.parking)

    def requests(self) -> Mapping[int, Serve]:
        """See `Subsystem`."""
        code = RequestCode
        return {
            code.GET_ALL_DELAY_OFFSET: self.levels.all_offsets,
            code.RECALL_MESSAGE: self._timer_requests.recall,
            code.GET_TIMER_CHECK_POINT: self._timer_requests.check_point,
            code.GET_TIMER_METRICS: self._timer_requests.metrics,
        }

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Take over the leader's progress into the timer index, at the interval of its flushes."""
        return ((self._flush_seconds, self.timer.sync),)

    def on_parked(self, queues: Collection[ConsumeQueue]) -> None:
        """Handle that some of these queues, in which messages wait, have new messages."""
        self.levels.wake(queues)
        self.timer.follower.wake(queues)

    def resume(self) -> None:
        """Begin to deliver."""
        self.levels.resume()
        self.timer.resume()

    def stand_in(self) -> None:
        """Begin to deliver elsewhere."""
        self.resume()

    def follow(self) -> None:
        """Stop delivering, since only the leader delivers."""
        self.stop()

    def stop(self) -> None:
        """Stop delivering."""
        self.levels.stop()
        self.timer.stop()

    async def drain(self) -> None:
        """Wait until the progress of all deliveries, transactions included, is in the log or refused."""
        await self.deliveries.drain()

    def figures(self) -> dict[str, str]:
        """Return the rows of GET_BROKER_RUNTIME_INFO about timers and delay levels."""
        return self.timer.figures() | self.levels.figures()
