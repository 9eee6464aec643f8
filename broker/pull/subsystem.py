"""The subsystem of reading by pull: pulls, held pulls, cold data, queries by key."""

from collections.abc import Callable, Collection, Iterable, Mapping

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.groups.locks import GroupLocks
from broker.pull.cold_data import PERIOD_SECONDS, ColdReads
from broker.pull.held_pulls import SWEEP_SECONDS, HeldPulls
from broker.pull.processor import PullProcessor
from broker.pull.query import QueryRequests
from broker.pull.spread import LOOK_SECONDS, ReadSpread
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode
from store.queues.consume_queue import ConsumeQueue


class PullSubsystem(Subsystem):
    """Everything that reads messages for consumers, except POP."""

    def __init__(self, context: BrokerContext, clients: ClientTable, locks: GroupLocks) -> None:
        config, store, clock = context.config, context.store, context.loop.time
        self._queues = store.queues
        self.held = HeldPulls(clock, context.loop.call_later)
        self.cold = ColdReads(context, clients)
        self.spread = ReadSpread(config, context.role, store.log, clock, self.held.release, self.held.wake_all)
        self.processor = PullProcessor(context, clients, locks, self.held, self.cold, self.spread)
        self.query = QueryRequests(context)
        self._throttled = context.throttled

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        code, cold = RequestCode, self.cold
        return {
            code.PULL_MESSAGE: self._throttled.guard(self.processor.pull),
            code.LITE_PULL_MESSAGE: self._throttled.guard(self.processor.pull),
            code.QUERY_MESSAGE: self.query.query,
            code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: cold.set_thresholds,
            code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: cold.remove_threshold,
            code.GET_COLD_DATA_FLOW_CTR_INFO: cold.show,
            code.SET_COMMITLOG_READ_MODE: cold.set_read_ahead,
        }

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Answer pulls whose time is over; look who may be read from; start a new period of counting cold reads."""
        return (
            (SWEEP_SECONDS, self.held.sweep),
            (LOOK_SECONDS, self.spread.look),
            (PERIOD_SECONDS, self.cold.end_period),
        )

    def lead(self) -> None:
        """Send readers to the followers."""
        self.spread.look()

    def follow(self) -> None:
        """Keep the readers that are here, if a leader is known."""
        self.spread.look()

    def stop(self) -> None:
        """Send all readers to the leader from now on."""
        self.spread.stop()

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Answer the pulls that wait for messages of these queues."""
        self.held.wake(queues)

    def forget_topic(self, topic: str) -> None:
        """Answer the pulls that wait for messages of its queues."""
        self.held.release(self._queues.of_topic(topic))

    def release(self) -> None:
        """Answer all pulls that wait."""
        self.held.release()
