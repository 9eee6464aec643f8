"""The role of a node at this moment. Nothing of it is stored."""

from dataclasses import dataclass
from enum import StrEnum


class RaftRole(StrEnum):
    """The roles of Raft. A pre-candidate asks whether it could win; no term changes until a quorum says yes."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class SoftState:
    """The state on which other parts of this process may act.

    Attributes:
        role: the present role.
        term: the present term, durable. While the disk lacks the term that has deposed this leader, the one it has led.
        leader_id: the leader; None while none is known, this node's id when it leads.
        writable: this node leads, everything of earlier terms is committed, and it is not handing over. It turns true
            only when every entry of the log is committed, but for the one that opens the term. Between two terms in
            which this node leads it is false at least once.
        recovering: this node may have forgotten what it promised; see `HardState`.
        may_miss_after: set when a salvage election made this node the leader: acknowledged entries above this index,
            the commit index that it knew, may be lost or replaced by entries that were never committed. It stays set
            while this node leads.
    """

    role: RaftRole
    term: int
    leader_id: str | None
    writable: bool
    recovering: bool
    may_miss_after: int | None = None
