"""POP as a whole: its parts, tied together.

PopProgress <- TakeRequests, AckRequests, ReviveService     (what is taken and not acknowledged)
HeldPops <- TakeRequests, LookRequests                      (who waits)
AssignmentRequests                                          (who reads what, and how)
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from broker.append.appender import Appender
from broker.append.drafts import DraftMaker
from broker.append.target import SendTargets
from broker.config import BrokerConfig
from broker.counting.counting import Counting
from broker.groups.clients import ClientTable
from broker.pop.ack_requests import AckRequests
from broker.pop.alarms import OrderAlarms
from broker.pop.assignment_requests import AssignmentRequests
from broker.pop.checks import PopChecks
from broker.pop.look_requests import LookRequests
from broker.pop.progress import PopProgress
from broker.pop.reading import PopReader
from broker.pop.revive import ReviveService
from broker.pop.take_requests import TakeRequests
from broker.pop.waiting import HeldPops
from broker.pull.filter_turns import FilterTurns
from broker.role import Role
from broker.state.metadata import Metadata
from broker.state.offsets import ConsumerOffsets
from broker.state.tables import Propose, ReplicatedState
from broker.subsystem import Serve
from ledgermq.remoting.codec.codes import RequestCode
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue


class PopService:
    """Everything that serves POP.

    Attributes:
        held: POP requests that wait.
    """

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        metadata: Metadata,
        clients: ClientTable,
        offsets: ConsumerOffsets,
        role: Role,
        store: MessageStore,
        targets: SendTargets,
        drafts: DraftMaker,
        appender: Appender,
        counting: Counting,
        propose: Propose,
        is_start_at_hand: Callable[[ConsumeQueue], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        turns: FilterTurns,
    ) -> None:
        self._clock_ms = clock_ms
        self.progress = PopProgress(state, offsets, role, loop, clock_ms, counting.events)
        self.held = HeldPops(loop, clock_ms, config.pop_held_max, config.pop_held_queue_max)
        self._held_looks = HeldPops(loop, clock_ms, config.pop_held_max, config.pop_held_queue_max)
        self._alarms = OrderAlarms(loop, clock_ms, self._wake_any)
        checks = PopChecks(config, metadata)
        reader = PopReader(config, store, offsets, self.progress, is_start_at_hand, clock_ms, counting)
        self.revive = ReviveService(
            config, metadata, role, store, targets, drafts, appender, self.progress, loop, clock_ms, counting.events
        )
        self.take = TakeRequests(config, metadata, checks, role, reader, self.held, self._alarms, turns)
        self.acks = AckRequests(checks, role, store, offsets, self.progress, clock_ms, self._on_freed, counting)
        self.looks = LookRequests(config, metadata, checks, role, store, reader, self.held, self._held_looks)
        self.assignments = AssignmentRequests(config, state, metadata, clients, role, propose, spawn)

    def requests(self) -> Mapping[int, Serve]:
        """What serves which request code."""
        code = RequestCode
        return {
            code.POP_MESSAGE: self.take.pop,
            code.ACK_MESSAGE: self.acks.ack,
            code.BATCH_ACK_MESSAGE: self.acks.batch_ack,
            code.CHANGE_MESSAGE_INVISIBLETIME: self.acks.change_invisible,
            code.PEEK_MESSAGE: self.looks.peek,
            code.NOTIFICATION: self.looks.notify,
            code.POLLING_INFO: self.looks.polling_info,
            code.QUERY_ASSIGNMENT: self.assignments.query,
            code.SET_MESSAGE_REQUEST_MODE: self.assignments.set_mode,
            code.GET_ALL_MESSAGE_REQUEST_MODE: self.assignments.all_modes,
        }

    def lead(self) -> None:
        """This node leads now: go on where the log says the leader before was."""
        self.progress.lead(self.revive.look_out)

    def follow(self) -> None:
        """This node does not lead any more: who waits here is told to ask elsewhere."""
        self.stop()
        self.progress.follow()
        self.release()

    def stop(self) -> None:
        """Nothing comes again from here any more."""
        self.revive.stop()
        self._alarms.stop()

    def release(self) -> None:
        """Answer all that wait."""
        self.held.release()
        self._held_looks.release()

    def wake(self, queues: Collection[ConsumeQueue]) -> None:
        """These queues have new messages."""
        self.held.wake(queues)
        self._held_looks.wake(queues)

    def tidy(self) -> None:
        """Forget who is gone and what is old; to be called now and then."""
        self.held.drop_gone()
        self._held_looks.drop_gone()
        self.progress.orders.expire(self._clock_ms())
        self.progress.changed()

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
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
