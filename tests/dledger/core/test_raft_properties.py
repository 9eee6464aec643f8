"""Properties of the core: what holds for any log, any message, any order."""

from hypothesis import given
from hypothesis import strategies as st

from dledger.core.errors import InvariantError
from dledger.core.invariants import check, view
from dledger.core.messages import NO_INDEX, TERM_RUNS_MAX, Message, VoteCause, VoteRequest
from dledger.core.progress import PeerProgress
from dledger.core.raft import Raft
from dledger.core.voting import decide_vote, is_up_to_date
from tests.dledger.core.core_strategies import elect, log_terms, make_raft, messages, peer, runs_of, save, term_runs_of


def naive_fork(mine: list[int], theirs: list[int]) -> int:
    """The greatest index at which both have the same term."""
    shared = [index for index in range(min(len(mine), len(theirs))) if mine[index] == theirs[index]]
    return max(shared, default=NO_INDEX)


@given(log_terms, log_terms)
def test_the_fork_is_the_last_index_at_which_the_terms_agree(mine: list[int], theirs: list[int]) -> None:
    assert term_runs_of(mine).fork(runs_of(theirs), len(theirs) - 1) == naive_fork(mine, theirs)


@given(log_terms, log_terms, st.integers(0, 12))
def test_the_fork_is_found_from_the_runs_above_what_is_committed(
    mine: list[int], theirs: list[int], committed: int
) -> None:
    shared = mine[: min(committed, len(mine))]
    theirs = shared + [term for term in theirs if not shared or term >= shared[-1]]
    sent = term_runs_of(theirs).runs_from(len(shared) - 1)
    assert term_runs_of(mine).fork(sent, len(theirs) - 1) == naive_fork(mine, theirs)


@given(st.lists(st.integers(0, 200), min_size=70, max_size=200, unique=True).map(sorted))
def test_more_runs_than_a_message_may_hold_are_left_out_from_the_oldest(terms: list[int]) -> None:
    runs = term_runs_of(terms).runs_from(NO_INDEX)
    assert len(runs) == TERM_RUNS_MAX and runs[-1].first_index == len(terms) - 1
    assert term_runs_of([300] * 10).fork(runs, len(terms) - 1) < len(terms)


@given(log_terms, st.integers(-3, 15))
def test_term_at_is_the_entrys_term_and_none_outside(terms: list[int], index: int) -> None:
    expected = terms[index] if 0 <= index < len(terms) else (-1 if index == -1 else None)
    assert term_runs_of(terms).term_at(index) == expected


@given(log_terms, st.integers(0, 12), st.integers(0, 12), st.integers(0, 6))
def test_first_conflict_is_the_first_held_index_of_another_term(
    terms: list[int], first: int, count: int, term: int
) -> None:
    held = [index for index in range(first, min(first + count, len(terms) - 1) + 1) if terms[index] != term]
    assert term_runs_of(terms).first_conflict(first, first + count, term) == (held[0] if held else None)


@given(log_terms, st.data())
def test_truncating_trimming_and_extending_keep_the_terms_of_what_is_left(
    terms: list[int], data: st.DataObject
) -> None:
    runs = term_runs_of(terms)
    last = data.draw(st.integers(-1, len(terms) - 1))
    first = data.draw(st.integers(0, last + 1))
    runs.truncate_after(last)
    runs.trim(first, terms[first - 1] if first else -1)
    runs.extend(9, last + 2)
    expected = [*terms[: last + 1], 9, 9]
    assert [runs.term_at(index) for index in range(first, last + 3)] == expected[first:]
    assert runs.term_at(first - 1) == (terms[first - 1] if first else -1)
    assert (runs.last_index, runs.last_term) == (last + 2, 9)


@given(st.lists(st.integers(-1, 9), min_size=2, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_quorum_index_is_what_a_majority_of_sound_members_holds(ends: list[int], recovering: list[bool]) -> None:
    peers = tuple(f"n{number}" for number in range(len(ends) + 1))
    raft = make_raft([1] * 10, name="n0", peers=peers)
    elect(raft)
    assert raft.member.leader is not None
    for progress, end, doubtful in zip(raft.member.leader.peers.values(), ends, recovering):
        progress.durable_index, progress.recovering = end, doubtful
    counted = [raft.state.durable_index] + [NO_INDEX if no else end for end, no in zip(ends, recovering)]
    naive = max(index for index in range(-1, 11) if sum(end >= index for end in counted) >= len(peers) // 2 + 1)
    assert raft.member.leader._quorum_index() == naive


@given(log_terms, log_terms)
def test_of_two_logs_at_least_one_is_up_to_date_for_the_other(mine: list[int], theirs: list[int]) -> None:
    ends = [(terms[-1] if terms else -1, len(terms) - 1) for terms in (mine, theirs)]
    assert is_up_to_date(*ends[0], *ends[1]) or is_up_to_date(*ends[1], *ends[0])


@given(log_terms, st.integers(0, 8), st.integers(-1, 8), st.integers(-1, 14), st.booleans(), st.booleans())
def test_a_vote_is_never_given_to_a_log_that_may_lack_a_committed_entry(
    terms: list[int], term: int, last_term: int, last_index: int, pre_vote: bool, has_leader: bool
) -> None:
    raft = make_raft(terms)
    request = VoteRequest(term, "n2", last_index, last_term, pre_vote)
    cause = decide_vote(raft.state, request, has_leader=has_leader)
    if cause is VoteCause.GRANTED:
        assert (last_term, last_index) >= (raft.state.terms.last_term, raft.state.terms.last_index)
        assert not has_leader


def step_and_check(raft: Raft, sender: str, message: Message) -> None:
    before = view(raft)
    try:
        raft.step(sender, message)
    except InvariantError:
        assert view(raft).last_index >= before.commit_index  # it refused to break what was committed
        return
    check(before, raft)
    save(raft)


@given(st.sampled_from(("follower", "pre_candidate", "candidate", "leader")), log_terms, st.data())
def test_no_message_in_any_role_breaks_an_invariant(role: str, terms: list[int], data: st.DataObject) -> None:
    raft = make_raft(terms, recovering=data.draw(st.booleans()) and role in ("follower", "pre_candidate"))
    _bring_to(raft, role)
    for _ in range(data.draw(st.integers(1, 6))):
        sender = data.draw(peer)
        step_and_check(raft, sender, data.draw(messages(sender)))


def _bring_to(raft: Raft, role: str) -> None:
    if role == "leader":
        elect(raft)
    elif role != "follower":
        raft.tick(5_000)
        if role == "candidate":
            raft.member._become_candidate()
    save(raft)


@given(log_terms, st.data())
def test_time_links_and_disks_keep_the_invariants_too(terms: list[int], data: st.DataObject) -> None:
    raft = make_raft(terms)
    for _ in range(12):
        before = view(raft)
        match data.draw(st.sampled_from(("tick", "lose", "join", "durable", "stall", "step down", "message"))):
            case "tick":
                raft.tick(raft.state.now_ms + data.draw(st.integers(1, 2_000)), data.draw(st.integers(0, 500)))
            case "lose":
                raft.peer_lost(data.draw(peer))
            case "join":
                raft.peer_joined(data.draw(peer))
            case "durable":
                raft.durable(data.draw(st.integers(-1, 20)))
            case "stall":
                raft.disk_stalled(is_stalled=data.draw(st.booleans()))
            case "step down":
                raft.step_down()
            case "message":
                sender = data.draw(peer)
                step_and_check(raft, sender, data.draw(messages(sender)))
                continue
        check(before, raft)
        save(raft)


def test_an_answer_that_calls_durable_what_it_has_not_received_counts_what_it_received() -> None:
    progress = PeerProgress(next_index=2, now_ms=0)
    assert progress.accepted(received_index=0, durable_index=1, sequence=0)
    assert (progress.received_index, progress.durable_index) == (0, 0)
