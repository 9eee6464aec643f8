"""What Raft nodes say to each other: frozen values, no bytes of any wire.

    candidate --VoteRequest--> everyone --VoteResponse--> candidate        (pre_vote: a trial that moves no term)
    leader --AppendRequest--> follower --AppendResponse--> leader          (span None: heartbeat, probe, commit news)
    leader --InstallRequest--> follower behind the oldest kept file --InstallResponse--> leader      (part after part)
    leader --TransferRequest--> the peer that shall campaign at once

Indexes count entries from 0; `NO_INDEX` is the index before the first. Positions are bytes from the log's start.
A log starts in term 0 or later (Java DLedger writes term 0); `NO_TERM` is the term of `NO_INDEX`.
A message of a term older than the receiver's is answered with the receiver's term and nothing else.
Every integer fits a signed 64-bit field.

Source: the Raft dissertation, sections 3, 6.4 and 9.6; names after etcd raft and ra.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NO_INDEX = -1
NO_TERM = -1
TERM_RUNS_MAX = 64
TERM_LEAP_MAX = 1 << 32
"""A message whose term is further ahead is refused: terms rise by one an election, and must not run out of 63 bits."""


class TermRun(NamedTuple):
    """Entries of one term lie side by side: this run starts at `first_index` and ends where the next run starts."""

    term: int
    first_index: int


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive entries of one term inside one mapped file, as the log's own bytes.

    Indexes are both included. `data` is `[start_position, end_position)` of the log, entry headers included. It may be
    a view of the mapping: it is valid until the call that passed it returns, unless its owner says otherwise.
    """

    term: int
    first_index: int
    last_index: int
    start_position: int
    end_position: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget. Durable before any answer that rests on it.

    Attributes:
        term: the node's term.
        voted_for: who was given the vote of `term`; "" when nobody was.
        recovering: this node may have forgotten what it promised (a new directory, or a machine's crash under
            ASYNC_FLUSH). It neither votes nor counts until a leader has brought it up; only a salvage election, which
            needs every member, may use its vote.
        forgot_votes: set only while `recovering`, in a directory that never held a term: this node may have voted in
            terms that it does not know. It stays recovering until it has heard every other member, since each candidate
            that it may have voted for knows the term.
    """

    term: int = 0
    voted_for: str = ""
    recovering: bool = False
    forgot_votes: bool = False


class VoteCause(IntEnum):
    """Why a vote was given or refused. The numbers are the wire's."""

    GRANTED = 0
    STALE_TERM = 1  # the candidate's term is behind
    STALE_LOG = 2  # the candidate's log is behind this node's
    VOTED_OTHER = 3  # this term's vote is given
    HAS_LEADER = 4  # this node leads, or heard its leader within the lease
    RECOVERING = 5  # this node may have forgotten entries; it votes in a salvage election only


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote in `term` (for a pre-vote: the term it would campaign in).

    `last_term` is the term of the last *entry*, never of the node. `transfer`: the leader asked for this campaign, so
    its lease does not protect it. `salvage`: the candidate heard every member (or an operator's word), too few of them
    sound for an ordinary quorum, and holds the longest log; it needs the votes of all of them.
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
    """Answer to a vote request.

    `term` is the request's term when granted, else the voter's own. The voter's last entry and `recovering` tell a
    candidate what a salvage election needs to know.
    """

    term: int
    granted: bool
    pre_vote: bool
    cause: VoteCause
    last_index: int
    last_term: int
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries that follow `prev_index`, or none (`span` None).

    `commit_index` may lie above the span. `sequence` numbers the leader's heartbeat rounds and is echoed: an answer
    proves that this node was followed when the round began (check-quorum, lease, read index).
    `recover_index`: a recovering follower that holds the log up to it (flushed, under SYNC_FLUSH) is sound again. It is
    the leader's commit position, or the entry that opened its term, whichever is greater: nothing that was committed
    before this moment lies above.
    """

    term: int
    leader_id: str
    prev_index: int
    prev_term: int
    span: Span | None
    commit_index: int
    recover_index: int
    sequence: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """Answer to one append request, or to several in a row (the newest `sequence`).

    Accepted: this log equals the leader's up to `received_index`; up to `durable_index` (never above it) it is on disk.
    Not accepted: `prev_index` (echoed) did not match; `received_index` is this log's last index and `term_runs` its
    newest runs (at most `TERM_RUNS_MAX`, oldest first; all of them down to the run that holds its commit index, when
    they fit), from which the leader finds the fork without asking again.
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
    """Drop the log and start again at `first_index`, byte `start_position`, after an entry of `prev_term`.

    The leader's state machine (opaque here) at some commit position at or past `first_index - 1` comes in parts, one
    request each: `part` is `[part_start, part_start + len(part))` of its `state_size` bytes. The log is dropped with
    the last one. `state_id` tells the states of one leader's term apart.
    Spans from `first_index` on follow as ordinary append requests: the files' own bytes.
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
    """The log was reset (accepted; `last_index` is `first_index - 1`), or this log reaches further already.

    Or (not accepted, `state_end` not `NO_INDEX`) the state is here up to byte `state_end`, and its next part is wanted.
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


def sender_term(message: "Message") -> int | None:
    """The term that the sender was in when it made `message`; None when the message does not say.

    A pre-vote is asked for, and agreed to, in a term that the sender has not entered.
    """
    if isinstance(message, VoteRequest) and message.pre_vote:
        return message.term - 1
    if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
        return None
    return message.term


Message = (
    VoteRequest | VoteResponse | AppendRequest | AppendResponse | InstallRequest | InstallResponse | TransferRequest
)
