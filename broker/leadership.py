"""Starts the subsystems' work of a leader when this node may write the log, and stops it when it may not any more.

    begins: `lead` of every subsystem; a scan for deliveries of earlier leaders, and a question to slaves that stood in
            for this node; then `resume` of every subsystem
    ends:   `follow` of every subsystem: uncommitted proposals are dropped, deliveries stop

A slave that stands in for its absent master scans as well, then `stand_in` of every subsystem; `follow` ends that, too.

`follow` is called again when another node leads than before, which is harmless.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.delay.deliveries import Deliveries, Elsewhere
from broker.role import Role
from broker.subsystem import Subsystem
from broker.timers import Spawn
from store.replicated_log import LogRole, LogState, ReplicatedLog

log = logging.getLogger(__name__)


class Leadership:
    """Starts and stops what only the node that writes does.

    Attributes:
        changes: number of times that this node began or ceased to write.
        deposed: an event that is set while another node is known to write.
        ask_slaves: returns when slaves have said what they delivered while this master was away; None: it has none.
        spawn: runs a coroutine until the broker stops.
    """

    def __init__(
        self,
        role: Role,
        replicated_log: ReplicatedLog,
        deliveries: Deliveries,
        subsystems: Sequence[Subsystem],
        spawn: Spawn,
    ) -> None:
        self.changes = 0
        self.ask_slaves: Callable[[], Awaitable[None]] | None = None
        self._role = role
        self._spawn = spawn
        self.deposed = asyncio.Event()
        self._log = replicated_log
        self._deliveries = deliveries
        self._subsystems = subsystems
        self._is_held = False

    def take(self, state: LogState) -> None:
        """React to a new state of the log, which `Role` has taken over already."""
        self.stand_back()
        self.changes += self._is_held != state.writable
        self._is_held = state.writable
        self._tell(state)
        if state.writable:
            self.deposed.clear()
            for subsystem in self._subsystems:
                subsystem.lead()
            self._deliveries.scan(self._ask_slaves)
        else:
            if state.leader is not None and state.role in (LogRole.FOLLOWER, LogRole.SLAVE):
                self.deposed.set()
            for subsystem in self._subsystems:
                subsystem.follow()
            self._deliveries.stop()

    def refresh_marks(self) -> None:
        """Move the marks of deliveries on, so that a new leader scans less of the log; to be called periodically."""
        if self._is_held:
            self._deliveries.refresh()

    def stand_in(self, elsewhere: Elsewhere | None, then: Callable[[], None]) -> None:
        """Do for the absent master, as a slave, what needs no record, until `stand_back`.

        Args:
            elsewhere: where this slave delivers; None: nowhere.
            then: called before it delivers, when the log has been scanned for what the master delivered.
        """

        def begin() -> None:
            then()
            for subsystem in self._subsystems:
                subsystem.stand_in()

        self._role.stands_in = True
        log.info("stands in for its master, which is away")
        self._deliveries.elsewhere = elsewhere
        if elsewhere is not None:
            self._deliveries.scan(begin)

    def stand_back(self) -> None:
        """End `stand_in`; do nothing if it is not under way."""
        if not self._role.stands_in:
            return
        self._role.stands_in = False
        log.info("does not stand in for its master any more")
        for subsystem in self._subsystems:
            subsystem.follow()
        self._deliveries.stop()
        if self._deliveries.elsewhere is not None:
            self._deliveries.elsewhere.stop()
            self._deliveries.elsewhere = None

    def _ask_slaves(self) -> None:
        if self.ask_slaves is None:
            self._resume()
        else:
            self._spawn(self._resume_later(self.ask_slaves, self._deliveries.run))

    async def _resume_later(self, ask_slaves: Callable[[], Awaitable[None]], run: int) -> None:
        await ask_slaves()
        if self._deliveries.run == run:  # else another scan has begun, or this node does not lead any more
            self._resume()

    def _resume(self) -> None:
        for subsystem in self._subsystems:
            subsystem.resume()

    def _tell(self, state: LogState) -> None:
        leader = f"led by {state.leader.node_id} at {state.leader.address}" if state.leader else "no leader is known"
        log.info(
            "%s in term %d, %s; confirmed up to %d of %d",
            "accepts writes" if state.writable else "refuses writes",
            state.generation,
            leader,
            self._log.confirm_offset,
            self._log.max_offset,
        )
