"""The timers of a Raft node: ticks of the core, the disk watchdog, late batches and background work.

each 20 ms   disk stalled? -> node.on_tick, the loop turns -> batches without a quorum refused -> a piece of the scrub
each second  checkpoint, copies for damaged entries, hand-over when a leader cannot get one or has no room
each 10 s    idle mappings, deleted files that are still read
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from dledger.background import Checkpointer, CopyFetcher, Scrubber
from dledger.config import RaftConfig
from dledger.core.errors import TransferRefusedError
from dledger.core.roles import RaftRole
from dledger.log.entry_log import EntryLog
from dledger.node import RaftNode
from dledger.peers.busy_notices import BusyNotices
from dledger.peers.peer_book import PeerBook
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Refusal
from store.log.flusher import Flusher
from store.log.waiting_batches import WaitingBatches

TICK_S = 0.02
_HAND_OVER_S = 2.0
_HAND_OVER_AGAIN_S = 60.0
"""Seconds between two hand-overs for damage with which a leader can continue: the next may not get a copy either."""
_UNFIT_S = 600.0
"""Seconds for which a damaged node that handed over does not take over: a preferred leader would return at once."""
_LOOK_S = 10.0

_log = logging.getLogger(__name__)


class NodeTimers:
    """Runs the timers of one node.

    Args:
        config: intervals and limits.
        node, log, flusher, batches, peers: parts of the node.
        copies, checkpointer: run each second.
        notices: learns at each tick that the loop turns.
        no_quorum: makes the refusal of late batches from the number of batches that wait.

    Attributes:
        is_stalled: a flush takes longer than the configuration allows.
        why_full: returns why there is no room for messages here; None while there is.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        node: RaftNode,
        log: EntryLog,
        flusher: Flusher,
        batches: WaitingBatches,
        peers: PeerBook,
        copies: CopyFetcher,
        checkpointer: Checkpointer,
        notices: BusyNotices,
        no_quorum: Callable[[int], Refusal],
    ) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._node = node
        self._log = log
        self._flusher = flusher
        self._batches = batches
        self._peers = peers
        self._copies = copies
        self._checkpointer = checkpointer
        self._notices = notices
        self._warnings = RateLimitedLog(_log)
        self._scrubber = Scrubber(log)
        self._no_quorum = no_quorum
        self._timer: asyncio.TimerHandle | None = None
        self._slow_at = 0.0
        self._look_at = 0.0
        self._unfit_since: float | None = None
        self._handed_over_at = -_UNFIT_S
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_stalled = False
        self.why_full: Callable[[], str | None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether `start` was called and `stop` was not."""
        return self._timer is not None

    def start(self) -> None:
        """Start the timers."""
        now = self._loop.time()
        self._timer = self._loop.call_later(TICK_S, self.start)
        self._watch_disk()
        self._node.on_tick(now_ms(self._loop))
        state = self._node.soft_state
        self._notices.turned(state.term if state.role is RaftRole.LEADER else None)
        self._batches.refuse_late(now, self._no_quorum)
        self._scrubber.step()
        if now >= self._slow_at:
            self._slow_at = now + self._config.checkpoint_interval_ms / 1000
            self.spawn(self._checkpointer.write())
            self._repair_or_hand_over(now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._log.release_idle()

    def stop(self) -> None:
        """Stop the timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._notices.close()

    async def finish(self) -> None:
        """Wait for background work that is under way."""
        await asyncio.gather(*self._tasks, self._copies.close())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task for which `finish` waits."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _repair_or_hand_over(self, now: float) -> None:
        """Ask for copies of damaged entries. A leader that cannot get one, or has no room, hands leadership over.

        Others may have deleted the entry: only a leader whose log begins behind it can install a member that lacks it.
        As long as no member lacks it, damage that was found later is no reason to hand over.
        """
        integrity, why = self._log.integrity, self.why_full()
        damages, since = integrity.damages, now - self._handed_over_at
        self._node.on_fitness(is_fit=why is None and not (damages and since < _UNFIT_S))
        if damages:
            for peer_id in sorted(self._peers.joined):
                self._copies.ask(peer_id)
            needed = self._node.needed_index()
            is_needed = needed is not None and needed <= damages[-1].index
            if integrity.first_blocking is not None or (is_needed and since >= _HAND_OVER_AGAIN_S):
                why = str(damages[0])
        if why is None or self._node.soft_state.role is not RaftRole.LEADER:
            self._unfit_since = None
        elif self._unfit_since is None:
            self._unfit_since = now
        elif now - self._unfit_since > _HAND_OVER_S:
            try:
                _log.warning("leadership goes to %s, since this node cannot serve: %s", self._node.transfer(), why)
                self._handed_over_at = now
            except TransferRefusedError as error:
                self._warnings.warning("leadership cannot be handed over: %s", error)

    def _watch_disk(self) -> None:
        since, limit_ms = self._flusher.pending_since, self._config.disk_stall_ms
        is_stalled = since is not None and time.monotonic() - since > limit_ms / 1000
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            if is_stalled:
                _log.error("the disk is stalled: a sync takes more than %d ms", limit_ms)
            else:
                _log.info("the disk is no longer stalled")
            self._node.on_disk_stalled(is_stalled=is_stalled)


def now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Return the time for the core in ms, which never falls."""
    return int(loop.time() * 1000)
