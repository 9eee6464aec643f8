"""What begins when this node may write the log, and what ends when it may not any more.

    begins: tables of a Java group adopted, first users made, what the leader before has delivered looked up,
            then delays, timers and transactions go on
    ends:   what was proposed and not committed is forgotten, deliveries stop

A change of the leader elsewhere ends it again, which is harmless.
"""

import asyncio
import logging

from broker.append.state_log import StateLog
from broker.auth.requests import AuthRequests
from broker.config import BrokerConfig
from broker.delay.deliveries import Deliveries
from broker.delay.levels import DelayService
from broker.delay.timer_service import TimerService
from broker.groups.locks import QueueLocks
from broker.pop.service import PopService
from broker.state.java_tables import whole_tables
from broker.state.metadata import Metadata
from broker.state.offsets import ConsumerOffsets
from broker.state.tables import ReplicatedState
from broker.transactions.service import TransactionService
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import LogRole, LogState, ReplicatedLog

log = logging.getLogger(__name__)


class Leadership:
    """Starts and stops what only the node that writes does.

    Attributes:
        changes: how often this node began or ceased to write.
        deposed: set while it does not write, from the first time it was told so.
    """

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        state_log: StateLog,
        replicated_log: ReplicatedLog,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        auth_requests: AuthRequests,
        deliveries: Deliveries,
        pop: PopService,
        delay: DelayService,
        timer: TimerService,
        transactions: TransactionService,
    ) -> None:
        self.changes = 0
        self.deposed = asyncio.Event()
        self._super_users = config.auth.super_users()
        self._state = state
        self._state_log = state_log
        self._log = replicated_log
        self._metadata = metadata
        self._offsets = offsets
        self._locks = locks
        self._auth_requests = auth_requests
        self._deliveries = deliveries
        self._pop = pop
        self._delay = delay
        self._timer = timer
        self._transactions = transactions
        self._is_held = False

    def take(self, state: LogState) -> None:
        """The log says who writes now; `Role` has heard it already."""
        self.changes += self._is_held != state.writable
        self._is_held = state.writable
        self._tell(state)
        if state.writable:
            self._begin()
        else:
            self._end()

    def stop_deliveries(self) -> None:
        """Nothing that waits is delivered any more; what is under way is recorded if this node still may."""
        self._pop.stop()
        self._delay.stop()
        self._timer.stop()
        self._transactions.stop()

    def refresh_marks(self) -> None:
        """To be called now and then: a new leader looks through less of the log."""
        if self._is_held:
            self._deliveries.refresh()

    def _begin(self) -> None:
        self._adopt_tables()
        self._auth_requests.make_users(self._super_users)
        self.deposed.clear()
        self._pop.lead()
        self._transactions.expect()
        self._deliveries.scan(self._resume_deliveries)

    def _resume_deliveries(self) -> None:
        self._delay.resume()
        self._timer.resume()
        self._transactions.resume()

    def _end(self) -> None:
        self.deposed.set()
        self._metadata.forget_proposals()
        self._offsets.forget_ahead()
        self._locks.clear()
        self._pop.follow()
        self.stop_deliveries()
        self._deliveries.stop()

    def _tell(self, state: LogState) -> None:
        leader = f"led by {state.leader.node_id} at {state.leader.address}" if state.leader else "no leader is known"
        log.info(
            "%s in term %d, %s; confirmed up to %d of %d",
            "takes writes" if state.writable else "takes no writes",
            state.generation,
            leader,
            self._log.confirm_offset,
            self._log.max_offset,
        )

    def _adopt_tables(self) -> None:
        """A Java group's members have tables of their own: from here on they are those of this leader."""
        if self._log.state.role is not LogRole.ALONE and self._state.is_foreign:
            self._state.is_foreign = False
            for change in whole_tables(self._state):
                self._state_log.propose(change, self._on_adopted)

    def _on_adopted(self, outcome: Refusal | None) -> None:
        if outcome is not None:
            self._state.is_foreign = True  # the next leader tries again
            log.warning("the tables that Java left are not replicated yet: %s", outcome)
