"""What a node is at this moment. Nothing of it is stored."""

from dataclasses import dataclass
from enum import StrEnum


class RaftRole(StrEnum):
    """Raft roles. A pre-candidate asks whether it could win; no term moves until a quorum says yes."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class SoftState:
    """What others of this process may act upon.

    Attributes:
        role: the present one.
        term: the present one, durable.
        leader_id: who leads; None while nobody is known to, this node's id when it leads.
        writable: this node leads, the entry that opens its term is committed (and with it everything that earlier terms
            committed), and it is not handing over. It turns true only when every entry of the log is committed.
        recovering: this node may have forgotten what it promised; see `HardState`.
        may_miss_after: set when a salvage election made this leader: acknowledged entries behind this index, the commit
            index it knew, may be gone or replaced by a tail that was never committed. It stays set as long as it leads.
    """

    role: RaftRole
    term: int
    leader_id: str | None
    writable: bool
    recovering: bool
    may_miss_after: int | None = None
