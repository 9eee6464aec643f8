"""The append path of a leader: drafts become entries of its term, with one proposal for each turn of the loop.

append --> writable? --> entries encoded behind the last one --> end of turn: node.proposed, once for all
"""

import asyncio
from collections.abc import Sequence

from dledger.config import RaftConfig
from dledger.core.errors import NotLeaderError
from dledger.log.entry_log import EntryLog
from dledger.log.store_clock import StoreClock
from dledger.log_events import LogEvents
from dledger.node import RaftNode
from dledger.peers.peer_book import PeerBook
from dledger.refusals import not_leader, too_much_waits
from ledgermq.message.draft import RecordDraft, singles_of
from store.errors import DiskFailedError, StoreError
from store.log.refusals import refusal_of
from store.replicated_log import Done


class Proposer:
    """Places drafts as entries in the log of the node that leads.

    Args:
        config: identity of this node, and the limit of bytes that may wait for a quorum.
        loop: the event loop on which everything runs.
        clock: gives store times.
        log, events, node: the log to append to, the batches that wait, and the node that replicates.
        peers: addresses of the members, for a refusal that names the leader.
    """

    def __init__(
        self,
        config: RaftConfig,
        loop: asyncio.AbstractEventLoop,
        clock: StoreClock,
        log: EntryLog,
        events: LogEvents,
        node: RaftNode,
        peers: PeerBook,
    ) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._log = log
        self._events = events
        self._node = node
        self._peers = peers
        self._is_turn_open = False

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. `struct.error` for a draft that cannot be encoded; nothing is placed then."""
        events, log, node = self._events, self._log, self._node
        if not events.is_writable:
            raise events.why_not_writable()
        waiting, limit = log.max_position - events.confirm_offset, self._config.pending_limit_bytes
        if waiting > limit:
            raise too_much_waits(waiting, limit)
        if not drafts:
            self._loop.call_soon(done, events.receipt())
            return
        drafts = singles_of(drafts)  # each record has an entry of its own
        now_ms = self._clock.now_ms()
        try:
            first_index, term = node.propose(len(drafts))
        except NotLeaderError as error:
            raise not_leader(self._config.self_id, error.term, self._peers.hint(error.leader_id)) from error
        try:
            log.append_drafts(drafts, term, now_ms)
        except StoreError as error:
            node.withdraw(first_index)
            if isinstance(error, DiskFailedError):
                self._loop.call_soon(node.on_disk_failed, error)
            raise refusal_of(error) from error
        except BaseException:
            node.withdraw(first_index)
            raise
        events.batches.add(log.last_index, self._loop.time() + self._config.append_timeout_ms / 1000, done)
        if not self._is_turn_open:
            self._is_turn_open = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_turn_open = False
        self._node.proposed()
