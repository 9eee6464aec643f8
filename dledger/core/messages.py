"""The messages between Raft nodes, as frozen values without a wire format.

    candidate --VoteRequest--> everyone --VoteResponse--> candidate        (pre_vote: a trial that changes no term)
    leader --AppendRequest--> follower --AppendResponse--> leader          (span None: heartbeat, probe, commit index)
    leader --InstallRequest--> follower behind the oldest kept file --InstallResponse--> leader      (part after part)
    leader --VoteRequest (pre_vote, transfer): would you lead the next term?--> a peer --VoteResponse--> leader
    leader --TransferRequest, VoteResponse: its vote--> the peer, which campaigns at once
    leader's thread --BusyNotice--> follower                               (while the leader's loop is late)

Indexes count entries from 0; `NO_INDEX` is the index before the first. Positions are bytes from the start of the log. A
log starts in term 0 or later (Java DLedger writes term 0); `NO_TERM` is the term of `NO_INDEX`. A message of a term
older than the receiver's is answered with the receiver's term and nothing else. Every integer fits a signed 64-bit
field.

Source: the Raft dissertation, sections 3, 6.4 and 9.6; names after etcd raft and ra.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_INDEX = -1
NO_TERM = -1
TERM_RUNS_MAX = 64
TERM_LEAP_MAX = 1 << 32
"""A message whose term is further ahead is ignored: a term rises by one at each election, and must fit 63 bits."""


class TermRun(NamedTuple):
    """Consecutive entries of one term: the run starts at `first_index` and ends where the next run starts."""

    term: int
    first_index: int


class Span(NamedTuple):
    """Consecutive entries of one term inside one mapped file, as the bytes of the log.

    Both indexes are included. `data` is `[start_position, end_position)` of the log, entry headers included. It may be
    a view of the mapping, which is valid until the call that passed it returns, unless the caller says otherwise.
    """

    term: int
    first_index: int
    last_index: int
    start_position: int
    end_position: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that a node must not forget. It is durable before any answer that depends on it.

    Attributes:
        term: the node's term. It never falls.
        voted_for: the candidate that got the vote of `term`; "" before. Within a term it is set once.
        recovering: this node may have forgotten what it promised (a new directory, or a machine's crash under
            ASYNC_FLUSH). It neither votes nor counts until a leader has brought it up to date; only a salvage election,
            which needs every member, may count its vote.
        forgot_votes: set only while `recovering`, in a directory that never held a term: this node may have voted in
            terms that it does not know. It stays recovering until it has heard every other member, since each candidate
            for which it may have voted knows the term.
    """

    term: int = 0
    voted_for: str = ""
    recovering: bool = False
    forgot_votes: bool = False


class VoteCause(IntEnum):
    """Why a vote was given or refused. The values are those on the wire."""

    GRANTED = 0
    STALE_TERM = 1  # the candidate's term is lower
    STALE_LOG = 2  # the candidate's log is behind this node's
    VOTED_OTHER = 3  # the vote of this term was given to another candidate
    HAS_LEADER = 4  # this node leads, or heard its leader within the lease
    RECOVERING = 5  # this node may have forgotten entries; it votes only in a salvage election


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote in `term`; in a pre-vote: the term in which it would campaign.

    `last_term` is the term of the last *entry*, never of the node. `transfer`: the leader asked for this campaign, so
    its lease does not prevent it; in a pre-vote, the leader asks the peer whether it would lead that term. `salvage`:
    the candidate heard every member (or an operator allowed missing ones), too few of them are sound for an ordinary
    quorum, and its log is the longest; it needs the votes of all.
    """

    term: int
    candidate_id: str
    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool = False
    salvage: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """The answer to a vote request.

    `term` is the request's term if the vote is granted, else the voter's own. The voter's last entry and `recovering`
    tell the candidate what a salvage election needs to know.
    """

    term: int
    granted: bool
    pre_vote: bool
    cause: VoteCause
    last_index: int
    last_term: int
    recovering: bool = False


class AppendRequest(NamedTuple):
    """Entries that follow `prev_index`; a heartbeat or probe without entries (`span` None).

    `commit_index` may lie above the span. `sequence` is the number of the leader's heartbeat round and is echoed: the
    answer proves that this node was followed when the round began (check-quorum, lease, read index). `recover_index`: a
    recovering follower that holds the log up to it (durable, under SYNC_FLUSH) is sound again. It is the leader's
    commit index or the index of the entry that opened its term, whichever is greater: no entry above it was committed
    before this moment.
    """

    term: int
    leader_id: str
    prev_index: int
    prev_term: int
    span: Span | None
    commit_index: int
    recover_index: int
    sequence: int


class AppendResponse(NamedTuple):
    """The answer to one append request, or to several in a row (the newest `sequence`).

    Accepted: this log equals the leader's up to `received_index`; up to `durable_index` (never above it) it is durable.

    Not accepted: `prev_index` (echoed) did not match. `received_index` is then this log's last index, and `term_runs`
    its newest runs, at most `TERM_RUNS_MAX`, oldest first, down to the run that holds its commit index if they fit.
    From these the leader finds where the logs part without another round trip. Or this log has a damaged entry of which
    the leader has no copy: `received_index` is then the one before it, and there are no runs.
    """

    term: int
    accepted: bool
    prev_index: int
    received_index: int
    durable_index: int
    sequence: int
    recovering: bool = False
    term_runs: tuple[TermRun, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Replace the log by one that starts at `first_index`, position `start_position`, after an entry of `prev_term`.

    The leader's state machine (opaque bytes here) at some commit index of at least `first_index - 1` arrives in parts,
    one for each request: `part` is `[part_start, part_start + len(part))` of its `state_size` bytes. The log is dropped
    with the last part. `state_id` tells the states of one leader's term apart. The entries from `first_index` on follow
    in ordinary append requests.
    """

    term: int
    leader_id: str
    first_index: int
    start_position: int
    prev_term: int
    state_id: int
    state_size: int
    part_start: int
    part: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class InstallResponse:
    """The answer to a part of an install.

    Accepted: the log was replaced (`last_index` is `first_index - 1`), or this log already reaches further. Not
    accepted, `state_end` not `NO_INDEX`: the state is here up to byte `state_end`, and the next part is wanted.
    """

    term: int
    accepted: bool
    last_index: int
    sequence: int
    recovering: bool = False
    state_end: int = NO_INDEX


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """Campaign now, without waiting and without a pre-vote: the leader of `term` hands over."""

    term: int
    leader_id: str


@dataclass(frozen=True, slots=True)
class BusyNotice:
    """The process of the leader of `term` runs, but its loop is late: see `dledger.core.busy`. It is not answered.

    Its term is that of the loop's last tick, so it does not tell the sender's term now.
    """

    term: int


def sender_term(message: "Message") -> int | None:
    """Return the sender's term at the time of `message`; None when the message does not tell it.

    A pre-vote is requested, and granted, in a term that the sender has not entered.
    """
    if isinstance(message, BusyNotice):
        return None
    if isinstance(message, VoteRequest) and message.pre_vote:
        return message.term - 1
    if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
        return None
    return message.term


Message = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | InstallRequest
    | InstallResponse
    | TransferRequest
    | BusyNotice
)
