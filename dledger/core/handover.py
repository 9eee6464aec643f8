"""Transfer of leadership to a chosen peer (Raft dissertation 3.10).

    begin --> proposals are refused --> all is committed, and the peer holds it --> TransferRequest --> it campaigns
                '-- deadline, or the peer declines: the leader continues, and is writable once its entries are committed

A peer whose disk is full declines: by the refusal of a pre-vote that was not asked for, which earlier releases ignore.
One that did not take over is not chosen again for a while.

The peer is the one asked for. A leader that must stop leading chooses the peer with the longest log; a leader that
looks for a member of greater priority chooses one that holds everything committed.
"""

from dledger.core.errors import TransferRefusedError
from dledger.core.leader import Leader
from dledger.core.messages import TransferRequest, VoteCause, VoteResponse
from dledger.core.progress import PeerProgress, ProgressState
from dledger.core.state import NodeState

_DECLINED_ELECTIONS = 60


class Handover:
    """One transfer under way. Invariant: while it exists, the leader accepts no proposal."""

    __slots__ = ("_deadline_ms", "_is_sent", "_state", "target")

    def __init__(self, state: NodeState, target: str) -> None:
        self._state = state
        self._deadline_ms = state.now_ms + state.settings.election_max_ms
        self._is_sent = False
        self.target = target

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed, so that the leader continues to lead."""
        return self._state.now_ms >= self._deadline_ms

    def give_up(self, leader: Leader) -> None:
        """The peer has not taken over in time: choose others for 60 times `election_max_ms`."""
        state = self._state
        leader.declined[self.target] = state.now_ms + _DECLINED_ELECTIONS * state.settings.election_max_ms

    def is_declined(self, peer: str, response: VoteResponse) -> bool:
        """Whether the peer says that it does not take over."""
        is_of_target = self._is_sent and peer == self.target and response.term == self._state.term
        return is_of_target and response.pre_vote and not response.granted

    def proceed(self, leader: Leader) -> None:
        """Ask the peer to campaign, if it holds all entries and has not been asked yet.

        They are committed, too: the senders of a leader that is deposed before would not know what became of them.
        """
        state, progress = self._state, leader.peers[self.target]
        held_index = min(counted_index(state, progress), state.commit_index)
        if not self._is_sent and held_index >= state.terms.last_index:
            self._is_sent = True
            state.send(self.target, TransferRequest(state.term, state.settings.node_id))


def decline(state: NodeState) -> VoteResponse:
    """Return the answer of a node that does not take over. As a vote it counts for nobody (`Ballot.record`)."""
    terms = state.terms
    return VoteResponse(
        state.term, False, True, VoteCause.STALE_TERM, terms.last_index, terms.last_term, state.recovering
    )


def counted_index(state: NodeState, progress: PeerProgress) -> int:
    """Last index up to which a follower's log counts for the quorum: received, or durable under `durable_quorum`."""
    return progress.durable_index if state.settings.durable_quorum else progress.received_index


def check_target(state: NodeState, leader: Leader, target: str) -> None:
    """Check that `target` could win an election now.

    Raises:
        TransferRefusedError: it is this node or not a member, has no connection, is recovering, or is not in REPLICATE.
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
    """Return the follower that should lead instead of this node: of those able to win, the one with the longest log."""
    fit = [peer for peer in leader.peers if _is_fit(state, leader, peer)]
    return max(
        fit, key=lambda peer: (counted_index(state, leader.peers[peer]), state.settings.priority(peer)), default=None
    )


def preferred_successor(state: NodeState, leader: Leader) -> str | None:
    """Return a member of greater priority that holds all committed entries, or None."""
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


def _is_heard(state: NodeState, progress: PeerProgress) -> bool:
    return state.now_ms - progress.acked_ms < state.settings.election_min_ms


def _is_fit(state: NodeState, leader: Leader, peer: str) -> bool:
    if state.now_ms < leader.declined.get(peer, 0):
        return False
    try:
        check_target(state, leader, peer)
    except TransferRefusedError:
        return False
    return True
