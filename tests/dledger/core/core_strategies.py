"""Hypothesis strategies and a bare core for the tests of `dledger.core`."""

from collections.abc import Sequence

from hypothesis import strategies as st

from dledger.core.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    AppendResponse,
    HardState,
    InstallRequest,
    InstallResponse,
    Message,
    Span,
    TermRun,
    TransferRequest,
    VoteCause,
    VoteRequest,
    VoteResponse,
)
from dledger.core.raft import Raft
from dledger.core.settings import RaftSettings
from dledger.core.terms import TermRuns

PEERS = ("n1", "n2", "n3")


def runs_of(terms: Sequence[int], first_index: int = 0) -> list[TermRun]:
    """Run-length encoding of the terms of a log that starts at `first_index`."""
    runs: list[TermRun] = []
    for index, term in enumerate(terms, first_index):
        if not runs or runs[-1].term != term:
            runs.append(TermRun(term, index))
    return runs


def term_runs_of(terms: Sequence[int], first_index: int = 0, prev_term: int = NO_TERM) -> TermRuns:
    """`TermRuns` of a log whose entries have these terms."""
    return TermRuns(first_index, first_index + len(terms) - 1, prev_term, runs_of(terms, first_index))


class MemorySource:
    """`LogSource` that holds nothing but terms; all of it is durable."""

    def __init__(self, terms: Sequence[int] = ()) -> None:
        self.terms = list(terms)

    first_index = 0
    first_position = 0
    prev_term = NO_TERM
    damaged_index: int | None = None

    @property
    def last_index(self) -> int:
        return len(self.terms) - 1

    @property
    def durable_index(self) -> int:
        return self.last_index

    @property
    def term_runs(self) -> Sequence[TermRun]:
        return runs_of(self.terms)

    def read(self, first_index: int, size_limit_bytes: int) -> Span | None:
        return span(0, first_index, first_index)


def span(term: int, first_index: int, last_index: int) -> Span:
    """A span of entries of one byte each."""
    return Span(term, first_index, last_index, first_index, last_index + 1, bytes(last_index + 1 - first_index))


def make_raft(
    terms: Sequence[int] = (),
    *,
    name: str = "n1",
    term: int | None = None,
    voted_for: str = "",
    recovering: bool = False,
    peers: tuple[str, ...] = PEERS,
    commit_index: int = NO_INDEX,
) -> Raft:
    """A core over a log with these terms, in the term of its last entry unless told otherwise."""
    hard_state = HardState(term if term is not None else (terms[-1] if terms else 0), voted_for, recovering)
    settings = RaftSettings(node_id=name, peers=peers)
    return Raft(settings, hard_state, MemorySource(terms), bytes, lambda limit: 0, commit_index)


def save(raft: Raft) -> list[tuple[str, Message]]:
    """Carry out what the core wants and let its disk be quick; returns all messages that may go."""
    messages: list[tuple[str, Message]] = []
    while (ready := raft.ready()) is not None:
        messages += ready.messages
        if ready.hard_state is not None:
            raft.persisted(ready.hard_state)
    return messages


def elect(raft: Raft) -> None:
    """Make the node the leader of the next term, by the votes of all."""
    raft.tick(raft.state.now_ms + 2 * raft.settings.election_max_ms)
    state = raft.state
    for pre_vote in (True, False):
        term = state.term + 1 if pre_vote else state.term
        for peer in raft.settings.others:
            raft.step(peer, VoteResponse(term, True, pre_vote, VoteCause.GRANTED, NO_INDEX, NO_TERM))
        save(raft)
    assert raft.member.leader is not None, raft.member.role


log_terms = st.lists(st.integers(0, 6), max_size=12).map(sorted)
small = st.integers(0, 8)
index = st.integers(-1, 14)
peer = st.sampled_from(("n2", "n3"))


@st.composite
def append_requests(draw: st.DrawFn, sender: str) -> AppendRequest:
    """Whatever a peer may say, sensible or not."""
    prev_index, term = draw(index), draw(small)
    count = draw(st.integers(0, 4))
    entries = span(draw(st.integers(0, 8)), prev_index + 1, prev_index + count) if count else None
    return AppendRequest(
        term, sender, prev_index, draw(st.integers(-1, 8)), entries, draw(index), draw(index), draw(small)
    )


def messages(sender: str) -> st.SearchStrategy[Message]:
    """Any message of `sender`."""
    runs = st.lists(st.builds(TermRun, small, index), max_size=3).map(lambda found: tuple(sorted(found)))
    flags = st.booleans()
    sizes, parts = st.integers(0, 6), st.binary(max_size=3)
    return st.one_of(
        append_requests(sender),
        st.builds(AppendResponse, small, flags, index, index, index, small, flags, runs),
        st.builds(VoteRequest, small, st.just(sender), index, st.integers(-1, 8), flags, flags, flags),
        st.builds(VoteResponse, small, flags, flags, st.sampled_from(VoteCause), index, st.integers(-1, 8), flags),
        st.builds(
            InstallRequest, small, st.just(sender), st.integers(1, 14), small, small, small, sizes, sizes, parts, small
        ),
        st.builds(InstallResponse, small, flags, index, small, flags, index),
        st.builds(TransferRequest, small, st.just(sender)),
    )
