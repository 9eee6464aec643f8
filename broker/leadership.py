"""Starts the subsystems' work of a leader when this node may write the log, and stops it when it may not any more.

    begins: `lead` of every subsystem; a scan for deliveries of earlier leaders; then `resume` of every subsystem
    ends:   `follow` of every subsystem: uncommitted proposals are dropped, deliveries stop

A change of the leader elsewhere ends it again, which is harmless.
"""

import asyncio
import logging
from collections.abc import Sequence

from broker.delay.deliveries import Deliveries
from broker.subsystem import Subsystem
from store.replicated_log import LogRole, LogState, ReplicatedLog

log = logging.getLogger(__name__)


class Leadership:
    """Starts and stops what only the node that writes does.

    Attributes:
        changes: how often this node began or ceased to write.
        deposed: set while another node is known to write.
    """

    def __init__(self, replicated_log: ReplicatedLog, deliveries: Deliveries, subsystems: Sequence[Subsystem]) -> None:
        self.changes = 0
        self.deposed = asyncio.Event()
        self._log = replicated_log
        self._deliveries = deliveries
        self._subsystems = subsystems
        self._is_held = False

    def take(self, state: LogState) -> None:
        """The log's state changed; `Role` knows it already."""
        self.changes += self._is_held != state.writable
        self._is_held = state.writable
        self._tell(state)
        if state.writable:
            self.deposed.clear()
            for subsystem in self._subsystems:
                subsystem.lead()
            self._deliveries.scan(self._resume)
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
