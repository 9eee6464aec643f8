"""The role of a broker among the replicas of its name, according to the controllers' decisions.

    controllers' answer --take()--> nothing new | a part to play: master of an epoch | slave of a master | neither
                        --election()--> whether to ask the controllers for a master, and why

Decisions arrive by several ways and may be old, so one with a lower master epoch is ignored. A new process never
continues an epoch in which the process before it was master, since the end of the log may be missing: it asks for an
election, which another replica may win. So does a process that is in doubt (`ha.core.doubt`), which may have been
elected because of a heartbeat from before the power cut.
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
    """The present part of a broker in replication."""

    NEITHER = enum.auto()
    """Neither master nor slave: there is no master, or none that this broker may follow."""
    MASTER = enum.auto()
    SLAVE = enum.auto()


class Election(enum.Enum):
    """Why a broker asks for an election."""

    NO_MASTER = enum.auto()
    NEW_PROCESS = enum.auto()
    """This broker is the decided master, but its process may be another one than the elected one, or has resigned."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """The part that this broker takes now. `known` is the decision, with the epoch and the master."""

    play: ReplicationPart
    known: GroupDecision


NOTHING = GroupDecision(None, "", "", 0, frozenset(), 0)


class ReplicaRole:
    """The role of one process. It begins without a part.

    Attributes:
        own_id: given by the controllers.
        log_epoch: newest epoch in this broker's log at the start of the process. Older decisions are refused: they come
            from a controller that was deposed or has lost its state, and their master may lack acknowledged records.
        known: the newest known decision of the controllers.
        play: the present part.
    """

    def __init__(self, own_id: int, log_epoch: int = 0) -> None:
        self.own_id = own_id
        self.log_epoch = log_epoch
        self.known = NOTHING
        self.play = ReplicationPart.NEITHER
        self._asked_epoch = -1
        self._lost_epoch = -1  # epoch for which the former process was elected, or in which this one resigned

    def take(self, decision: GroupDecision, *, is_in_doubt: bool = False) -> PartChange | None:
        """Take over an answer of the controllers; return the part to change to, None if the present one stays.

        If the part stays, a master may have another in-sync set, and a slave another address of its master.

        Args:
            decision: what they answered.
            is_in_doubt: the end of the log here may be missing. Then a new epoch counts only if it is that of
                `elected`: any other election may have used a heartbeat from before the power cut.
        """
        before = self.known
        if decision.master_epoch < max(before.master_epoch, self.log_epoch):
            return None
        is_unasked = is_in_doubt and decision.master_epoch not in (before.master_epoch, self._asked_epoch)
        if decision.master_id == self.own_id and (before is NOTHING or is_unasked):
            self._lost_epoch = decision.master_epoch
        self.known = decision
        play = self._play_for(decision)
        is_same_master = (decision.master_epoch, decision.master_id) == (before.master_epoch, before.master_id)
        if play is self.play and (is_same_master or play is ReplicationPart.NEITHER):
            return None
        self.play = play
        return PartChange(play, decision)

    def elected(self, epoch: int) -> None:
        """Note the epoch of an election for which this process asked as a new one, after its own heartbeats."""
        self._asked_epoch = epoch

    def resign(self) -> None:
        """Give up the epoch in which this broker is master, for good, so that another broker is elected."""
        self._lost_epoch = self.known.master_epoch
        self.play = ReplicationPart.NEITHER

    def election(self) -> Election | None:
        """Return why to ask the controllers for an election now; None if there is no reason."""
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
