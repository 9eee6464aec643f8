"""Errors of the Raft core.

RaftError
|-- MembershipError         caller: an impossible group (a peer named twice, self not a peer)
|-- NotLeaderError          caller: this node does not lead; names the leader if known
|-- TransferRefusedError    caller: the peer cannot take over now, with the reason
|-- ImplausibleMessageError peer: a message that no working member sends
'-- InvariantError          bug, or a peer whose log contradicts committed entries: the node must stop
"""


class RaftError(Exception):
    """Root of the core's errors."""


class MembershipError(RaftError):
    """The membership is impossible; the message names the value."""


class NotLeaderError(RaftError):
    """This node does not lead, or is handing over. Nothing was changed. Retry at `leader_id` if it is known."""

    def __init__(self, term: int, leader_id: str | None) -> None:
        super().__init__(f"not the leader of term {term}; leader: {leader_id or 'unknown'}")
        self.term = term
        self.leader_id = leader_id


class TransferRefusedError(RaftError):
    """Leadership cannot be transferred to `target` now; the leader continues to lead."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot transfer leadership to {target!r}: {reason}")
        self.target = target
        self.reason = reason


class ImplausibleMessageError(RaftError):
    """A peer sent a message that no working member of a group sends. Nothing was changed."""


class InvariantError(RaftError):
    """A step would have broken an invariant of Raft. Nothing was changed; the node must leave the group for repair."""
