"""POP: consumers take messages without owning queues, and acknowledge them one by one.

PopProgress <- TakeRequests, AckRequests, ReviveService     (messages that are taken and not acknowledged)
PopProgress <- JavaPopLog                                   (those that RocketMQ's broker gave before)
HeldPops <- TakeRequests, LookRequests                      (requests that wait for messages)
AssignmentRequests                                          (which consumer reads which queues, and how)
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries
from broker.groups.clients import ClientTable
from broker.pop.ack_requests import AckRequests
from broker.pop.alarms import OrderAlarms
from broker.pop.assignment_requests import AssignmentRequests
from broker.pop.checks import PopChecks
from broker.pop.java_log import JavaPopLog
from broker.pop.look_requests import LookRequests
from broker.pop.progress import PopProgress
from broker.pop.reading import PopReader
from broker.pop.revive import ReviveService
from broker.pop.take_requests import TakeRequests
from broker.pop.waiting import HeldPops
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode
from store.queues.consume_queue import ConsumeQueue

_TIDY_SECONDS = 10.0


class PopSubsystem(Subsystem):
    """The parts that serve POP.

    Attributes:
        held: POP requests that wait for messages.
    """

    def __init__(
        self,
        context: BrokerContext,
        clients: ClientTable,
        is_start_at_hand: Callable[[ConsumeQueue], bool],
        deliveries: Deliveries,
    ) -> None:
        config, loop, clock_ms = context.config, context.loop, context.clock_ms
        self._throttled = context.throttled
        self.progress = PopProgress(context)
        self.held = HeldPops(loop, clock_ms, config.pop_held_max, config.pop_held_queue_max)
        self._held_looks = HeldPops(loop, clock_ms, config.pop_held_max, config.pop_held_queue_max)
        self._alarms = OrderAlarms(loop, clock_ms, self._wake_any)
        checks = PopChecks(context)
        reader = PopReader(context, self.progress, is_start_at_hand)
        self.revive = ReviveService(context, self.progress, deliveries)
        self._java_log = JavaPopLog(context, self.progress)
        self.take = TakeRequests(context, checks, reader, self.held, self._alarms)
        self._acks = AckRequests(context, checks, self.progress, self._on_freed)
        self._looks = LookRequests(context, checks, reader, self.held, self._held_looks)
        self.assignments = AssignmentRequests(context, clients)

    def requests(self) -> Mapping[int, Serve]:
        """See `Subsystem`."""
        code = RequestCode
        return {
            code.POP_MESSAGE: self._throttled.guard(self.take.pop),
            code.ACK_MESSAGE: self._acks.ack,
            code.BATCH_ACK_MESSAGE: self._acks.batch_ack,
            code.CHANGE_MESSAGE_INVISIBLETIME: self._acks.change_invisible,
            code.PEEK_MESSAGE: self._throttled.guard(self._looks.peek),
            code.NOTIFICATION: self._looks.notify,
            code.POLLING_INFO: self._looks.polling_info,
            code.QUERY_ASSIGNMENT: self.assignments.query,
            code.SET_MESSAGE_REQUEST_MODE: self.assignments.set_mode,
            code.GET_ALL_MESSAGE_REQUEST_MODE: self.assignments.all_modes,
        }

    def lead(self) -> None:
        """Load the progress from the replicated tables."""
        self.progress.lead(self.revive.schedule)

    def resume(self) -> None:
        """Revive what is due, also of what RocketMQ's broker gave before."""
        self.revive.resume()
        self._java_log.resume()

    def stand_in(self) -> None:
        """Revive what is due, as far as the master's log says."""
        self.lead()
        self.revive.resume()

    def follow(self) -> None:
        """Stop, drop the progress, and answer held requests, so that their clients ask the new leader."""
        self.stop()
        self.progress.follow()
        self.release()

    def stop(self) -> None:
        """Revive no more messages."""
        self._java_log.stop()
        self.revive.stop()
        self._alarms.stop()

    def release(self) -> None:
        """Answer all held requests."""
        self.held.release()
        self._held_looks.release()

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Answer the requests that wait for messages of these queues."""
        self.held.wake(queues)
        self._held_looks.wake(queues)
        if self._java_log.is_there:
            self._java_log.wake(queues)

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Drop held requests of closed connections, and orders that are long over, every ten seconds."""
        return ((_TIDY_SECONDS, self._tidy),)

    async def drain(self) -> None:
        """Wait until the log has all checkpoints and acknowledgements, or has refused them."""
        await self.progress.drain()

    def forget_group(self, group: str) -> None:
        """Drop the group's checkpoints and orders."""
        self.progress.forget_group(group)

    def _tidy(self) -> None:
        self.held.drop_gone()
        self._held_looks.drop_gone()
        self.progress.orders.expire(self.progress.now_ms())
        self.progress.changed()

    def forget_topic(self, topic: str) -> None:
        """Answer requests held for the topic, and drop its checkpoints and orders."""
        self.held.release(topic)
        self._held_looks.release(topic)
        self.progress.forget_topic(topic)

    def _on_freed(self, topic: str, group: str, queue_id: int) -> None:
        for held in (self.held, self._held_looks):
            if not held.wake_next(topic, group, queue_id):
                held.wake_any(topic, group)

    def _wake_any(self, topic: str, group: str) -> None:
        self.held.wake_any(topic, group)
        self._held_looks.wake_any(topic, group)
