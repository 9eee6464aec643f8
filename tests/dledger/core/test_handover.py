"""When a leader hands over."""

from dledger.core.messages import TransferRequest, VoteCause, VoteResponse
from tests.dledger.core.core_strategies import elect, make_raft, save
from tests.dledger.core.test_raft_paper import accepted, answers


def test_a_leader_that_is_writable_from_its_election_on_hands_over_no_open_proposal() -> None:
    """Its commit index does not move between its election and its first proposals."""
    raft = make_raft([1], commit_index=0)
    elect(raft)
    assert raft.soft_state.writable
    raft.propose(1)
    raft.step("n2", accepted(2, 2))
    assert raft.state.commit_index == 0
    raft.transfer("n2")
    save(raft)
    raft.step("n2", VoteResponse(3, True, True, VoteCause.GRANTED, 2, 2))
    assert not answers(save(raft), TransferRequest)
    raft.durable(2)
    assert answers(save(raft), TransferRequest)


def test_a_leader_that_was_never_writable_hands_over_to_a_member_that_holds_all_entries() -> None:
    """The leader's vote makes it a leader, so an entry that it lacks would be lost, and may have been committed."""
    raft = make_raft([1, 1])
    elect(raft)
    raft.step("n2", accepted(2, 1))
    raft.transfer("n2")
    save(raft)
    raft.step("n2", VoteResponse(3, True, True, VoteCause.GRANTED, 1, 1))
    assert not answers(save(raft), TransferRequest)
    raft.step("n2", accepted(2, 2))
    assert answers(save(raft), TransferRequest)
