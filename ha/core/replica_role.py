"""The role of a broker among the replicas of its name, by the controllers' decisions.

    controllers' answer --take()--> nothing new | a part to play: master of an epoch | slave of a master | neither
                        --election()--> whether to ask the controllers for a master, and why

News travel by several ways and may be old: the master's epoch never goes back. A process that has just started is not
what the process before it was, though it has the same id. It never takes up an epoch in which the one before it was
master, since the end of the log may be missing; it asks to be elected again, and another replica may win. So does a
process that is in doubt (`ha.core.doubt`): it may have been elected for a heartbeat from before the power cut.
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple


class GroupDecision(NamedTuple):
    """A decision of the controllers about one broker name.

    Attributes:
        master_id: None while there is no master.
        master_address: where it serves clients; empty without a master.
        ha_address: where it listens to slaves; empty while that is not known.
        ids: the in-sync set.
        set_epoch: of the set.
    """

    master_id: int | None
    master_address: str
    ha_address: str
    master_epoch: int
    ids: frozenset[int]
    set_epoch: int


class ReplicationPart(enum.Enum):
    """What a broker does in replication at present."""

    NEITHER = enum.auto()
    """There is no master, or none that this broker may follow."""
    MASTER = enum.auto()
    SLAVE = enum.auto()


class Election(enum.Enum):
    """Why a broker asks for an election."""

    NO_MASTER = enum.auto()
    NEW_PROCESS = enum.auto()
    """This broker is master, and its process may not be the one that was elected, or has resigned."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """From now on this broker plays this part. `known` says in which epoch, and after whom."""

    play: ReplicationPart
    known: GroupDecision


NOTHING = GroupDecision(None, "", "", 0, frozenset(), 0)


class ReplicaRole:
    """The state of one process. It begins without a part.

    Attributes:
        own_id: given by the controllers.
        log_epoch: newest epoch in this broker's log at the start of the process. Older news is refused: a controller
            that was deposed, or has lost its state, would have a master followed that lacks what was acknowledged.
        known: the newest that is known of the controllers' decisions.
        play: the present part.
    """

    def __init__(self, own_id: int, log_epoch: int = 0) -> None:
        self.own_id = own_id
        self.log_epoch = log_epoch
        self.known = NOTHING
        self.play = ReplicationPart.NEITHER
        self._lost_epoch = -1  # for which the process before was elected, or in which this one resigned

    def take(self, decision: GroupDecision, *, is_in_doubt: bool = False) -> PartChange | None:
        """The controllers have answered; returns the part to change to, None where the present one goes on.

        A master that goes on may have another in-sync set; a slave that goes on, another address of its master.

        Args:
            decision: what they answered.
            is_in_doubt: the end of the log here may be missing. Then an election counts only if this process has
                asked for it as a new one, after heartbeats of its own.
        """
        before, had_asked = self.known, self.election() is Election.NEW_PROCESS
        if decision.master_epoch < max(before.master_epoch, self.log_epoch):
            return None
        is_unasked = is_in_doubt and not had_asked and decision.master_epoch > before.master_epoch
        if decision.master_id == self.own_id and (before is NOTHING or is_unasked):
            self._lost_epoch = decision.master_epoch
        self.known = decision
        play = self._play_for(decision)
        is_same_master = (decision.master_epoch, decision.master_id) == (before.master_epoch, before.master_id)
        if play is self.play and (is_same_master or play is ReplicationPart.NEITHER):
            return None
        self.play = play
        return PartChange(play, decision)

    def resign(self) -> None:
        """This broker, master up to now, never takes up its epoch again, and wants another one to be master."""
        self._lost_epoch = self.known.master_epoch
        self.play = ReplicationPart.NEITHER

    def election(self) -> Election | None:
        """Why the controllers are to be asked for an election now; None where there is no reason."""
        if self.known is NOTHING:
            return None
        if self.known.master_id is None:
            return Election.NO_MASTER
        if self.known.master_id == self.own_id and self.known.master_epoch == self._lost_epoch:
            return Election.NEW_PROCESS
        return None

    def _play_for(self, decision: GroupDecision) -> ReplicationPart:
        if decision.master_id is None:
            return ReplicationPart.NEITHER
        if decision.master_id != self.own_id:
            return ReplicationPart.SLAVE
        return ReplicationPart.NEITHER if decision.master_epoch == self._lost_epoch else ReplicationPart.MASTER
