"""The copies of an elected master's log: a record is confirmed when every member of the in-sync set has it.

The master proposes a set, the controllers decide. They may have decided before the master hears of it, so until then
the members of both sets count:

    near the end --> joining: counts already --has everything confirmed--> asked --controllers agree--> agreed
    agreed       --disconnected, stuck, or behind for too long--> asked without it --controllers agree--> not a member

If an answer was lost, its set may have been decided. Its members count until the agreed set has another epoch: a
proposal names the epoch of the set that it replaces, so it cannot be decided after that.

Times are seconds of a monotonic clock, offsets physical.
"""

from typing import Final, NamedTuple

from ha.core.copies import Copies, Copy, CopyRules, Promise

_NEAR_BYTES: Final = 1 << 20
"""Most bytes that a joining slave may lack; nothing more is confirmed until it has them."""
_JOINING_SILENCE_S: Final = 1.0
"""Seconds without a report after which a joining slave is not waited for any more."""
STUCK_LOOKS_MAX: Final = 4
"""Value of `Copy.stuck_looks` from which on a member is left out."""
_NOBODY: Final = frozenset[int]()


class Proposal(NamedTuple):
    """An in-sync set that is proposed to the controllers.

    Attributes:
        ids: of the set, the master's own included.
        set_epoch: of the set that it replaces.
        renews: whether it is the present set, which shall get another epoch.
    """

    ids: frozenset[int]
    set_epoch: int
    renews: bool


class ElectedCopies(Copies):
    """All slaves of a master that controllers have elected. Slaves are named `broker name/id`.

    Attributes:
        own_id: the master's id.
        agreed: ids of the in-sync set, as the controllers have decided it.
        set_epoch: its epoch.
    """

    def __init__(self, rules: CopyRules) -> None:
        super().__init__(rules)
        self.own_id = 0
        self.agreed = _NOBODY
        self.set_epoch = 0
        self._start = 0
        self._joining = _NOBODY
        self._asked: Proposal | None = None
        self._doubtful = _NOBODY

    # ---- what the controllers say

    def begin(self, own_id: int, ids: frozenset[int], set_epoch: int, start: int) -> None:
        """Begin as master, with a log that ends at `start` and without slaves."""
        self.own_id, self.agreed, self.set_epoch, self._start = own_id, ids, set_epoch, start
        self.slaves = {}
        self._joining = self._doubtful = _NOBODY
        self._asked = None

    def learn(self, ids: frozenset[int], set_epoch: int) -> None:
        """Take over a set that the controllers have decided, unless a newer one is known."""
        if set_epoch <= self.set_epoch:
            return
        self.agreed, self.set_epoch = ids, set_epoch
        self._doubtful = _NOBODY
        self._asked = None
        self._joining -= ids

    def refused(self, proposal: Proposal) -> None:
        """Note that the controllers have refused the proposal."""
        if self._asked == proposal:
            self._asked = None

    def doubt(self, proposal: Proposal) -> None:
        """Note that the outcome of the proposal is not known: the controllers may have agreed, or may agree later."""
        if self._asked == proposal:
            self._asked = None
            self._doubtful |= proposal.ids

    # ---- who counts

    @property
    def counted(self) -> frozenset[int]:
        """Ids of the replicas that must have a record before it is confirmed, the own id included."""
        asked = _NOBODY if self._asked is None else self._asked.ids
        return self.agreed | asked | self._doubtful | self._joining | {self.own_id}

    def update_in_sync(self, end: int, confirmed: int, now_s: float) -> list[Copy]:
        """See `Copies.update_in_sync`; a copy is in sync when it is in the set that the controllers have agreed to."""
        members = {id_of(copy): copy for copy in self.slaves.values()}
        self._joining = frozenset(
            broker_id
            for broker_id, copy in members.items()
            if broker_id not in self.agreed and self._may_join(copy, end, now_s)
        )
        changed = []
        for broker_id, copy in members.items():
            in_sync = broker_id in self.agreed
            if in_sync != copy.in_sync:
                copy.in_sync = in_sync
                changed.append(copy)
        return changed

    def propose(self, end: int, confirmed: int, now_s: float) -> Proposal | None:
        """Return the set to propose to the controllers; None while a proposal is open, or if the present set is right.

        The caller reports the outcome: `learn`, `refused` or `doubt`.
        """
        if self._asked is not None:
            return None
        wanted = {self.own_id}
        for copy in self.slaves.values():
            broker_id = id_of(copy)
            has_all = self._acked(copy) >= max(confirmed, self._start)
            is_member = broker_id in self.agreed and self._keeps_up(copy, end, now_s)
            if is_member or (broker_id in self._joining and has_all):
                wanted.add(broker_id)
        ids = frozenset(wanted)
        if ids == self.agreed and not self._doubtful:
            return None
        self._asked = Proposal(ids, self.set_epoch, renews=ids == self.agreed)
        return self._asked

    @property
    def wanted(self) -> int:
        """See `Copies.wanted`: the number of all that count."""
        return len(self.counted)

    @property
    def are_waited_for(self) -> bool:
        """See `Copies.are_waited_for`."""
        return True

    @property
    def in_sync_count(self) -> int:
        """Number of members of the set."""
        return len(self.agreed)

    def promise(self, local: int, acknowledged: int) -> Promise:
        """See `Copies.promise`; while a member is not connected, nothing more is confirmed."""
        acks = {id_of(copy): self._acked(copy) for copy in self.slaves.values()}
        others = self.counted - {self.own_id}
        if not others <= acks.keys():
            return Promise(acknowledged, acknowledged, False)
        confirmed = min([local, *(acks[broker_id] for broker_id in others)])
        return Promise(confirmed, confirmed, False)

    def _acked(self, copy: Copy) -> int:
        return copy.acked(durable=self.rules.counts_durable)

    def _keeps_up(self, copy: Copy, end: int, now_s: float) -> bool:
        acked = self._acked(copy)
        is_well = acked >= end or now_s - copy.caught_up_s <= self.rules.catch_up_s
        return is_well and end - acked <= self.rules.gap_max_bytes and copy.stuck_looks < STUCK_LOOKS_MAX

    def _may_join(self, copy: Copy, end: int, now_s: float) -> bool:
        is_near = end - self._acked(copy) <= _NEAR_BYTES
        is_alive = now_s - copy.reported_s <= _JOINING_SILENCE_S and copy.stuck_looks < STUCK_LOOKS_MAX
        return is_near and is_alive and not copy.is_learner


def id_of(copy: Copy) -> int:
    """Return the broker id of a LedgerMQ slave."""
    return int(copy.name.rpartition("/")[2])
