"""The state that the controllers agree on: the replicas, the master and the in-sync set of each broker name.

Everything is immutable: one thread applies commands, others read what was applied last.

Source: apache/rocketmq `controller/.../impl/manager/{BrokerReplicaInfo,SyncStateInfo}.java` (5.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FIRST_ID: Final = 1
GROUPS_MAX: Final = 4096
REPLICAS_MAX: Final = 64
"""Most replicas of one group."""


class DamagedStateError(Exception):
    """Bytes that should be a command or a state are not; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class RegisteredReplica:
    """One broker process of a group.

    Attributes:
        address: `host:port` at which clients and other brokers reach it.
        check_code: proves that it is the process that was given the id.
    """

    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class Group:
    """One broker name.

    Attributes:
        replicas: by broker id, from 1 on.
        next_id: broker id of the next replica.
        master_id: None while there is no master.
        master_epoch: rises by one with each master, and when a master is lost; 0 before the first.
        in_sync: ids of the replicas that have everything acknowledged.
        set_epoch: rises by one with each change of `in_sync`, so no two sets have the same epoch.
        unbegun_epoch: if the last masters are not known to have begun their epochs, the epoch of the first of these; 0:
            the present master has begun its epoch.
        former: `in_sync` before the election of that master; these replicas have everything acknowledged if none of
            these masters began.
    """

    cluster: str
    name: str
    replicas: Mapping[int, RegisteredReplica] = field(default_factory=dict)
    next_id: int = FIRST_ID
    master_id: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    set_epoch: int = 0
    unbegun_epoch: int = 0
    former: frozenset[int] = frozenset()

    def address_of(self, broker_id: int | None) -> str | None:
        """Return the replica's address; None for an id that is not there."""
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address

    def to_json(self) -> dict[str, Any]:
        """Return the group as JSON values, the same for equal groups."""
        return {
            "cluster": self.cluster,
            "name": self.name,
            "replicas": [[key, one.address, one.check_code] for key, one in sorted(self.replicas.items())],
            "nextId": self.next_id,
            "masterId": self.master_id,
            "masterEpoch": self.master_epoch,
            "inSync": sorted(self.in_sync),
            "setEpoch": self.set_epoch,
            "unbegunEpoch": self.unbegun_epoch,
            "former": sorted(self.former),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Group":
        """Return the group that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        return cls(
            cluster=value["cluster"],
            name=value["name"],
            replicas={key: RegisteredReplica(address, code) for key, address, code in value["replicas"]},
            next_id=value["nextId"],
            master_id=value["masterId"],
            master_epoch=value["masterEpoch"],
            in_sync=frozenset(value["inSync"]),
            set_epoch=value["setEpoch"],
            unbegun_epoch=value["unbegunEpoch"] if "unbegunEpoch" in value else value.get("electedEpoch", 0),
            former=frozenset(value.get("former", ())),
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A living replica as its heartbeat described it.

    Attributes:
        epoch: epoch of its last record.
        end_offset: end of its log.
        priority: the smaller one is preferred among equals.
        doubt_epoch: newest epoch that it knew when a power cut may have taken the end of its log, as long as it has not
            copied everything acknowledged again; None: its log is not in doubt. See `ha.core.doubt`.
    """

    broker_id: int
    epoch: int
    end_offset: int
    priority: int
    doubt_epoch: int | None = None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Sort key, smallest for the best candidate: newest epoch, longest log, priority, smallest id."""
        return -self.epoch, -self.end_offset, self.priority, self.broker_id
