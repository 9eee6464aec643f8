"""The values of a nameserver: registrations, the queues of topics, and the routes made of both.

    Registration --(election rule)--> BrokerGroup: broker id -> Member --.
         '--(its topic table)--> QueueData of a topic on a broker --------'--> TopicRoute

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (BrokerData, BrokerLiveInfo, QueueData).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.route import LEADER_ID


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker name."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it with the members of RocketMQ's JSON, in their order."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """The topics in a registration's body (all, or those that changed), and their version.

    `is_increment`: these are the topics that changed since the last registration, the `removed` ones do not exist any
    more, the others did not change. `mappings` has the JSON of static topics' queue mappings by topic, as received;
    clients get it unchanged.
    """

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()
    mappings: Mapping[str, Any] = field(default_factory=dict)
    is_increment: bool = False
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration of one broker process.

    Attributes:
        address: `host:port` to which clients connect.
        term: the broker's Raft term; 0 when it does not send one (Java's brokers, standalone ones).
        confirm_offset: end of its confirmed log in bytes; -1 when it does not send it.
        heartbeat_timeout_ms: silence after which it is dropped.
        acting_master: `enableActingMaster`; None from a broker too old to send it.
        connection: identifies the connection on which it registered.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    term: int = 0
    confirm_offset: int = -1
    heartbeat_timeout_ms: int
    acting_master: bool | None = None
    zone: str | None = None
    table: TopicTable
    connection: Hashable


@dataclass(slots=True)
class BrokerMember:
    """One registered broker process, and when it was last heard (ms, on a clock that never falls)."""

    registration: Registration
    seen_ms: int

    @property
    def address(self) -> str:
        """`host:port` to which clients connect."""
        return self.registration.address

    @property
    def expires_ms(self) -> int:
        """The time from which on its silence is too long."""
        return self.seen_ms + self.registration.heartbeat_timeout_ms


@dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """A change of a broker name's smallest broker id, and the members to be notified (request 905).

    Attributes:
        offline_address: address of the member that left; None when one registered.
        ha_address: HA address of the member that registered.
        recipients: addresses of members.
    """

    broker_name: str
    min_broker_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    recipients: tuple[str, ...]

    def fields(self) -> dict[str, str]:
        """Return the header of the notice."""
        fields = {
            "minBrokerId": str(self.min_broker_id),
            "brokerName": self.broker_name,
            "minBrokerAddr": self.min_address,
            "offlineBrokerAddr": self.offline_address,
            "haBrokerAddr": self.ha_address,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(slots=True)
class BrokerGroup:
    """All members of one broker name, by broker id.

    Attributes:
        revision: the table's revision at which the group last changed for clients.
        taken_version: version of the topic table that was last taken over, and the address that sent it.
        leaderless_since_ms: since when the members, which elect a leader, have none; None otherwise.
    """

    cluster: str
    name: str
    members: dict[int, BrokerMember] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    revision: int = 0
    taken_version: tuple[str, DataVersion] | None = None
    leaderless_since_ms: int | None = None

    @property
    def leader(self) -> BrokerMember | None:
        """The member with id 0; None without one."""
        return self.members.get(LEADER_ID)

    @property
    def addresses(self) -> dict[int, str]:
        """Return addresses by broker id, lowest first."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}

    def to_json(self, *, is_acting: bool = False) -> dict[str, Any]:
        """Return RocketMQ's BrokerData; the ids stay numbers, which the dialect writes.

        `is_acting` shows the member of the smallest id under id 0.
        """
        addresses = self.addresses
        if is_acting:
            smallest = min(addresses)
            addresses = {LEADER_ID: addresses.pop(smallest)} | addresses
        members: dict[str, Any] = {
            "brokerAddrs": addresses,
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
        }
        return members if self.zone is None else members | {"zoneName": self.zone}


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic.

    `version` changes with every change that clients can see, and is never used again for the same topic, not even after
    a delete; it has no meaning for another nameserver. `acting` has the groups without a leader whose smallest id is
    shown as 0.
    """

    topic: str
    queues: tuple[QueueData, ...]
    groups: tuple[BrokerGroup, ...]
    filter_servers: Mapping[str, list[str]]
    mappings: Mapping[str, Any] | None
    version: int
    acting: frozenset[str] = frozenset()

    def to_json(self, order_conf: str | None = None) -> dict[str, Any]:
        """Return RocketMQ's TopicRouteData, members in its order; absent ones are left out."""
        members: dict[str, Any] = {
            "brokerDatas": [group.to_json(is_acting=group.name in self.acting) for group in self.groups],
            "filterServerTable": dict(self.filter_servers),
        }
        if order_conf is not None:
            members["orderTopicConf"] = order_conf
        members["queueDatas"] = [queue.to_json() for queue in self.queues]
        if self.mappings:
            members["topicQueueMappingByBroker"] = dict(self.mappings)
        return members
