"""The vote rule as functions: whether this node may vote for a candidate, and whether a vote that came counts.

Source: Raft dissertation 3.4 (one vote a term), 3.6.1 (up-to-date logs), 9.6 (pre-vote), 4.2.3 (disruptive servers).
"""

from dledger.core.messages import VoteCause, VoteRequest, VoteResponse
from dledger.core.state import NodeState


def is_up_to_date(last_term: int, last_index: int, own_last_term: int, own_last_index: int) -> bool:
    """Return whether a log that ends in `(last_term, last_index)` holds all that the other log could have committed."""
    return (last_term, last_index) >= (own_last_term, own_last_index)


def decide_vote(state: NodeState, request: VoteRequest, *, has_leader: bool) -> VoteCause:
    """Return the answer to `request`; nothing is changed. The term of a real request is at most the node's.

    `has_leader`: this node leads with a quorum, or heard its leader within the lease over a connection that still
    stands. That does not refuse a candidate that the leader itself named (`transfer`).
    """
    if request.term < state.term:
        return VoteCause.STALE_TERM
    if has_leader and not request.transfer:
        return VoteCause.HAS_LEADER
    if state.recovering and not request.salvage:
        return VoteCause.RECOVERING
    if request.term == state.term and state.voted_for not in ("", request.candidate_id):
        return VoteCause.VOTED_OTHER
    terms = state.terms
    if not is_up_to_date(request.last_term, request.last_index, terms.last_term, terms.last_index):
        return VoteCause.STALE_LOG
    return VoteCause.GRANTED


def is_vote_for(request: VoteRequest, response: VoteResponse) -> bool:
    """Return whether a vote answers this request, and not one of an earlier process in the same term.

    A candidate that dies before its own vote is on disk may ask in that term again, and a power cut may have taken
    entries of which it spoke the first time.
    """
    own_end = response.last_term, response.last_index
    return response.term == request.term and is_up_to_date(request.last_term, request.last_index, *own_end)
