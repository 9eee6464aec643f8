"""One round of votes: who answered what, and what it comes to.

    pre-vote   a quorum says yes                                             -> WON: campaign
               every member answered, too few are sound for a quorum,
               and this log is the longest of all                            -> SALVAGE: campaign for all votes
    vote       a quorum says yes; in a salvage election: every member        -> WON: lead
               so many say no that this cannot be                            -> LOST: ask again later

A *recovering* member may have forgotten what it acknowledged: its vote elects nobody, itself included, or a log
without an entry that it once acknowledged could win. If so many members are recovering that no sound quorum exists
(the first start of a group, a power cut of all under ASYNC_FLUSH), the longest log among *all* of them is the best
there is, and to know it every one must have answered. An operator who knows that a member will never come back may
allow a salvage election by a mere quorum (`allow_missing`).
"""

from enum import Enum

from dledger.core.messages import VoteCause, VoteRequest, VoteResponse
from dledger.core.state import NodeState


class Outcome(Enum):
    """What the answers so far come to."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"
    SALVAGE = "salvage"


class Ballot:
    """Votes of one round of one candidate.

    Attributes:
        request: what was asked of every other member.
        needed: votes that win.
        own_vote: whether this node's own vote is given: in a pre-vote at once, in a real election once it is durable.
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

    def record(self, peer: str, response: VoteResponse) -> Outcome:
        """Take an answer of this round; those of another round or kind change nothing.

        "Stale" from a member that is not ahead answers a question for its term (see `HardState.forgot_votes`).
        """
        term = self.request.term
        is_ours = response.pre_vote == self.request.pre_vote and (not response.granted or response.term == term)
        is_about_its_term = response.cause is VoteCause.STALE_TERM and response.term < term
        if is_ours and not is_about_its_term:
            self._answers[peer] = response
        return self.outcome()

    def outcome(self) -> Outcome:
        """What the answers so far come to."""
        yes = (self.own_vote and self._own_vote_counts) + sum(answer.granted for answer in self._answers.values())
        if yes >= self.needed and (self.request.salvage or self._state.knows_its_votes):
            return Outcome.WON
        if self.request.pre_vote and self._may_salvage():
            return Outcome.SALVAGE
        no = sum(not answer.granted for answer in self._answers.values())
        votes_at_most = len(self._state.settings.others) + self._own_vote_counts - no
        is_lost = not self.request.pre_vote and votes_at_most < self.needed
        return Outcome.LOST if is_lost else Outcome.OPEN

    def missing(self) -> tuple[str, ...]:
        """Members that have not answered."""
        return tuple(peer for peer in self._state.settings.others if peer not in self._answers)

    def any_member_has_entries(self) -> bool:
        """Whether a member that answered holds any entry."""
        return any(answer.last_index >= 0 for answer in self._answers.values())

    @property
    def _own_vote_counts(self) -> bool:
        """A recovering member elects nobody, itself included; in a salvage election every vote counts."""
        return self.request.salvage or not self._state.recovering

    def _may_salvage(self) -> bool:
        settings, answers = self._state.settings, self._answers.values()
        needed = settings.quorum if self._allow_missing else len(settings.peers)
        if len(answers) + 1 < needed or any(answer.cause is VoteCause.HAS_LEADER for answer in answers):
            return False
        sound = (not self._state.recovering) + sum(not answer.recovering for answer in answers)
        own = (self._state.terms.last_term, self._state.terms.last_index)
        return sound < settings.quorum and all((answer.last_term, answer.last_index) <= own for answer in answers)
