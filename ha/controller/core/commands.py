"""Commands, the entries of the controllers' log. Each one is decided when it is applied, from its own group alone.

    Command.apply(group before, or None) -> group after, or None, and the outcome

A command contains all that it needs: the epochs on which it was based, and which brokers are alive by the heartbeats of
the leading controller. It depends on no clock, no random number and no setting of one controller, so that every
controller gets the same state. Where RocketMQ's controller has a bug, the command here differs, as its docstring says.

Source: apache/rocketmq `controller/.../impl/manager/ReplicasInfoManager.java`,
`controller/.../elect/impl/DefaultElectPolicy.java` (5.3).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from ha.controller.core.model import FIRST_ID, REPLICAS_MAX, Candidate, DamagedStateError, Group, RegisteredReplica
from ha.controller.core.outcome import CommandOutcome
from ledgermq.remoting.refusal import Cause

Applied = tuple[Group | None, CommandOutcome]

FIRST_RULES: Final = 1
BY_CONTROLLER: Final = -1
"""Value of `Elect.asker` in an election that the controllers begin themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCommand(ABC):
    """One entry of the controllers' log.

    Attributes:
        name: of the group, the broker name.
        rules: version of the rules by which it is applied, see `ha.controller.core.machine`.
    """

    KIND: ClassVar[str]
    name: str = ""
    rules: int = FIRST_RULES

    @abstractmethod
    def apply(self, group: Group | None) -> Applied:
        """Return the new group and the outcome. A refused command changes nothing unless its docstring says so."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; sets are sorted, so that equal commands give equal bytes."""
        fields = asdict(self)
        del fields["rules"]
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in fields.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm(StateCommand):
    """Changes nothing. Once applied, it proves that this controller leads and has applied all commands before it."""

    KIND = "confirm"

    def apply(self, group: Group | None) -> Applied:
        return group, CommandOutcome(group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantId(StateCommand):
    """Give a broker process its id. The same id with the same check code is granted again."""

    KIND = "grant-id"
    cluster: str
    broker_id: int
    check_code: str

    def apply(self, group: Group | None) -> Applied:
        if group is None:
            group = Group(cluster=self.cluster, name=self.name)
            if self.broker_id != FIRST_ID:
                remark = f"Broker-set: {self.name} hasn't been registered in controller"
                return None, CommandOutcome(
                    Cause.CONTROLLER_ID_INVALID, f"{remark}, but broker try to apply brokerId: {self.broker_id}"
                )
        known = group.replicas.get(self.broker_id)
        if known is not None and known.check_code == self.check_code:
            return group, CommandOutcome(group=group)
        if known is not None or self.broker_id < FIRST_ID:
            remark = f"Fail to apply brokerId: {self.broker_id} in broker-set: {self.name}"
            return group, CommandOutcome(Cause.CONTROLLER_ID_INVALID, remark, group)
        if len(group.replicas) >= REPLICAS_MAX:
            remark = f"broker name {self.name} has {len(group.replicas)} replicas, no more are registered"
            return group, CommandOutcome(Cause.CONTROLLER_ID_INVALID, remark, group)
        replica = RegisteredReplica(self.check_code.partition(";")[0], self.check_code)
        replicas = {**group.replicas, self.broker_id: replica}
        group = replace(group, replicas=replicas, next_id=max(group.next_id, self.broker_id + 1))
        return group, CommandOutcome(group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(StateCommand):
    """A broker process with an id has started, perhaps at another address."""

    KIND = "register"
    broker_id: int
    address: str

    def apply(self, group: Group | None) -> Applied:
        if group is None:
            remark = f"Broker-set: {self.name} hasn't been registered in controller"
            return None, CommandOutcome(Cause.CONTROLLER_NOT_REGISTERED, remark)
        known = group.replicas.get(self.broker_id)
        if known is None:
            remark = f"BrokerId: {self.broker_id} hasn't been registered in broker-set: {self.name}"
            return group, CommandOutcome(Cause.CONTROLLER_NOT_REGISTERED, remark, group)
        if known.address != self.address:
            group = replace(group, replicas={**group.replicas, self.broker_id: replace(known, address=self.address)})
        return group, CommandOutcome(group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSet(StateCommand):
    """A master proposes another in-sync set.

    Attributes:
        set_epoch: epoch of the set that the proposal replaces. Every change gives the set a new epoch, so of two
            proposals for one epoch only the first can be accepted.
        alive: ids of the brokers that may be in the set: those alive by the leading controller's heartbeats, and the
            members of the set that is replaced.
        renew: the set may be the present one; it gets another epoch, so that earlier proposals cannot be accepted any
            more. RocketMQ's brokers never ask for that.
    """

    KIND = "alter-set"
    master_id: int
    master_epoch: int
    set_epoch: int
    wanted: frozenset[int]
    alive: frozenset[int]
    renew: bool = False

    def apply(self, group: Group | None) -> Applied:
        if group is None:
            return None, CommandOutcome(Cause.CONTROLLER_ALTER_FAILED, "Broker metadata is not existed")
        problem = self._problem(group)
        if problem is not None:
            return group, CommandOutcome(*problem, group)
        group = replace(
            group, in_sync=self.wanted, set_epoch=group.set_epoch + 1, unbegun_epoch=0, former=frozenset()
        )  # a proposal shows that the master has begun its epoch
        return group, CommandOutcome(group=group)

    def _problem(self, group: Group) -> tuple[Cause, str] | None:
        """Return the first objection, in RocketMQ's order."""
        rejecting = "Rejecting alter syncStateSet request because"
        if group.in_sync == self.wanted and not self.renew:
            remark = "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
            return Cause.CONTROLLER_ALTER_FAILED, remark
        if group.master_id != self.master_id:
            remark = f"{rejecting} the current leader is:{{{group.master_id}}}, not {{{self.master_id}}}"
            return Cause.CONTROLLER_INVALID_MASTER, remark
        if group.master_epoch != self.master_epoch:
            remark = f"{rejecting} the current master epoch is:{{{group.master_epoch}}}, not {{{self.master_epoch}}}"
            return Cause.CONTROLLER_FENCED_MASTER_EPOCH, remark
        if group.set_epoch != self.set_epoch:
            remark = f"{rejecting} the current syncStateSet epoch is:{{{group.set_epoch}}}, not {{{self.set_epoch}}}"
            return Cause.CONTROLLER_FENCED_SET_EPOCH, remark
        for broker_id in sorted(self.wanted):
            if broker_id not in group.replicas:
                return Cause.CONTROLLER_INVALID_REPLICAS, f"{rejecting} the replicas {{{broker_id}}} don't exist"
            if broker_id not in self.alive:
                return Cause.CONTROLLER_BROKER_NOT_ALIVE, f"{rejecting} the replicas {{{broker_id}}} don't alive"
        if self.master_id not in self.wanted:
            remark = f"{rejecting} the newSyncStateSet don't contains origin leader {{{self.master_id}}}"
            return Cause.CONTROLLER_ALTER_FAILED, remark
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elect(StateCommand):
    """Appoint a master, if none is alive.

    The first election of a group is won by the broker that asks. Later the candidates are the living members of the
    in-sync set whose log is not in doubt; if the logs of all of them are in doubt, all members of the set must be alive
    and have known its master. If there is no such candidate, and only with `unclean`, all living replicas are
    candidates. Of the candidates a designated one wins, else the present master, else the one of best rank.

    Attributes:
        asker: id of the broker that asks, or that an administrator names; `BY_CONTROLLER` for neither.
        designated: only the asker may be elected.
        alive: the living replicas as their heartbeats described them.
        unclean: replicas outside the in-sync set may win; acknowledged records that they lack are lost.
        seen_epoch: master epoch in which the leading controller found that the master is lost; an election in between
            makes the command void. None when a broker or an administrator asks.
        new_process: the asker is the master, but its process is not the elected one, so its log may have lost its end.
            It is a candidate like the others, and the winner gets another epoch. RocketMQ's brokers never ask for that.
    """

    KIND = "elect"
    asker: int
    designated: bool
    alive: tuple[Candidate, ...]
    unclean: bool
    seen_epoch: int | None = None
    new_process: bool = False

    def apply(self, group: Group | None) -> Applied:
        if group is None:
            return None, CommandOutcome(Cause.CONTROLLER_NOT_REGISTERED, "Broker hasn't been registered")
        if self.seen_epoch not in (None, group.master_epoch):
            remark = f"the election of {self.name} was decided at epoch {self.seen_epoch}, now {group.master_epoch}"
            return group, CommandOutcome(Cause.CONTROLLER_FENCED_MASTER_EPOCH, remark, group)
        if self.asker != BY_CONTROLLER and self.asker not in group.replicas:
            remark = f"BrokerId: {self.asker} hasn't been registered in broker-set: {self.name}"
            return group, CommandOutcome(Cause.CONTROLLER_INVALID_REPLICAS, remark, group)
        is_first = group.master_epoch == 0 and self.asker != BY_CONTROLLER
        chosen = self.asker if is_first else self._choose(group)
        if chosen is None:
            return self._without_master(group)
        if chosen == group.master_id and not self._is_renewal(group):
            remark = f"The old master {chosen} is still alive, not need to elect new master for broker {self.name}"
            return group, CommandOutcome(Cause.CONTROLLER_MASTER_STILL_EXISTS, remark, group)
        unbegun_epoch, former = group.unbegun_epoch, group.former
        # if the whole set is in doubt, one of it is elected: no earlier set has records that all of it lack
        is_sound = all(one.doubt_epoch is None for one in self.alive if one.broker_id == chosen)
        if is_sound and (not unbegun_epoch or all(one.broker_id != chosen for one in self._trusted(group))):
            # nothing is acknowledged before the first master
            unbegun_epoch, former = (group.master_epoch + 1 if group.in_sync else 0), group.in_sync
        group = replace(
            group,
            master_id=chosen,
            master_epoch=group.master_epoch + 1,
            in_sync=frozenset({chosen}),
            set_epoch=group.set_epoch + 1,
            unbegun_epoch=unbegun_epoch,
            former=former,
        )
        return group, CommandOutcome(group=group)

    def _is_renewal(self, group: Group) -> bool:
        return self.new_process and self.asker == group.master_id

    def _choose(self, group: Group) -> int | None:
        pools = [self._trusted(group)]
        if self.unclean:
            pools.append([one for one in self.alive if one.broker_id in group.replicas])
        is_designated = self.designated and self.asker != BY_CONTROLLER
        for pool in pools:
            ids = {one.broker_id for one in pool}
            if is_designated:
                if self.asker in ids:
                    return self.asker
            elif group.master_id in ids and not self._is_renewal(group):
                return group.master_id
            elif pool:
                return min(pool, key=lambda one: one.rank).broker_id
        return None

    def _trusted(self, group: Group) -> Sequence[Candidate]:
        """Return living members of the in-sync set of which at least one has everything acknowledged.

        If all of them lost power, no other replica has more. But a replica that was elected while it was down does not
        know that, and is alone in its set: its epoch never began, and the set before has everything. That may happen
        several times in a row.
        """
        members = [one for one in self.alive if one.broker_id in group.in_sync]
        sound = [one for one in members if one.doubt_epoch is None]
        if sound or not members or len(members) < len(group.in_sync):
            return sound
        if max(one.doubt_epoch or 0 for one in members) >= group.unbegun_epoch:
            return members
        return [one for one in self.alive if one.broker_id in group.former and one.doubt_epoch is None]

    def _without_master(self, group: Group) -> Applied:
        """Refuse, since no replica can be appointed. The group loses its master only if the controllers asked."""
        if self.asker != BY_CONTROLLER:
            return group, CommandOutcome(Cause.CONTROLLER_ELECTION_FAILED, "Failed to elect a new master", group)
        if group.master_id is not None and self.seen_epoch is not None:
            group = replace(group, master_id=None, master_epoch=group.master_epoch + 1)
        remark = "Old master has down and failed to elect a new broker master"
        return group, CommandOutcome(Cause.CONTROLLER_MASTER_NOT_AVAILABLE, remark, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean(StateCommand):
    """Remove replicas, or a whole group.

    Differences from RocketMQ: ids are respected also if living brokers may be removed, a set that shrinks gets a new
    epoch, and a removed master is not the master any more.

    Attributes:
        ids: of the replicas; empty for the whole group.
        even_living: whether living replicas, and a group with a master, may be removed.
        alive: ids of the brokers that are alive by the leading controller's heartbeats.
    """

    KIND = "clean"
    ids: frozenset[int]
    even_living: bool
    alive: frozenset[int]

    def apply(self, group: Group | None) -> Applied:
        if group is None:
            remark = f"Broker {self.name} is not existed,clean broker data failure."
            return None, CommandOutcome(Cause.CONTROLLER_INVALID_CLEAN, remark)
        living = sorted(self.ids & self.alive)
        if not self.even_living and (living or (not self.ids and group.master_id is not None)):
            who = f"[{self.name},  {living[0]}]" if living else self.name
            remark = f"Broker {who} is still alive, clean up failure"
            return group, CommandOutcome(Cause.CONTROLLER_INVALID_CLEAN, remark, group)
        replicas = {key: one for key, one in group.replicas.items() if self.ids and key not in self.ids}
        if not replicas:
            return None, CommandOutcome()
        group = replace(group, replicas=replicas, former=group.former - self.ids)
        if group.in_sync & self.ids:
            group = replace(group, in_sync=group.in_sync - self.ids, set_epoch=group.set_epoch + 1)
        if group.master_id in self.ids:
            group = replace(group, master_id=None, master_epoch=group.master_epoch + 1)
        return group, CommandOutcome(group=group)


_KINDS: Final[Mapping[str, type[StateCommand]]] = {
    kind.KIND: kind for kind in (Confirm, GrantId, Register, AlterSet, Elect, Clean)
}
_SETS: Final = ("wanted", "alive", "ids")


def command_from_json(kind: str, fields: Mapping[str, Any], rules: int = FIRST_RULES) -> StateCommand:
    """Return the command of this kind, with these fields (as `to_json` wrote them) and rules.

    Raises:
        DamagedStateError: there is no such kind, or a field is missing, unknown or of another type.
    """
    try:
        given = dict(fields)
        if kind == Elect.KIND:
            given["alive"] = tuple(Candidate(**one) for one in given["alive"])
        else:
            given |= {name: frozenset(given[name]) for name in _SETS if name in given}
        return _KINDS[kind](**given, rules=rules)
    except (KeyError, TypeError) as error:
        raise DamagedStateError(f"a command {kind!r} cannot be read: {type(error).__name__} {error}") from error
