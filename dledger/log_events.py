"""What a Raft node's decisions mean to those above: the confirm offset, the role, the fate of each batch.

    on_commit --> confirm offset --> listeners --> `done` of the batches it covers
    on_role, on_truncated, on_failed --> batches refused --> listeners

The order is the promise: whoever is told that a message is acknowledged can already read it.
"""

import logging
from collections.abc import Callable

from dledger.config import RaftConfig
from dledger.core.roles import RaftRole, SoftState
from dledger.log.entry_log import EntryLog
from dledger.node import RaftNode
from dledger.peers.book import PeerBook
from dledger.refusals import leader_changed, not_leader
from ledgermq.remoting.refusal import Cause, Refusal
from store.log.waiting_batches import WaitingBatches
from store.replicated_log import AppendReceipt, LogListener, LogRole, LogState

_log = logging.getLogger(__name__)


class LogEvents:
    """The node's listener, and what it knows of the log's state.

    Args:
        config: who this node is.
        log: its entries.
        peers: where clients find them.
        note_failure: called once, when the node has left the group.

    Attributes:
        batches: placed and not committed yet.
        listeners: of the replicated log, in order.
        soft: what the node said last.
        refusal: why nothing is taken, whatever the role; None when the role decides.
        confirm_offset: end of the last committed entry, short of a damaged one.
    """

    node: RaftNode

    def __init__(self, config: RaftConfig, log: EntryLog, peers: PeerBook, note_failure: Callable[[], None]) -> None:
        self._note_failure = note_failure
        self._self_id = config.self_id
        self._log = log
        self._peers = peers
        self._told: LogState | None = None
        self.batches = WaitingBatches()
        self.listeners: list[LogListener] = []
        self.soft = SoftState(RaftRole.FOLLOWER, 0, None, False, False)
        self.refusal: Refusal | None = Refusal(Cause.RECOVERING, "the Raft log is not started yet", retry_after_ms=100)
        self.confirm_offset = log.first_position

    def attach(self, node: RaftNode) -> None:
        """The node was made: what it knows already is the present state."""
        self.node = node
        self.soft = node.soft_state
        self.confirm_offset = self._confirmable()
        self._told = self.state

    @property
    def is_writable(self) -> bool:
        """This node leads, its term is committed, and nothing it must serve is damaged."""
        return self.soft.writable and self.refusal is None and self._log.care.first_blocking is None

    @property
    def state(self) -> LogState:
        """What the node may do, in the seam's terms."""
        soft = self.soft
        role = LogRole.LEADER if soft.role is RaftRole.LEADER else LogRole.FOLLOWER
        refusal = None if self.is_writable else self.why_not_writable()
        return LogState(role, soft.term, self._peers.hint(soft.leader_id), refusal)

    def why_not_writable(self) -> Refusal:
        """What an append meets while the log is not writable."""
        soft = self.soft
        if self.refusal is not None:
            return self.refusal
        if soft.role is not RaftRole.LEADER:
            return not_leader(self._self_id, soft.term, self._peers.hint(soft.leader_id))
        if self._log.care.first_blocking is not None:
            remark = f"waits for a peer's copy of {self._log.care.damages[0]}"
        else:
            remark = f"{self._self_id} leads term {soft.term}, and waits until what lies in its log is committed"
        return Refusal(Cause.RECOVERING, remark, retry_after_ms=100)

    # ---- what the node says

    def on_commit(self, commit_index: int) -> None:
        """Show what is committed, then complete the batches it covers."""
        self.confirm()
        self.batches.complete(commit_index, self.receipt)

    def on_role(self, state: SoftState) -> None:
        """Batches of a leader that is one no more are refused; they may survive all the same."""
        self.soft = state
        if state.role is not RaftRole.LEADER:
            hint = self._peers.hint(state.leader_id)
            self.batches.refuse_after(-1, lambda: leader_changed(self._self_id, state.term, hint))
        elif state.may_miss_after is not None:
            missing = state.may_miss_after
            _log.error("salvaged in term %d: acknowledged entries after %d may be missing", state.term, missing)
        self.tell_role()

    def on_truncated(self, last_index: int) -> None:
        """Entries of a deposed leader are gone."""
        self.batches.refuse_after(last_index, lambda: leader_changed(self._self_id, self.soft.term, None))
        for listener in self.listeners:
            listener.on_truncated(self._log.max_position)

    def on_reset(self, first_index: int, start_position: int) -> None:
        """The log starts anew, behind everything that was confirmed here."""
        _log.warning("behind the leader's oldest file: starting anew with entry %d at %d", first_index, start_position)
        self.confirm()

    def on_failed(self, error: Exception) -> None:
        """The node left the group for good."""
        _log.error("this node takes no part any more: %s", error)
        self._note_failure()
        self.refuse_all(Refusal(Cause.DISK_FAILED, str(error)))

    # ---- telling

    def refuse_all(self, refusal: Refusal) -> None:
        """Take nothing any more, and give up what waits."""
        self.refusal = refusal
        self.batches.refuse_after(-1, lambda: refusal)
        self.tell_role()

    def confirm(self) -> None:
        """Show what may be shown by now."""
        confirm_offset = self._confirmable()
        if confirm_offset > self.confirm_offset:
            self.confirm_offset = confirm_offset
            for listener in self.listeners:
                listener.on_confirmed(confirm_offset)

    def tell_role(self) -> None:
        """Tell the listeners of the role, if it changed."""
        state = self.state
        if state != self._told:
            self._told = state
            for listener in self.listeners:
                listener.on_role_change(state)

    def receipt(self) -> AppendReceipt:
        """On how many nodes the last committed entry lies now; what came before it lies on at least as many."""
        received, durable = self.node.copies(self.node.commit_index)
        return AppendReceipt(self.soft.term, received, durable)

    def _confirmable(self) -> int:
        index, blocking = self.node.commit_index, self._log.care.first_blocking
        return self._log.end_position(index if blocking is None else min(index, blocking - 1))
