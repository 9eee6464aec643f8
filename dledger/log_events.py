"""Turns a node's commits and changes of role into the confirm offset, the role and the outcome of each batch.

    on_commit                             -> confirm offset -> listeners -> `done` of the batches covered
    on_role, on_truncated, on_failed      -> batches refused -> listeners

Invariant: when `done` reports a batch as acknowledged, the confirm offset covers it, so it can be read.
"""

import logging
from collections.abc import Callable

from dledger.config import RaftConfig
from dledger.core.roles import RaftRole, SoftState
from dledger.log.entry_log import EntryLog
from dledger.node import RaftNode
from dledger.peers.peer_book import PeerBook
from dledger.refusals import leader_changed, not_leader
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.waiting_batches import WaitingBatches
from store.replicated_log import AppendReceipt, LogListener, LogRole, LogState

_log = logging.getLogger(__name__)


_NOT_STARTED = Refusal(Cause.RECOVERING, "the Raft log is not started yet", retry_after_ms=100)


class LogEvents:
    """The listener of the node, with the state of the log that others may see.

    Args:
        config: identity of this node.
        log: its entries.
        peers: addresses at which clients find the other members.
        note_failure: called once when the node has left the group.

    Attributes:
        batches: batches placed and not yet committed.
        listeners: listeners of the replicated log, called in this order.
        soft: the soft state that the node reported last.
        refusal: why every append is refused, whatever the role; None when the role decides.
        confirm_offset: end of the last committed entry, or the start of the first damaged entry before it. It never
            falls except by `on_damage_found`.
    """

    node: RaftNode

    def __init__(self, config: RaftConfig, log: EntryLog, peers: PeerBook, note_failure: Callable[[], None]) -> None:
        self._note_failure = note_failure
        self._self_id = config.self_id
        self._log = log
        self._peers = peers
        self._reported: LogState | None = None
        self.batches = WaitingBatches()
        self.listeners: list[LogListener] = []
        self.soft = SoftState(RaftRole.FOLLOWER, 0, None, False, False)
        self.refusal: Refusal | None = _NOT_STARTED
        self.confirm_offset = log.first_position

    def attach(self, node: RaftNode) -> None:
        """Use the new node's present state as the first one."""
        self.node = node
        self.soft = node.soft_state
        self.confirm_offset = self._confirmable()
        self._reported = self.state

    @property
    def is_writable(self) -> bool:
        """Whether this node leads, nothing before its term is undecided and no entry to be served is damaged."""
        return self.soft.writable and self.refusal is None and self._log.integrity.first_blocking is None

    @property
    def state(self) -> LogState:
        """The state of the log, as the seam defines it."""
        soft = self.soft
        role = LogRole.LEADER if soft.role is RaftRole.LEADER else LogRole.FOLLOWER
        refusal = None if self.is_writable else self.why_not_writable()
        return LogState(role, soft.term, self._peers.hint(soft.leader_id), refusal)

    def why_not_writable(self) -> Refusal:
        """Return the refusal for an append while the log is not writable."""
        soft = self.soft
        if self.refusal is not None:
            return self.refusal
        if soft.role is not RaftRole.LEADER:
            return not_leader(self._self_id, soft.term, self._peers.hint(soft.leader_id))
        if self._log.integrity.first_blocking is not None:
            remark = f"waits for a peer's copy of {self._log.integrity.damages[0]}"
        else:
            remark = f"{self._self_id} leads term {soft.term}, and waits until what lies in its log is committed"
        return Refusal(Cause.RECOVERING, remark, retry_after_ms=100)

    # ---- called by the node

    def on_commit(self, commit_index: int) -> None:
        """Advance the confirm offset, then complete the batches that it covers."""
        self.confirm()
        self.batches.complete(commit_index, self.receipt)

    def on_role(self, state: SoftState) -> None:
        """Refuse the batches of a deposed leader; the next leader may still commit their entries."""
        is_deposed = state.role is not RaftRole.LEADER or state.term != self.soft.term
        is_salvaged = state.may_miss_after is not None and self.soft.may_miss_after is None
        self.soft = state
        if is_deposed:
            hint = self._peers.hint(state.leader_id)
            self.batches.refuse_after(-1, lambda: leader_changed(self._self_id, state.term, hint))
        if is_salvaged:
            missing = state.may_miss_after
            _log.error("salvaged in term %d: acknowledged entries after %d may be missing", state.term, missing)
        self.tell_role()

    def on_truncated(self, last_index: int) -> None:
        """Handle the removal of uncommitted entries that the new leader does not have."""
        self.batches.refuse_after(last_index, lambda: leader_changed(self._self_id, self.soft.term, None))
        for listener in self.listeners:
            listener.on_truncated(self._log.max_position)

    def on_reset(self, first_index: int, start_position: int) -> None:
        """Handle an install: the log begins behind everything that was confirmed here."""
        _log.warning(
            "the leader has deleted entries that this log lacks: it now begins with entry %d at position %d",
            first_index,
            start_position,
        )
        self.confirm()

    def on_failed(self, error: Exception) -> None:
        """Handle that the node has left the group until it is restarted."""
        _log.error("this node has left the work of its Raft group: %s", error)
        self._note_failure()
        self.refuse_all(Refusal(Cause.DISK_FAILED, str(error)))

    def on_damage_found(self) -> None:
        """Handle damage that is found before the log is started: it is served up to there."""
        self.confirm_offset = self._confirmable()

    # ---- listeners and waiting batches

    def begin(self) -> None:
        """Refuse nothing any more, unless the node has failed since its peers were connected."""
        if self.refusal is _NOT_STARTED:
            self.refusal = None

    def refuse_all(self, refusal: Refusal) -> None:
        """Refuse all appends from now on, and the batches that wait."""
        self.refusal = refusal
        self.batches.refuse_after(-1, lambda: refusal)
        self.tell_role()

    def confirm(self) -> None:
        """Advance the confirm offset as far as entries are committed and not damaged."""
        confirm_offset = self._confirmable()
        if confirm_offset > self.confirm_offset:
            self.confirm_offset = confirm_offset
            for listener in self.listeners:
                listener.on_confirmed(confirm_offset)

    def tell_role(self) -> None:
        """Call the listeners if the state of the log has changed."""
        state = self.state
        if state != self._reported:
            self._reported = state
            for listener in self.listeners:
                listener.on_role_change(state)

    def receipt(self) -> AppendReceipt:
        """Return on how many nodes the last committed entry is. Every earlier entry is on at least as many."""
        received, durable = self.node.copies(self.node.commit_index)
        return AppendReceipt(self.soft.term, received, durable)

    def _confirmable(self) -> int:
        index, blocking = self.node.commit_index, self._log.integrity.first_blocking
        return self._log.end_position(index if blocking is None else min(index, blocking - 1))
