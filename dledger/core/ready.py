"""The effects that the core asks for, carried out from the top down.

    1. hard_state   start to save it; call `Raft.persisted` when it is durable. Messages that depend on it are held
                    back in the core until then, so the messages of a `Ready` may always be sent.
    2. writes       to the log, in order, at once; after a TermStart call `Raft.proposed`.
    3. messages     to the peers, in order.
    4. commit_index, soft_state, reads   to the listeners.
Then ask the log to flush what is not durable, and call `Raft.durable`.
"""

from dataclasses import dataclass, field

from dledger.core.messages import HardState, Message, Span
from dledger.core.roles import SoftState


@dataclass(frozen=True, slots=True)
class TermStart:
    """Write the entry that opens the new leader's term."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class AppendSpan:
    """Append a leader's entries; those up to the log's last index are already held."""

    span: Span


@dataclass(frozen=True, slots=True)
class TruncateAfter:
    """Drop the entries above `last_index`."""

    last_index: int


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Start the log at `first_index` and restore the state machine from `state`, as one step.

    Everything is dropped; with `keep` only the entries below `first_index`.
    """

    first_index: int
    start_position: int
    prev_term: int
    state: bytes
    keep: bool = False


Write = TermStart | AppendSpan | TruncateAfter | ResetLog


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a read: a state machine that has applied up to `index` may answer it.

    None: this node stopped leading.
    """

    token: int
    index: int | None


@dataclass(slots=True)
class Ready:
    """Effects of the inputs since the last `Ready`. `commit_index` and `soft_state` are None when unchanged."""

    hard_state: HardState | None
    writes: list[Write]
    messages: list[tuple[str, Message]]
    commit_index: int | None
    soft_state: SoftState | None
    reads: list[ReadResult] = field(default_factory=list)
