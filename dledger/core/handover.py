"""Transfer of leadership to a chosen peer (Raft dissertation 3.10).

    question: will you lead the next term? --> yes --> proposals are refused --> all is committed, and the peer holds it
      '-- no, or given up: nothing changes                '-- given up: the leader continues
                                                      --> TransferRequest and the leader's vote --> the peer leads

The question is a pre-vote request of the leader with the `transfer` mark, which earlier releases answer like any other.
Both nodes have their votes for the next term on disk before (`NodeState.reserve`). So no disk is waited for while
proposals are refused, but for entries that are under way. The leader gives up at the deadline, and when the connection
to the peer is lost. A peer that is recovering or whose disk is full says no. One that did not take over is not chosen
again for a while.

The peer is the one asked for. A leader that must stop leading chooses the peer with the longest log; a leader that
looks for a member of greater priority chooses one that holds everything committed.
"""

from dledger.core.errors import TransferRefusedError
from dledger.core.leader import Leader
from dledger.core.messages import VoteRequest, VoteResponse
from dledger.core.progress import PeerProgress, ProgressState
from dledger.core.state import NodeState

_DECLINED_ELECTIONS = 60


class Handover:
    """One transfer under way, from the question on.

    Before the peer takes over, all entries are committed: otherwise the leader's senders would not know what became of
    them. A leader that was never writable has no senders, and hands over what is not committed, too: it may be unable
    to commit anything, since an entry is damaged here of which no other member has a copy.

    Attributes:
        target: the peer.
        is_closed: the peer is ready, and the leader accepts no proposal.
    """

    __slots__ = ("_deadline_ms", "_state", "is_closed", "target")

    def __init__(self, state: NodeState, target: str) -> None:
        self._state = state
        self._deadline_ms = state.now_ms + state.settings.election_max_ms
        self.target = target
        self.is_closed = False
        state.reserve(target)
        terms, own_id = state.terms, state.settings.node_id
        question = VoteRequest(state.term + 1, own_id, terms.last_index, terms.last_term, pre_vote=True, transfer=True)
        state.send(target, question)

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed, so that the leader continues to lead."""
        return self._state.now_ms >= self._deadline_ms

    def give_up(self, leader: Leader) -> None:
        """Give up the transfer: the peer does not take over, and is not chosen again for 60 times `election_max_ms`."""
        state = self._state
        leader.declined[self.target] = state.now_ms + _DECLINED_ELECTIONS * state.settings.election_max_ms

    def is_answer(self, peer: str, response: VoteResponse) -> bool:
        """Return whether the peer says that it takes over, or that it does not."""
        term = self._state.term + response.granted
        return peer == self.target and response.pre_vote and response.term == term

    def close(self, leader: Leader) -> None:
        """Accept no more proposals: the peer is ready."""
        self.is_closed = True
        self._deadline_ms = self._state.now_ms + self._state.settings.election_max_ms
        leader.settle()

    def is_due(self, leader: Leader) -> bool:
        """Return whether the peer may take over now: it holds all entries, and they are committed if need be."""
        state, last_index = self._state, self._state.terms.last_index
        is_decided = not leader.was_writable or state.commit_index == last_index
        return self.is_closed and is_decided and counted_index(state, leader.peers[self.target]) >= last_index


def counted_index(state: NodeState, progress: PeerProgress) -> int:
    """Return the last index of a follower that counts for the quorum: durable under `durable_quorum`, or received."""
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
