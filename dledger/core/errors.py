"""What the Raft core refuses, and why.

RaftError
|-- MembershipError         the caller's fault: a group that cannot be (equal peers, self not a peer)
|-- NotLeaderError          not now: propose elsewhere; carries who leads, when known
|-- TransferRefusedError    not now: that peer cannot take over, and why
|-- ImplausibleMessageError a peer's fault: no member of a sound group says that
'-- InvariantError          a bug, or a peer whose log denies what was committed: the node must stop
"""


class RaftError(Exception):
    """Root of the core's errors."""


class MembershipError(RaftError):
    """A membership that cannot be; the message names the offending value."""


class NotLeaderError(RaftError):
    """This node does not lead, or is handing over: nothing was changed. Retry at `leader_id` when it is known."""

    def __init__(self, term: int, leader_id: str | None) -> None:
        super().__init__(f"not the leader of term {term}; leader: {leader_id or 'unknown'}")
        self.term = term
        self.leader_id = leader_id


class TransferRefusedError(RaftError):
    """Leadership cannot go to `target` at this moment; the leader goes on leading."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot transfer leadership to {target!r}: {reason}")
        self.target = target
        self.reason = reason


class ImplausibleMessageError(RaftError):
    """A peer said what no member of a sound group says. Nothing was changed."""


class InvariantError(RaftError):
    """What must never be was about to be done. Nothing was changed; the node must leave the group for repair."""
