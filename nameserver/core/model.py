"""The values a nameserver keeps and gives: who registered, which queues a topic has, and the route made of both.

    Registration --(election rule)--> BrokerGroup: broker id -> Member --.
                 '--(its topic table)--> QueueData of a topic on a broker --'--> TopicRoute

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (BrokerData, BrokerLiveInfo, QueueData).
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

LEADER_ID = 0
"""The broker id that takes sends: RocketMQ's master, our leader."""

PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Which state of a broker's topic table this is. `state_version` is the master's epoch where Java elects one."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def to_json(self) -> dict[str, int]:
        """RocketMQ's members."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker name."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's members, in its order."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """What a registration's body says: the broker's topics (or the one that changed), in which version.

    `is_increment`: these are the topics that changed since the last registration, the others are as they were.
    `mappings` holds the JSON of static topics' queue mappings by topic, as received; it is only handed on.
    """

    version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()
    mappings: Mapping[str, Any] = field(default_factory=dict)
    is_increment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One broker process as it registers.

    Attributes:
        address: `host:port` that clients dial.
        term: the Raft term in which it speaks; 0 when it does not say (Java's brokers, standalone ones).
        confirm_offset: end of what is confirmed on it, bytes; -1 when it does not say.
        heartbeat_timeout_ms: silence after which it is dropped.
        acting_master: `enableActingMaster`; None from a broker too old to say.
        connection: what tells one connection from another.
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
class Member:
    """One registered broker process, and when it was last heard of (ms, any clock that only goes forward)."""

    registration: Registration
    seen_ms: int

    @property
    def address(self) -> str:
        """`host:port` that clients dial."""
        return self.registration.address

    @property
    def expires_ms(self) -> int:
        """The first moment at which silence is too long."""
        return self.seen_ms + self.registration.heartbeat_timeout_ms


@dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """The smallest broker id of a name has changed, and who is to hear of it (request 905).

    Attributes:
        offline_address: of the member that left and caused it; None when one came.
        ha_address: of the member that came.
        recipients: addresses of members.
    """

    broker_name: str
    min_broker_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    recipients: tuple[str, ...]


@dataclass(slots=True)
class BrokerGroup:
    """All members of one broker name, by broker id.

    Attributes:
        revision: the table's revision at which clients last saw it change.
        taken_version: of the topic table that was last taken over, and the address that sent it.
    """

    cluster: str
    name: str
    members: dict[int, Member] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    revision: int = 0
    taken_version: tuple[str, DataVersion] | None = None

    @property
    def leader(self) -> Member | None:
        """The member with id 0."""
        return self.members.get(LEADER_ID)

    @property
    def addresses(self) -> dict[int, str]:
        """Addresses by broker id, lowest first."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}

    def to_json(self, *, is_acting: bool = False) -> dict[str, Any]:
        """RocketMQ's BrokerData; the ids stay numbers, for the dialect to write.

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
    """Where a topic lives.

    `version` changes whenever what clients see changes, and is never used again for the same topic, not even after
    a delete; it says nothing to another nameserver. `acting` names groups without a leader whose smallest id is shown
    as 0.
    """

    topic: str
    queues: tuple[QueueData, ...]
    groups: tuple[BrokerGroup, ...]
    filter_servers: Mapping[str, list[str]]
    mappings: Mapping[str, Any] | None
    version: int
    acting: frozenset[str] = frozenset()

    def to_json(self, order_conf: str | None = None) -> dict[str, Any]:
        """RocketMQ's TopicRouteData, members in its order; absent ones are left out."""
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
