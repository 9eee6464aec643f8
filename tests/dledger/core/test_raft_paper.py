"""The claims of the Raft dissertation (Ongaro 2014), one test each, with the section that makes it."""

import pytest

from dledger.core.ballot import Ballot, BallotOutcome
from dledger.core.errors import ImplausibleMessageError, InvariantError, NotLeaderError
from dledger.core.messages import (
    NO_INDEX,
    NO_TERM,
    TERM_LEAP_MAX,
    AppendRequest,
    AppendResponse,
    HardState,
    InstallRequest,
    InstallResponse,
    Message,
    TermRun,
    TransferRequest,
    VoteCause,
    VoteRequest,
    VoteResponse,
)
from dledger.core.raft import Raft
from dledger.core.ready import AppendSpan, ResetLog, TermStart, TruncateAfter
from dledger.core.roles import RaftRole, SoftState
from dledger.core.settings import RaftSettings
from dledger.core.state_parts import StateOut
from tests.dledger.core.core_strategies import PEERS, MemorySource, elect, make_raft, save, span


def append(
    term: int, prev: tuple[int, int], *, entries: tuple[int, int, int] | None = None, commit: int = NO_INDEX
) -> AppendRequest:
    """From n2: `prev` is (term, index), `entries` (term, first, last)."""
    return AppendRequest(term, "n2", prev[1], prev[0], span(*entries) if entries else None, commit, NO_INDEX, 1)


def accepted(term: int, index: int, sequence: int = 1) -> AppendResponse:
    return AppendResponse(term, True, NO_INDEX, index, index, sequence)


def answers(sent: list[tuple[str, Message]], kind: type[Message]) -> list[Message]:
    return [message for _, message in sent if isinstance(message, kind)]


def test_servers_start_as_followers() -> None:
    """Section 3.3."""
    assert make_raft().member.role is RaftRole.FOLLOWER


@pytest.mark.parametrize("role", ["follower", "candidate", "leader"])
def test_a_later_term_makes_a_follower_of_anyone(role: str) -> None:
    """Section 3.3: if a candidate or leader discovers that its term is out of date, it reverts to follower."""
    raft = make_raft([1])
    if role == "leader":
        elect(raft)
    elif role == "candidate":
        raft.tick(5_000)
        raft.member._become_candidate()
    save(raft)
    raft.step("n2", append(9, (1, 0)))
    assert (raft.member.role, raft.state.term, raft.member.leader_id) == (RaftRole.FOLLOWER, 9, "n2")


def test_a_message_of_an_earlier_term_is_refused() -> None:
    """Section 3.3: a request with a stale term number is rejected; the answer tells the later term."""
    raft = make_raft([1], term=5)
    raft.step("n2", append(4, (1, 0), entries=(4, 1, 1)))
    ready = raft.ready()
    assert ready is not None and not ready.writes
    [(peer, answer)] = ready.messages
    assert isinstance(answer, AppendResponse)
    assert (peer, answer.term, answer.accepted) == ("n2", 5, False)


def test_a_leader_sends_heartbeats() -> None:
    """Section 3.4: leaders send periodic heartbeats to all followers to maintain their authority."""
    raft = make_raft()
    elect(raft)
    raft.tick(raft.state.now_ms + raft.settings.heartbeat_ms)
    beats = [peer for peer, message in save(raft) if isinstance(message, AppendRequest)]
    assert sorted(beats) == ["n2", "n3"]


def test_a_follower_that_hears_nobody_starts_an_election() -> None:
    """Section 3.4, with the pre-vote of 9.6: it asks first, and raises its term only when a quorum agrees."""
    raft = make_raft([1])
    raft.tick(raft.settings.election_max_ms)
    assert (raft.member.role, raft.state.term) == (RaftRole.PRE_CANDIDATE, 1)
    save(raft)
    raft.step("n3", VoteResponse(2, True, True, VoteCause.GRANTED, 0, 1))
    assert (raft.member.role, raft.state.term, raft.state.voted_for) == (RaftRole.CANDIDATE, 2, "n1")


def test_a_candidate_wins_with_the_votes_of_a_majority_of_the_full_cluster() -> None:
    """Section 3.4."""
    raft = make_raft(peers=("n1", "n2", "n3", "n4", "n5"))
    raft.member._become_candidate()
    save(raft)
    raft.step("n2", VoteResponse(1, True, False, VoteCause.GRANTED, NO_INDEX, NO_TERM))
    raft.step("n2", VoteResponse(1, True, False, VoteCause.GRANTED, NO_INDEX, NO_TERM))
    assert raft.member.leader is None
    raft.step("n4", VoteResponse(1, True, False, VoteCause.GRANTED, NO_INDEX, NO_TERM))
    assert raft.member.leader is not None


def test_a_candidate_does_not_count_its_own_vote_before_it_is_durable() -> None:
    """Section 3.8: servers persist term and vote before answering."""
    raft = make_raft()
    raft.member._become_candidate()
    ready = raft.ready()
    assert ready is not None and ready.hard_state == HardState(1, "n1")
    assert answers(ready.messages, VoteRequest), "the others' votes bind only them"
    for peer in ("n2", "n3"):
        raft.step(peer, VoteResponse(1, True, False, VoteCause.GRANTED, NO_INDEX, NO_TERM))
        assert raft.member.leader is None
    raft.persisted(HardState(1, "n1"))
    assert raft.member.leader is not None


@pytest.mark.parametrize(("voted_for", "cause"), [("n2", VoteCause.GRANTED), ("n3", VoteCause.VOTED_OTHER)])
def test_each_server_votes_for_at_most_one_candidate_in_a_term(voted_for: str, cause: VoteCause) -> None:
    """Section 3.4: on a first-come-first-served basis; the same candidate may ask again."""
    raft = make_raft([1], term=2, voted_for=voted_for)
    raft.step("n2", VoteRequest(2, "n2", 0, 1, pre_vote=False))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.cause is cause


def test_a_vote_leaves_only_when_it_is_durable() -> None:
    """Section 3.8."""
    raft = make_raft([1])
    raft.step("n2", VoteRequest(2, "n2", 0, 1, pre_vote=False))
    ready = raft.ready()
    assert ready is not None and ready.hard_state == HardState(2, "n2") and not ready.messages
    raft.persisted(HardState(2, "n2"))
    ready = raft.ready()
    assert ready is not None
    assert [message.granted for _, message in ready.messages if isinstance(message, VoteResponse)] == [True]


def test_a_candidate_that_hears_a_leader_of_its_term_follows() -> None:
    """Section 3.4."""
    raft = make_raft([1])
    raft.member._become_candidate()
    save(raft)
    raft.step("n2", append(2, (1, 0)))
    assert (raft.member.role, raft.member.leader_id) == (RaftRole.FOLLOWER, "n2")


def test_election_time_outs_are_spread_over_the_interval() -> None:
    """Section 3.4: randomised time-outs, so that split votes are rare."""
    settings = make_raft().settings
    for share in (0.0, 0.5, 0.999):
        raft = make_raft()
        raft.state.jitter = lambda limit, share=share: int(limit * share)  # type: ignore[misc]  # bound now
        raft.member.clock.restart()
        assert settings.election_min_ms <= raft.member.clock.deadline_ms <= settings.election_max_ms


def test_a_new_leader_opens_its_term_with_an_entry() -> None:
    """Section 6.4: a leader commits a blank entry at the start of its term."""
    raft = make_raft([1, 1])
    raft.member._become_candidate()
    save(raft)
    raft.step("n2", VoteResponse(2, True, False, VoteCause.GRANTED, 1, 1))
    ready = raft.ready()
    assert ready is not None and ready.writes == [TermStart(2, 2)]


def test_only_a_leader_takes_proposals() -> None:
    """Section 3.5: clients send to the leader; others say who leads."""
    raft = make_raft([1])
    raft.step("n2", append(1, (1, 0)))
    with pytest.raises(NotLeaderError) as refused:
        raft.propose(1)
    assert (refused.value.leader_id, refused.value.term) == ("n2", 1)


@pytest.mark.parametrize("votes", [(), ("n2",), ("n2", "n3")])
def test_an_entry_is_committed_when_a_majority_holds_it(votes: tuple[str, ...]) -> None:
    """Section 3.5; counting begins with the leader's own durable log."""
    raft = make_raft()
    elect(raft)
    raft.durable(0)
    for peer in votes:
        raft.step(peer, accepted(1, 0))
    assert (raft.state.commit_index == 0) == bool(votes)


def test_what_a_member_acknowledged_before_it_recovered_does_not_count() -> None:
    """Ours: a member that may have forgotten entries counts again with those that it acknowledges anew."""
    raft = make_raft()
    elect(raft)
    raft.step("n2", accepted(1, 0))
    for sequence, is_recovering in ((2, True), (3, False)):
        raft.step("n2", AppendResponse(1, True, NO_INDEX, NO_INDEX, NO_INDEX, sequence, is_recovering))
    raft.durable(0)
    assert raft.state.commit_index == NO_INDEX
    raft.step("n2", accepted(1, 0, 4))
    assert raft.state.commit_index == 0


def test_a_leader_that_is_slow_to_flush_does_not_count_itself() -> None:
    """Section 10.2.1: the leader may commit with the durable logs of the others."""
    raft = make_raft()
    elect(raft)
    raft.step("n2", accepted(1, 0))
    assert raft.state.commit_index == NO_INDEX
    raft.step("n3", accepted(1, 0))
    assert raft.state.commit_index == 0


def test_followers_learn_the_commit_index_but_never_beyond_what_they_share_with_the_leader() -> None:
    """Section 3.5: min(leaderCommit, index of last new entry)."""
    raft = make_raft([1, 1, 1])
    raft.step("n2", append(2, (1, 1), commit=9))
    assert raft.state.commit_index == 1


@pytest.mark.parametrize(
    ("terms", "prev", "accepts"),
    [
        ([1, 1], (1, 1), True),
        ([1, 1], (NO_TERM, NO_INDEX), True),
        ([1, 1], (1, 2), False),
        ([1, 2], (1, 1), False),
        ([1, 1], (2, 1), False),
    ],
)
def test_appends_are_refused_unless_the_previous_entry_is_the_same(
    terms: list[int], prev: tuple[int, int], accepts: bool
) -> None:
    """Section 3.5: the consistency check."""
    raft = make_raft(terms)
    raft.step("n2", append(5, prev))
    [answer] = answers(save(raft), AppendResponse)
    assert isinstance(answer, AppendResponse) and answer.accepted is accepts


def test_a_conflicting_suffix_is_replaced() -> None:
    """Section 3.5: the leader makes followers' logs equal its own."""
    raft = make_raft([1, 1, 2, 2])
    raft.step("n2", append(3, (1, 1), entries=(3, 2, 2)))
    ready = raft.ready()
    assert ready is not None and ready.writes == [TruncateAfter(1), AppendSpan(span(3, 2, 2))]


def test_entries_that_agree_are_kept_even_beyond_the_request() -> None:
    """Section 3.5: a late request must not take back what was acknowledged since."""
    raft = make_raft([1, 1, 1, 1])
    raft.step("n2", append(1, (1, 0), entries=(1, 1, 2)))
    ready = raft.ready()
    assert ready is not None and not ready.writes
    assert raft.state.terms.last_index == 3


def test_a_follower_never_drops_what_is_committed() -> None:
    """Section 3.6: leader completeness means that it is never asked to; one that is asked refuses."""
    raft = make_raft([1, 1, 1], commit_index=2)
    with pytest.raises(InvariantError, match="committed up to 2"):
        raft.step("n2", append(9, (1, 0), entries=(9, 1, 1)))
    assert raft.state.terms.last_index == 2


def test_one_reject_tells_the_leader_where_the_logs_part() -> None:
    """Section 3.5, the optimisation: the conflicting terms and their first indexes; here all of them at once."""
    raft = make_raft([1, 1, 3, 3, 3, 5])
    elect(raft)
    reject = AppendResponse(6, False, 5, 7, 7, 1, False, (TermRun(1, 0), TermRun(2, 2), TermRun(4, 4)))
    raft.step("n2", reject)
    probes = [message.prev_index for peer, message in save(raft) if isinstance(message, AppendRequest) and peer == "n2"]
    assert probes == [1]


@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"), [(1, 9, False), (2, 1, False), (2, 2, True), (2, 3, True), (3, 0, True)]
)
def test_votes_go_only_to_logs_that_are_up_to_date(last_term: int, last_index: int, granted: bool) -> None:
    """Section 3.6.1: later last term, or the same and at least as long."""
    raft = make_raft([1, 2, 2])
    raft.step("n2", VoteRequest(7, "n2", last_index, last_term, pre_vote=False))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.granted is granted


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Section 3.6.2 and figure 3.7."""
    raft = make_raft([1, 2])
    elect(raft)
    raft.durable(2)
    raft.step("n2", accepted(3, 1))
    assert raft.state.commit_index == NO_INDEX
    raft.step("n2", accepted(3, 2))
    assert raft.state.commit_index == 2


def test_requests_may_come_twice() -> None:
    """Section 3.7: Raft's requests are idempotent."""
    raft = make_raft([1])
    for _ in range(2):
        raft.step("n2", append(1, (1, 0), entries=(1, 1, 2), commit=1))
    assert (raft.state.terms.last_index, raft.state.commit_index) == (2, 1)


def test_leadership_is_transferred_by_telling_a_caught_up_follower_to_campaign() -> None:
    """Section 3.10."""
    raft = make_raft()
    elect(raft)
    raft.durable(0)
    raft.step("n2", accepted(1, 0))
    raft.propose(1)
    assert raft.transfer("n2") == "n2"
    raft.step("n2", VoteResponse(2, True, True, VoteCause.GRANTED, 0, 1))
    assert not answers(save(raft), TransferRequest)
    raft.step("n2", accepted(1, 1))
    assert not answers(save(raft), TransferRequest), "the peer holds the entry, but it is not committed"
    raft.durable(1)
    sent = save(raft)
    assert [peer for peer, message in sent if isinstance(message, TransferRequest)] == ["n2"]
    [vote] = answers(sent, VoteResponse)
    assert isinstance(vote, VoteResponse) and vote.granted and vote.term == 2


def test_a_leader_that_was_never_writable_hands_over_what_is_not_committed() -> None:
    """Section 3.10: nobody waits for its entries. Its own do not count, since one of them is damaged here."""
    raft = make_raft([1, 1])
    elect(raft)
    raft.step("n2", accepted(2, 2))
    assert raft.state.commit_index < 2
    assert raft.transfer("n2") == "n2"
    save(raft)
    raft.step("n2", VoteResponse(3, True, True, VoteCause.GRANTED, 2, 2))
    sent = save(raft)
    assert [peer for peer, message in sent if isinstance(message, TransferRequest)] == ["n2"]


def test_a_leader_that_hands_over_and_its_successor_have_their_votes_on_disk_before_proposals_are_refused() -> None:
    """No disk is waited for between the last proposal of the one and the first of the other."""
    leader, target = make_raft([1], commit_index=0), make_raft([1], name="n2", commit_index=0)
    elect(leader)
    leader.durable(1)
    leader.step("n2", accepted(2, 1))
    save(leader)
    target.step("n1", AppendRequest(2, "n1", 0, 1, span(2, 1, 1), 1, 1, 1))
    target.durable(1)
    save(target)
    leader.transfer("n2")
    assert leader.propose(1) == 2, "the successor has not said yes"
    leader.withdraw(2)
    [question] = answers(save(leader), VoteRequest)
    assert leader.state.saved == HardState(3, "n2") and leader.state.term == 2
    target.step("n1", question)
    ready = target.ready()
    assert ready is not None and ready.hard_state == HardState(3, "n2") and not ready.messages
    target.persisted(HardState(3, "n2"))
    [yes] = answers(save(target), VoteResponse)
    leader.step("n2", yes)
    with pytest.raises(NotLeaderError):
        leader.propose(1)
    ready = leader.ready()
    assert ready is not None and ready.hard_state is None
    for _, message in ready.messages:
        target.step("n1", message)
    ready = target.ready()
    assert ready is not None and ready.hard_state is None
    assert target.soft_state.writable and target.state.term == 3


def test_a_deposed_leader_is_told_at_once_and_of_the_new_term_when_the_disk_has_it() -> None:
    """It must not answer as a leader meanwhile. One that leads again must have dropped what it had placed before."""
    raft = make_raft([1], commit_index=0)
    elect(raft)
    raft.durable(1)
    raft.step("n2", accepted(2, 1))
    save(raft)
    assert raft.soft_state.writable
    raft.member.become_follower(3, None)
    saving = raft.ready()
    assert saving is not None and saving.hard_state == HardState(3, "")
    assert saving.soft_state == SoftState(RaftRole.FOLLOWER, 2, None, False, False)
    raft.member._become_candidate()
    raft.step("n2", VoteResponse(4, True, False, VoteCause.GRANTED, NO_INDEX, NO_TERM))
    raft.persisted(saving.hard_state)
    again = raft.ready()
    assert again is not None and again.hard_state == HardState(4, "n1") and again.soft_state is None
    raft.persisted(again.hard_state)
    told = [ready.soft_state for ready in iter(raft.ready, None) if ready.soft_state is not None]
    assert [(soft.role, soft.term, soft.writable) for soft in told] == [(RaftRole.LEADER, 4, True)]


def test_a_vote_that_was_saved_ahead_binds_nobody() -> None:
    """Until it is given: a member that was to lead the next term may vote for another one in it."""
    raft = make_raft([1])
    raft.step("n2", append(1, (1, 0)))
    raft.step("n2", VoteRequest(2, "n2", 0, 1, pre_vote=True, transfer=True))
    save(raft)
    assert raft.state.saved == HardState(2, "n1") and (raft.state.term, raft.state.unsaved) == (1, False)
    raft.step("n3", VoteRequest(2, "n3", 0, 1, pre_vote=False, transfer=True))
    ready = raft.ready()
    assert ready is not None and ready.hard_state == HardState(2, "n3") and not answers(ready.messages, VoteResponse)
    raft.persisted(HardState(2, "n3"))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.granted


def test_a_vote_waits_while_another_one_saved_ahead_is_being_written() -> None:
    """The disk may have either when the node comes back."""
    raft = make_raft([1], commit_index=0)
    elect(raft)
    raft.durable(1)
    for peer in ("n2", "n3"):
        raft.step(peer, accepted(2, 1))
    raft.transfer("n2")
    save(raft)
    raft.step("n2", VoteResponse(2, False, True, VoteCause.STALE_TERM, 1, 2))
    raft.transfer("n3")
    ready = raft.ready()
    assert raft.state.saved == HardState(3, "n2")
    assert ready is not None and ready.hard_state == HardState(3, "n3")
    raft.step("n2", VoteRequest(3, "n2", 1, 2, pre_vote=False, transfer=True))
    assert (raft.state.term, raft.state.voted_for) == (3, "n2")
    deposed = raft.ready()
    assert deposed is not None and deposed.hard_state is None and not deposed.messages
    raft.persisted(HardState(3, "n3"))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.granted and raft.state.saved == HardState(3, "n2")


def test_a_vote_for_what_an_earlier_life_held_does_not_count() -> None:
    """A candidate whose own vote is not on disk may ask in its term again, after a power cut that took entries."""
    raft = make_raft([1, 1])
    raft.member._become_candidate()
    save(raft)
    raft.step("n3", VoteResponse(2, True, False, VoteCause.GRANTED, 2, 1))
    assert raft.member.leader is None, "n3 holds an entry more, and would not vote for this log"
    raft.step("n2", VoteResponse(2, True, False, VoteCause.GRANTED, 1, 1))
    assert raft.member.leader is not None


def test_a_leader_keeps_its_place_when_it_loses_the_connection_to_its_successor() -> None:
    raft = make_raft()
    elect(raft)
    raft.durable(0)
    raft.step("n2", accepted(1, 0))
    raft.propose(1)
    raft.transfer("n2")
    raft.step("n2", VoteResponse(2, True, True, VoteCause.GRANTED, 0, 1))
    raft.step("n2", accepted(1, 1))
    save(raft)
    raft.peer_lost("n2")
    raft.durable(1)
    assert not answers(save(raft), TransferRequest)
    assert raft.soft_state.writable and raft.propose(1) == 2


def test_a_server_told_to_take_over_campaigns_at_once_and_others_let_it() -> None:
    """Section 4.2.3: such requests carry a flag that overrides the time-out check."""
    target, voter = make_raft([1], name="n2"), make_raft([1], name="n3")
    for raft in (target, voter):
        raft.step("n1", AppendRequest(1, "n1", 0, 1, None, 0, 0, 1))
        save(raft)
    target.step("n1", TransferRequest(1, "n1"))
    [request, _] = answers(save(target), VoteRequest)
    voter.step("n2", request)
    [answer] = answers(save(voter), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.granted


def test_a_server_that_hears_a_leader_does_not_let_itself_be_disrupted() -> None:
    """Section 4.2.3: a vote request within the minimum election time-out neither moves the term nor is granted."""
    raft = make_raft([1])
    raft.step("n2", append(1, (1, 0)))
    save(raft)
    raft.step("n3", VoteRequest(8, "n3", 5, 5, pre_vote=False))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.cause is VoteCause.HAS_LEADER
    assert raft.state.term == 1


def test_a_lagging_follower_is_sent_the_state_and_the_place_where_the_log_begins() -> None:
    """Section 5.1: what was discarded cannot be sent as entries."""
    raft = make_raft([1])
    raft.step("n2", InstallRequest(3, "n2", 10, 480, 2, 1, 5, 0, b"state", 1))
    ready = raft.ready()
    assert ready is not None and ready.writes == [ResetLog(10, 480, 2, b"state")]
    assert (raft.state.commit_index, raft.state.terms.last_index, raft.state.terms.last_term) == (9, 9, 2)


def install_part(start: int, part: bytes, *, state_id: int = 1) -> InstallRequest:
    return InstallRequest(3, "n2", 10, 480, 2, state_id, 9, start, part, 1)


def test_a_state_in_parts_is_taken_when_it_is_whole_whatever_is_lost_or_doubled() -> None:
    """Section 5.1: "snapshots are split into chunks for transmission"; each answer says what is here."""
    raft = make_raft([1])
    ends = []
    for request in (
        install_part(3, b"def"),  # its first part is lost
        install_part(0, b"old", state_id=0),
        install_part(0, b"abc"),
        install_part(0, b"abc"),
        install_part(6, b"ghi"),
        install_part(3, b"def"),
    ):
        raft.step("n2", request)
        [answer] = answers(save(raft), InstallResponse)
        assert raft.state.terms.last_index == 0
        assert isinstance(answer, InstallResponse) and not answer.accepted
        ends.append(answer.state_end)
    assert ends == [0, 3, 3, 3, 3, 6]
    raft.step("n2", install_part(6, b"ghi"))
    ready = raft.ready()
    assert ready is not None and ready.writes == [ResetLog(10, 480, 2, b"abcdefghi")]


@pytest.mark.parametrize(("size", "start"), [((1 << 30) + 1, 0), (4, 0), (9, -1), (9, 7)])
def test_a_part_that_is_outside_its_state_or_of_too_large_a_one_is_ignored(size: int, start: int) -> None:
    """No buffer without a bound."""
    raft = make_raft([1])
    raft.step("n2", InstallRequest(3, "n2", 10, 480, 2, 1, size, start, b"12345", 1))
    assert raft.member.ignored_count == 1
    assert not answers(save(raft), InstallResponse)


def test_a_follower_that_receives_a_state_in_parts_is_within_reach_as_long_as_parts_arrive() -> None:
    """Section 5.1: the entries that follow the state must be kept until it is there."""
    raft = make_raft()
    elect(raft)
    raft.durable(0)
    raft.step("n2", accepted(1, 0))
    leader = raft.member.leader
    assert leader is not None
    progress = leader.peers["n3"]
    progress.state_out = StateOut(1, 0, 0, NO_TERM, bytes(3000))
    progress.moved_ms = raft.state.now_ms - 1_000_000
    assert raft.needed_index() == 1, "n3 lacks index 0, but has received nothing for long"
    raft.step("n3", InstallResponse(1, False, NO_INDEX, 1, state_end=1000))
    assert raft.needed_index() == 0
    progress.moved_ms = raft.state.now_ms - 1_000_000
    raft.step("n3", InstallResponse(1, False, NO_INDEX, 1, state_end=1000))
    assert raft.needed_index() == 1, "the same part again is no movement"


def test_an_install_of_what_is_held_already_changes_nothing() -> None:
    """Section 5.1: a late or doubled install must not discard entries that were acknowledged since."""
    raft = make_raft([1, 1, 1], commit_index=2)
    raft.step("n2", InstallRequest(3, "n2", 2, 96, 1, 2, 5, 0, b"state", 1))
    ready = raft.ready()
    assert ready is not None and not ready.writes
    assert raft.state.terms.last_index == 2 and raft.member.ignored_count == 1


@pytest.mark.parametrize(
    ("damaged_index", "prev_term", "is_kept"),
    [(2, 1, True), (2, NO_TERM, True), (4, 1, False), (None, 1, False)],
)
def test_only_a_log_with_a_damaged_entry_below_drops_what_the_leader_deleted(
    damaged_index: int | None, prev_term: int, is_kept: bool
) -> None:
    """Section 5.1: what is deleted cannot be sent again; what was acknowledged behind it stays.

    A leader whose start file was lost does not know the term before its first entry.
    """
    raft = make_raft([1, 1, 1, 1, 1, 1], commit_index=5)
    source = raft.state.source
    assert isinstance(source, MemorySource)
    source.damaged_index = damaged_index
    if damaged_index is not None:
        raft.state.durable_index = damaged_index - 1
    raft.step("n2", InstallRequest(1, "n2", 4, 64, prev_term, 1, 5, 0, b"state", 1))
    ready = raft.ready()
    assert ready is not None and ready.writes == ([ResetLog(4, 64, prev_term, b"state", keep=True)] if is_kept else [])
    terms = raft.state.terms
    assert (terms.first_index, terms.last_index, raft.state.commit_index) == (4 if is_kept else 0, 5, 5)
    assert raft.member.ignored_count == (not is_kept)
    assert raft.state.durable_index == (5 if damaged_index is None else 3)


@pytest.mark.parametrize("first_index", [6, 9])
def test_a_damaged_log_with_nothing_behind_what_the_leader_deleted_starts_anew(first_index: int) -> None:
    """Its last file has another end than the leader's log has a start, so nothing could be written behind it."""
    raft = make_raft([1, 1, 1, 1, 1, 1], commit_index=5)
    source = raft.state.source
    assert isinstance(source, MemorySource)
    source.damaged_index, raft.state.durable_index = 2, 1
    raft.step("n2", InstallRequest(1, "n2", first_index, 640, 1, 1, 5, 0, b"state", 1))
    ready = raft.ready()
    assert ready is not None and ready.writes == [ResetLog(first_index, 640, 1, b"state", keep=False)]
    terms, end = raft.state.terms, first_index - 1
    assert (terms.first_index, terms.last_index, raft.state.durable_index) == (first_index, end, end)


def test_a_member_whose_leader_has_no_copy_of_its_damaged_entry_says_that_its_log_ends_before() -> None:
    """Section 5.1: so the leader sees that it has deleted what comes next, and does not count what lies behind."""
    raft = make_raft([1, 1, 1, 1], commit_index=3)
    source = raft.state.source
    assert isinstance(source, MemorySource)
    source.damaged_index, raft.state.durable_index = 2, 1

    def answer(sequence: int = 1) -> tuple[bool, int, int]:
        raft.step("n2", AppendRequest(1, "n2", 3, 1, None, 3, NO_INDEX, sequence))
        [found] = answers(save(raft), AppendResponse)
        assert isinstance(found, AppendResponse)
        return found.accepted, found.received_index, found.durable_index

    assert answer() == (True, 3, 1)
    raft.no_copy("n3", 2)
    assert answer() == (True, 3, 1), "another member has no copy; the leader may have one"
    raft.no_copy("n2", 2)
    raft.no_copy("n2", 3)  # damaged, too
    assert answer() == (False, 1, 1)
    raft.step("n2", append(1, (1, 1), entries=(1, 2, 3)))
    assert not answers(save(raft), AppendResponse), "once in a round"
    assert answer(sequence=2) == (False, 1, 1)
    source.damaged_index = None
    assert answer() == (True, 3, 1), "repaired with a copy of the third member"


def test_a_damaged_entry_that_the_leader_never_had_is_replaced() -> None:
    """Section 5.1: it has no copy of it, but has deleted only what is committed."""
    raft = make_raft([1, 1, 1, 1], commit_index=1)
    source = raft.state.source
    assert isinstance(source, MemorySource)
    source.damaged_index, raft.state.durable_index = 2, 1
    raft.step("n2", AppendRequest(2, "n2", 1, 1, None, 1, NO_INDEX, 1))
    save(raft)
    raft.no_copy("n2", 2)
    raft.step("n2", append(2, (1, 1), entries=(2, 2, 2)))
    ready = raft.ready()
    assert ready is not None and ready.writes[0] == TruncateAfter(1)
    assert raft.state.terms.last_term == 2


def test_a_leader_without_a_quorum_steps_down() -> None:
    """Section 6.2: if an election time-out elapses without a round of heartbeats to a majority."""
    raft = make_raft()
    elect(raft)
    raft.tick(raft.state.now_ms + raft.settings.election_max_ms + 1)
    assert raft.member.role is RaftRole.FOLLOWER


def test_a_read_index_waits_for_a_round_of_heartbeats_and_for_an_entry_of_the_term() -> None:
    """Section 6.4."""
    raft = make_raft()
    elect(raft)
    raft.durable(0)
    raft.read_index(7)
    save(raft)
    raft.step("n2", accepted(1, NO_INDEX, sequence=1))
    ready = raft.ready()
    assert ready is None or not ready.reads  # that answer is to a round before the read
    raft.step("n2", accepted(1, 0, sequence=2))
    raft.step("n3", accepted(1, 0, sequence=2))
    ready = raft.ready()
    assert ready is not None and [(read.token, read.index) for read in ready.reads] == [(7, 0)]


def test_a_pre_vote_moves_no_term_on_either_side() -> None:
    """Section 9.6."""
    raft = make_raft([1])
    raft.step("n2", VoteRequest(9, "n2", 5, 5, pre_vote=True))
    [answer] = answers(save(raft), VoteResponse)
    assert isinstance(answer, VoteResponse) and answer.granted
    assert (raft.state.term, raft.state.voted_for) == (1, "")


@pytest.mark.parametrize("term", [4 + TERM_LEAP_MAX, 2**63 - 1])
def test_a_message_of_a_term_far_ahead_changes_nothing(term: int) -> None:
    raft = make_raft([1, 3], commit_index=1)
    save(raft)
    requests: tuple[Message, ...] = (
        AppendRequest(term, "n2", 1, 3, None, 0, 0, 1),
        VoteRequest(term, "n2", 9, term, pre_vote=False),
        InstallRequest(term, "n2", 100, 5000, 3, 1, 0, 0, b"", 1),
    )
    for number, request in enumerate(requests, 1):
        with pytest.raises(ImplausibleMessageError, match="this node's term 3"):
            raft.step("n2", request)
        assert raft.member.ignored_count == number
    assert raft.state.term == 3 and raft.state.terms.last_index == 1 and raft.ready() is None


def test_the_farthest_plausible_term_is_taken() -> None:
    raft = make_raft([1, 3])
    raft.step("n2", VoteRequest(3 + TERM_LEAP_MAX, "n2", 1, 3, pre_vote=False))
    assert raft.state.term == 3 + TERM_LEAP_MAX


def test_an_install_drops_nothing_where_the_log_holds_the_entry_before_the_leaders_first() -> None:
    raft = make_raft([1, 1, 2, 2, 2], term=3)
    raft.step("n2", InstallRequest(3, "n2", 4, 64, 2, 1, 0, 0, b"", 1))
    ready = raft.ready()
    assert ready is not None and not ready.writes, "entries 0 to 3 equal the leader's: there is nothing to drop"
    assert raft.state.terms.last_index == 4
    raft.step("n2", InstallRequest(3, "n2", 4, 64, 1, 1, 0, 0, b"", 1))
    ready = raft.ready()
    assert raft.member.follower.matched_index == 3 and ready is not None and not ready.writes


def forgetful() -> Raft:
    """A node in term 3 that gave votes which it does not know any more, and follows n2."""
    settings = RaftSettings(node_id="n1", peers=PEERS)
    hard_state = HardState(3, "", recovering=True, forgot_votes=True)
    raft = Raft(settings, hard_state, MemorySource([1, 3]), bytes, lambda limit: 0)
    raft.step("n2", append(3, (3, 1)))
    save(raft)
    return raft


def test_a_member_of_a_later_term_leaves_it_open_which_votes_were_forgotten() -> None:
    raft = forgetful()
    raft.step("n3", VoteRequest(5, "n3", 9, 3, pre_vote=False))
    assert (raft.state.term, raft.state.unheard) == (3, {"n3"}), "n2 leads: the later term is not entered"
    raft.step("n3", VoteRequest(4, "n3", 9, 3, pre_vote=True))
    assert (raft.state.unheard, raft.state.recovering) == (set(), True), "its own term is 3"


def test_a_candidate_that_forgot_its_votes_does_not_win_by_those_of_others() -> None:
    raft = forgetful()
    ballot = Ballot(raft.state, VoteRequest(4, "n1", 1, 3, pre_vote=True), allow_missing=False)
    granted = VoteResponse(4, True, True, VoteCause.GRANTED, 1, 3)
    assert raft.state.unheard == {"n3"}
    assert [ballot.record(peer, granted) for peer in ("n2", "n3")] == [BallotOutcome.OPEN, BallotOutcome.OPEN]
    raft.state.unheard.clear()
    assert ballot.outcome() is BallotOutcome.WON


def test_a_vote_of_a_term_before_that_of_the_last_entry_binds_nobody() -> None:
    raft = make_raft([1, 3], term=2, voted_for="n3")
    assert (raft.state.term, raft.state.voted_for) == (3, "")


def test_a_refused_span_takes_the_news_of_its_leader_back() -> None:
    raft = make_raft([1], term=2)
    raft.step("n2", append(2, (1, 0), entries=(2, 1, 1)))
    ready = raft.ready()
    assert ready is not None and ready.soft_state is not None and ready.soft_state.leader_id == "n2"
    raft.refused()
    again = raft.ready()
    assert again is not None and again.soft_state == ready.soft_state


def test_a_commit_index_is_not_told_when_the_entries_in_its_place_could_not_be_dropped() -> None:
    raft = make_raft([1, 1, 1], term=1)
    raft.step("n2", append(2, (1, 0), entries=(2, 1, 2), commit=2))
    ready = raft.ready()
    assert ready is not None and ready.writes[0] == TruncateAfter(0) and ready.commit_index == 2
    raft.refused()
    assert raft.state.commit_index == -1
    again = raft.ready()
    assert again is None or again.commit_index is None


def test_followers_without_entries_under_way_learn_at_once_what_is_committed() -> None:
    """Consumers may read there, and a heartbeat is far away."""
    raft = make_raft([1])
    elect(raft)
    save(raft)
    for peer in ("n2", "n3"):
        raft.step(peer, accepted(2, raft.state.terms.last_index))
    assert raft.state.commit_index == raft.state.terms.last_index
    told = {peer: message for peer, message in save(raft) if isinstance(message, AppendRequest)}
    assert {peer: (message.commit_index, message.span) for peer, message in told.items()} == dict.fromkeys(
        ("n2", "n3"), (raft.state.commit_index, None)
    )
    raft.step("n2", accepted(2, raft.state.terms.last_index))
    raft.tick(raft.state.now_ms + 1)
    assert not save(raft), "once is enough"


def test_a_log_is_kept_for_members_that_take_something_and_no_longer_for_one_that_does_not() -> None:
    raft = make_raft([1])
    elect(raft)

    def pass_time(elections: int, *, level: tuple[str, ...]) -> None:
        for _ in range(elections * raft.settings.election_max_ms // raft.settings.heartbeat_ms):
            raft.tick(raft.state.now_ms + raft.settings.heartbeat_ms)
            last_index = raft.state.terms.last_index
            for peer in ("n2", "n3"):
                asked = [message for to, message in save(raft) if to == peer]
                sequence = max((message.sequence for message in asked if isinstance(message, AppendRequest)), default=1)
                raft.step(peer, accepted(2, last_index if peer in level else 1, sequence))

    pass_time(20, level=("n2", "n3"))
    assert raft.needed_index() == 2, "all have all"
    raft.propose(1)
    assert raft.needed_index() == 2, "a member that was idle with the whole log is within reach"
    pass_time(5, level=("n2",))
    assert raft.needed_index() == 2
    pass_time(6, level=("n2",))
    assert raft.needed_index() == 3, "n3 is connected, and takes nothing"
