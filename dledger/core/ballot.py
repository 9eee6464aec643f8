"""One round of votes: the answers so far and their outcome.

    pre-vote   a quorum says yes                                             -> WON: campaign
               every member answered, too few are sound for a quorum,
               and this log is the longest of all                            -> SALVAGE: campaign for all votes
    vote       a quorum says yes; in a salvage election: every member        -> WON: lead
               too many say no for that                                      -> LOST: ask again later

A *recovering* member may have forgotten entries that it acknowledged. Its vote does not count, not even for itself:
otherwise a log without an acknowledged entry could win. If so many members are recovering that no quorum of sound ones
exists (the first start of a group, a power cut of all members under ASYNC_FLUSH), the longest log of *all* members is
the best one left, and to find it every member must have answered. If one of them will never come back, an operator may
allow a salvage election by a quorum (`allow_missing`).
"""

from enum import Enum

from dledger.core.messages import VoteCause, VoteRequest, VoteResponse
from dledger.core.state import NodeState
from dledger.core.voting import is_vote_for


class BallotOutcome(Enum):
    """The result of the answers so far."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"
    SALVAGE = "salvage"


class Ballot:
    """The votes of one round for one candidate.

    Attributes:
        request: the request that was sent to every other member.
        needed: number of votes that win.
        own_vote: whether this node's own vote counts yet: in a pre-vote at once, in a real election once it is durable.
            Nobody wins before that, though the others are asked at once: their votes bind only them.
    """

    __slots__ = ("_allow_missing", "_answers", "_state", "needed", "own_vote", "request")

    def __init__(self, state: NodeState, request: VoteRequest, *, allow_missing: bool) -> None:
        settings = state.settings
        self._state = state
        self._allow_missing = allow_missing
        self._answers: dict[str, VoteResponse] = {}
        self.request = request
        self.own_vote = request.pre_vote
        self.needed = len(settings.peers) if request.salvage and not allow_missing else settings.quorum

    def record(self, peer: str, response: VoteResponse) -> BallotOutcome:
        """Count an answer and return the outcome. Answers to other requests are ignored.

        STALE_TERM from a member whose term is not higher is the answer to a question for its term
        (`HardState.forgot_votes`).
        """
        is_ours = response.pre_vote == self.request.pre_vote and (
            not response.granted or is_vote_for(self.request, response)
        )
        is_about_its_term = response.cause is VoteCause.STALE_TERM and response.term < self.request.term
        if is_ours and not is_about_its_term:
            self._answers[peer] = response
        return self.outcome()

    def outcome(self) -> BallotOutcome:
        """Return what the answers so far decide."""
        yes = self._own_vote_counts + sum(answer.granted for answer in self._answers.values())
        if self.own_vote and yes >= self.needed and (self.request.salvage or self._state.knows_its_votes):
            return BallotOutcome.WON
        if self.request.pre_vote and self._may_salvage():
            return BallotOutcome.SALVAGE
        no = sum(not answer.granted for answer in self._answers.values())
        votes_at_most = len(self._state.settings.others) + self._own_vote_counts - no
        is_lost = not self.request.pre_vote and votes_at_most < self.needed
        return BallotOutcome.LOST if is_lost else BallotOutcome.OPEN

    def missing(self) -> tuple[str, ...]:
        """Members that have not answered."""
        return tuple(peer for peer in self._state.settings.others if peer not in self._answers)

    def any_member_has_entries(self) -> bool:
        """Return whether a member that answered holds any entry."""
        return any(answer.last_index >= 0 for answer in self._answers.values())

    @property
    def _own_vote_counts(self) -> bool:
        """A recovering member's vote counts only in a salvage election, its own vote for itself included."""
        return self.request.salvage or not self._state.recovering

    def _may_salvage(self) -> bool:
        settings, answers = self._state.settings, self._answers.values()
        needed = settings.quorum if self._allow_missing else len(settings.peers)
        if len(answers) + 1 < needed or any(answer.cause is VoteCause.HAS_LEADER for answer in answers):
            return False
        sound = (not self._state.recovering) + sum(not answer.recovering for answer in answers)
        own = (self._state.terms.last_term, self._state.terms.last_index)
        return sound < settings.quorum and all((answer.last_term, answer.last_index) <= own for answer in answers)
