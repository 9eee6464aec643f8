"""Invariants of one node: of its state at any moment, and of the change from one state to the next.

Each check is a function whose docstring states the invariant; `check` calls them all. The simulation and the property
tests call it after every event of every node. Production does not: its own guards are where the decisions are made.
Invariants across nodes (one leader for each term, equal logs) are checked by the tests that see all nodes.

Source: logcabin `Server/RaftConsensusInvariants.cc` (checkBasic, checkDelta).
"""

from typing import NamedTuple

from dledger.core.errors import InvariantError
from dledger.core.raft import Raft
from dledger.core.roles import RaftRole

_IMPOSSIBLE_EDGES = {
    (RaftRole.FOLLOWER, RaftRole.LEADER),
    (RaftRole.PRE_CANDIDATE, RaftRole.LEADER),
    (RaftRole.LEADER, RaftRole.PRE_CANDIDATE),
    (RaftRole.LEADER, RaftRole.CANDIDATE),
}


class View(NamedTuple):
    """The state of a node at one moment, for comparison with a later one."""

    term: int
    voted_for: str
    role: RaftRole
    leader_id: str | None
    first_index: int
    last_index: int
    commit_index: int
    recovering: bool


def view(raft: Raft) -> View:
    """Return the present state."""
    state, member = raft.state, raft.member
    terms = state.terms
    return View(
        state.term,
        state.voted_for,
        member.role,
        member.leader_id,
        terms.first_index,
        terms.last_index,
        state.commit_index,
        state.recovering,
    )


def check(before: View, raft: Raft) -> View:
    """Check a node after one event; `before` is its view before the event. Returns the view for the next call.

    Raises:
        InvariantError: names the invariant that does not hold, with the values.
    """
    after = view(raft)
    log_is_in_order(raft)
    role_has_its_parts(raft)
    if after.role is RaftRole.LEADER:
        contender_voted_for_itself(raft)
        leader_knows_no_more_than_it_has(raft)
    elif after.role is RaftRole.CANDIDATE:
        contender_voted_for_itself(raft)
    if before != after:
        nothing_falls(before, after)
        committed_entries_stay(before, after)
        role_changes_are_legal(before, after)
        if before.term == after.term:
            vote_and_leader_are_set_once(before, after)
            leader_only_appends(before, after)
    return after


def log_is_in_order(raft: Raft) -> None:
    """Commit index and durable index lie in `[first - 1, last]`. No entry is of a later term than the node's."""
    state = raft.state
    terms = state.terms
    base, last_index = terms.first_index - 1, terms.last_index
    if not base <= state.commit_index <= last_index:
        raise _broken("commit index within the log", raft, state.commit_index)
    if not base <= state.durable_index <= last_index:
        raise _broken("durable index within the log", raft, state.durable_index)
    if state.term < terms.last_term:
        raise _broken("term covers the log", raft, terms.last_term)


def role_has_its_parts(raft: Raft) -> None:
    """A leader has the progress of its peers, a candidate has a ballot, and no other role has either."""
    member = raft.member
    role = member.role
    is_asking = role is RaftRole.PRE_CANDIDATE or role is RaftRole.CANDIDATE
    if (member.leader is not None) != (role is RaftRole.LEADER):
        raise _broken("leader's part", raft, member.leader)
    if (member.ballot is not None) != is_asking:
        raise _broken("ballot", raft, member.ballot)
    if member.handover is not None and member.leader is None:
        raise _broken("handover", raft, member.handover)


def contender_voted_for_itself(raft: Raft) -> None:
    """A candidate or leader gave itself the vote of its term. A leader is sound, and its log ends in its own term."""
    state = raft.state
    if state.voted_for != raft.settings.node_id:
        raise _broken("own vote", raft, state.voted_for)
    if raft.member.role is RaftRole.LEADER:
        if state.recovering:
            raise _broken("leader is sound", raft, None)
        if state.terms.last_term != state.term:
            raise _broken("leader's entry", raft, state.terms.last_term)


def leader_knows_no_more_than_it_has(raft: Raft) -> None:
    """For every peer durable <= received < next, and no peer has received an entry that the leader does not have."""
    assert raft.member.leader is not None, raft.member.role
    end = raft.state.terms.last_index + 1
    for peer, progress in raft.member.leader.peers.items():
        if not progress.durable_index <= progress.received_index < progress.next_index <= end:
            ends = (progress.durable_index, progress.received_index, progress.next_index)
            raise _broken(f"progress of {peer}", raft, ends)


def nothing_falls(before: View, after: View) -> None:
    """Term, commit index and the first index kept never fall."""
    _expect_step(after.term >= before.term, "term", before, after)
    _expect_step(after.commit_index >= before.commit_index, "commit index", before, after)
    _expect_step(after.first_index >= before.first_index, "first index", before, after)


def committed_entries_stay(before: View, after: View) -> None:
    """The log never ends below what was committed."""
    _expect_step(after.last_index >= before.commit_index, "committed entries", before, after)


def role_changes_are_legal(before: View, after: View) -> None:
    """A node leads only after it has campaigned; a leader campaigns only after it has followed."""
    _expect_step((before.role, after.role) not in _IMPOSSIBLE_EDGES, "role", before, after)


def vote_and_leader_are_set_once(before: View, after: View) -> None:
    """Within a term the vote is given once, and only one leader is known."""
    _expect_step(before.voted_for in ("", after.voted_for), "vote", before, after)
    is_same = before.leader_id is None or after.leader_id is None or before.leader_id == after.leader_id
    _expect_step(is_same, "leader", before, after)


def leader_only_appends(before: View, after: View) -> None:
    """A leader's log never shrinks."""
    is_leading = before.role is RaftRole.LEADER and after.role is RaftRole.LEADER
    _expect_step(not is_leading or after.last_index >= before.last_index, "leader's log", before, after)


def _broken(what: str, raft: Raft, value: object) -> InvariantError:
    return InvariantError(f"{raft.settings.node_id}: {what}: {value} in {view(raft)}")


def _expect_step(holds: bool, what: str, before: View, after: View) -> None:
    if not holds:
        raise InvariantError(f"{what}: {before} -> {after}")
