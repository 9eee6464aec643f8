"""Handing leadership to a chosen peer (Raft dissertation 3.10).

    begin --> proposals are refused --> the peer holds everything --> TransferRequest --> the peer campaigns at once
          '-- deadline: the leader goes on leading, and is writable once all entries are committed

Which peer: the one asked for; else, for a leader that must go, the one that holds most; else, of those with a greater
priority, one that is nearly level.
"""

from dledger.core.errors import TransferRefusedError
from dledger.core.leader import Leader
from dledger.core.messages import TransferRequest
from dledger.core.progress import Progress, ProgressState
from dledger.core.state import NodeState


class Handover:
    """One transfer under way."""

    __slots__ = ("_deadline_ms", "_is_sent", "_state", "target")

    def __init__(self, state: NodeState, target: str) -> None:
        self._state = state
        self._deadline_ms = state.now_ms + state.settings.election_max_ms
        self._is_sent = False
        self.target = target

    @property
    def is_overdue(self) -> bool:
        """Whether the peer had its time: the leader may lead on."""
        return self._state.now_ms >= self._deadline_ms

    def proceed(self, leader: Leader) -> None:
        """Tell the peer to campaign once nothing is missing there."""
        state, progress = self._state, leader.peers[self.target]
        if not self._is_sent and counted_index(state, progress) >= state.terms.last_index:
            self._is_sent = True
            state.send(self.target, TransferRequest(state.term, state.settings.node_id))


def counted_index(state: NodeState, progress: Progress) -> int:
    """Up to where a follower's log counts for the quorum."""
    return progress.durable_index if state.settings.durable_quorum else progress.received_index


def check_target(state: NodeState, leader: Leader, target: str) -> None:
    """Refuse a target that could not win.

    Raises:
        TransferRefusedError: it is this node, a stranger, out of reach, recovering, or not being replicated to.
    """
    progress = leader.peers.get(target)
    if progress is None:
        reason = "it leads already" if target == state.settings.node_id else "it is not a member"
    elif target in state.lost_links or not _is_heard(state, progress):
        reason = "it does not answer"
    elif progress.recovering:
        reason = "it is recovering"
    elif progress.state is not ProgressState.REPLICATE:
        reason = "its log is not level yet"
    else:
        return
    raise TransferRefusedError(target, reason)


def best_successor(state: NodeState, leader: Leader) -> str | None:
    """Who should lead when this node must not: of those that could win, the one that holds most."""
    fit = [peer for peer in leader.peers if _is_fit(state, leader, peer)]
    return max(
        fit, key=lambda peer: (counted_index(state, leader.peers[peer]), state.settings.priority(peer)), default=None
    )


def preferred_successor(state: NodeState, leader: Leader) -> str | None:
    """A member of greater priority that holds everything committed, or None."""
    settings = state.settings
    own = settings.priority(settings.node_id)
    better = [
        peer
        for peer, progress in leader.peers.items()
        if settings.priority(peer) > own
        and _is_fit(state, leader, peer)
        and counted_index(state, progress) >= state.commit_index
    ]
    return max(better, key=settings.priority, default=None)


def _is_heard(state: NodeState, progress: Progress) -> bool:
    return state.now_ms - progress.acked_ms < state.settings.election_min_ms


def _is_fit(state: NodeState, leader: Leader, peer: str) -> bool:
    try:
        check_target(state, leader, peer)
    except TransferRefusedError:
        return False
    return True
