"""The route table: brokers register, leave or fall silent; clients ask where a topic lives. Pure: time comes in.

    register / heartbeat / unregister / connection_closed / expire  -->  groups x topics  -->  route(topic)

Nameservers share nothing: each one hears from every broker. What decides who leads is in `election`; a revision counts
every change that a client could see, so that a client may wait for the next one. Not thread-safe.

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (5.3), and LedgerMQ's rule of terms.
"""

from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, replace

from nameserver.core.election import RegistrationRefusedError, TermMemory, check_claim
from nameserver.core.model import (
    LEADER_ID,
    PERM_WRITE,
    BrokerGroup,
    DataVersion,
    Member,
    MinBrokerChange,
    QueueData,
    Registration,
    TopicRoute,
)
from nameserver.core.topics import TopicIndex

SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Start of the topics by which RocketMQ's members of one name know one another; they must see who really leads."""


class UnknownBrokerError(LookupError):
    """Nobody is registered under that cluster and address (and broker id, where one was said)."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a follower: where its leader is; None for the leader itself, or when there is none."""

    leader_address: str | None
    leader_ha_address: str | None


class RouteTable:
    """All that one nameserver knows of brokers and topics.

    Args:
        first_revision: revisions count up from here; a number that grows from one start of the process to the next,
            such as the time in ms, so that no client's known version fits by chance.
        delete_missing_topics: a leader's registration removes the topics that it does not name.
        max_members: most registered broker processes.
        max_topic_entries: most topics, each counted once for every broker name that has it.
    """

    def __init__(
        self,
        first_revision: int = 0,
        *,
        delete_missing_topics: bool = False,
        max_members: int = 10_000,
        max_topic_entries: int = 1_000_000,
    ) -> None:
        self.delete_missing_topics = delete_missing_topics
        self._max_members = max_members
        self._max_topic_entries = max_topic_entries
        self._revision = first_revision
        self._groups: dict[str, BrokerGroup] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._terms = TermMemory()
        self._min_changes: dict[str, MinBrokerChange] = {}
        self.topics = TopicIndex(self._next_revision)

    @property
    def revision(self) -> int:
        """Grows with every change that a client could see."""
        return self._revision

    @property
    def groups(self) -> Iterable[BrokerGroup]:
        """All broker names that have members."""
        return self._groups.values()

    @property
    def has_members(self) -> bool:
        """Whether any broker is registered."""
        return bool(self._groups)

    def group(self, broker_name: str) -> BrokerGroup | None:
        """One broker name, while it has members."""
        return self._groups.get(broker_name)

    def highest_term(self, broker_name: str) -> int:
        """The highest term by which id 0 of a broker name was taken; 0 when none is remembered."""
        return self._terms.highest(broker_name)

    def take_min_changes(self) -> list[MinBrokerChange]:
        """The changes of smallest ids since the last call, at most one a broker name: the newest."""
        changes, self._min_changes = list(self._min_changes.values()), {}
        return changes

    # ---- what brokers say

    def register(self, claim: Registration, now_ms: int) -> Registered:
        """Take over a registration: its id by the election rule, its topics where it may speak for the group.

        Raises:
            RegistrationRefusedError: nothing has changed, a place that the broker has already is still its own.
        """
        group = self._groups.get(claim.broker_name) or BrokerGroup(claim.cluster, claim.broker_name)
        if group.cluster != claim.cluster:
            detail = f"broker name {group.name} belongs to cluster {group.cluster}, not to {claim.cluster}"
            raise RegistrationRefusedError(f"register broker failed: {detail}")
        self._check_room(group, claim)
        _check_whole(group, claim)
        check_claim(group, claim, self._terms.highest(claim.broker_name))
        min_before = min(group.members, default=LEADER_ID)
        self._take_place(group, claim, now_ms)
        if claim.broker_id < min_before:
            self._note_new_min(group, claim)
        self._observe_terms(group, now_ms)
        self._take_topics(group, claim)
        leader = group.leader
        if claim.broker_id == LEADER_ID or leader is None:
            return Registered(None, None)
        return Registered(leader.address, leader.registration.ha_address)

    def heartbeat(self, cluster: str, address: str, now_ms: int, broker_id: int | None = None) -> Member:
        """A broker is alive.

        Raises:
            UnknownBrokerError: it is not registered, or under another id than it says: it should register.
        """
        broker_id_known, member = self._find(cluster, address)
        if broker_id is not None and broker_id != broker_id_known:
            raise UnknownBrokerError(f"{address} is registered as broker id {broker_id_known}, not {broker_id}")
        member.seen_ms = now_ms
        return member

    def data_version(self, cluster: str, address: str, broker_id: int | None = None) -> DataVersion | None:
        """The version of the topic table that a broker last registered, under that id if one is said; or None."""
        try:
            known_id, member = self._find(cluster, address)
        except UnknownBrokerError:
            return None
        return member.registration.table.version if broker_id in (None, known_id) else None

    def unregister(self, brokers: Iterable[tuple[str, str, str]], now_ms: int) -> list[Member]:
        """Brokers leave, each named by cluster, broker name and address; returns those that were there."""
        known = {at: None for name, at in ((n, (c, a)) for c, n, a in brokers) if self._names.get(at) == name}
        return self._drop([self._find(*at)[1] for at in known], now_ms)

    def connections_closed(self, connections: Set[Hashable], now_ms: int) -> list[Member]:
        """Drop the brokers that last registered over one of the connections; returns them."""
        return self._drop([m for m in self._members() if m.registration.connection in connections], now_ms)

    def expire(self, now_ms: int) -> list[Member]:
        """Drop the brokers that were silent for longer than they promised; returns them."""
        self._terms.expire(now_ms)
        return self._drop([member for member in self._members() if member.expires_ms < now_ms], now_ms)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic's queues on known broker names (request 217).

        Raises:
            UnknownBrokerError: one of the broker names has no member; nothing was added.
        """
        queues = list(queues)
        for queue in queues:
            if queue.broker_name not in self._groups:
                raise UnknownBrokerError(f"topic {topic}: broker name {queue.broker_name} is not registered")
        if self.topics.entry_count + len(queues) > self._max_topic_entries:
            raise UnknownBrokerError(f"topic {topic}: {self.topics.entry_count} entries are known (maxTopicEntries)")
        for queue in queues:
            self.topics.put(topic, queue)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, wholly or on the brokers of one cluster; an unknown one is forgotten already."""
        names = None if not cluster else {group.name for group in self._groups.values() if group.cluster == cluster}
        self.topics.remove(topic, names)

    # ---- what clients ask

    def route(self, topic: str) -> TopicRoute | None:
        """Where the topic lives; None when it is unknown."""
        queues = self.topics.queues(topic)
        groups = tuple(self._groups[name] for name in queues if name in self._groups)
        if not groups:
            return None
        filter_servers = {
            member.address: list(member.registration.table.filter_servers)
            for group in groups
            for member in group.members.values()
            if member.registration.table.filter_servers
        }
        mappings = self.topics.mappings(topic)
        return TopicRoute(topic, tuple(queues.values()), groups, filter_servers, mappings, self.version(topic))

    def route_with_acting_masters(self, topic: str) -> TopicRoute | None:
        """As `route`; of groups that wish it and have no leader, the member of the smallest id is shown as leader.

        Only where the topic takes no sends: an acting master serves reads, timers and transactions' ends.
        """
        route = self.route(topic)
        if route is None or topic.startswith(SYNC_MEMBER_PREFIX):
            return route
        queues = self.topics.queues(topic)
        acting = (g.name for g in route.groups if g.acting_master and g.leader is None)
        return replace(route, acting=frozenset(name for name in acting if not queues[name].perm & PERM_WRITE))

    def version(self, topic: str) -> int:
        """The version `route(topic)` would have; 0 when the topic is unknown."""
        revisions = [self._groups[name].revision for name in self.topics.queues(topic) if name in self._groups]
        return max(self.topics.revision(topic), *revisions) if revisions else 0

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster, both in the order of registering."""
        clusters: dict[str, list[str]] = {}
        for group in self._groups.values():
            clusters.setdefault(group.cluster, []).append(group.name)
        return clusters

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics with queues on a broker of the cluster."""
        names = set(self.clusters().get(cluster, ()))
        return [topic for topic in self.topics if names.intersection(self.topics.queues(topic))]

    # ---- inside

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision

    def _members(self) -> Iterable[Member]:
        return [member for group in self._groups.values() for member in group.members.values()]

    def _find(self, cluster: str, address: str) -> tuple[int, Member]:
        group = self._groups.get(self._names.get((cluster, address), ""))
        for broker_id, member in group.members.items() if group else ():
            if member.address == address:
                return broker_id, member
        raise UnknownBrokerError(f"no broker at {address} is registered in cluster {cluster}")

    def _check_room(self, group: BrokerGroup, claim: Registration) -> None:
        who = f"register broker failed: broker id {claim.broker_id} of {claim.broker_name}"
        if (claim.cluster, claim.address) not in self._names and len(self._names) >= self._max_members:
            raise RegistrationRefusedError(f"{who}: {len(self._names)} brokers are registered (maxBrokers)")
        claimed = len(claim.table.topics)
        if claimed + self.topics.entry_count > self._max_topic_entries:  # else nothing needs to be looked at
            known = set(self.topics.of_broker(group.name))
            new = sum(topic not in known for topic in claim.table.topics)
            if self.topics.entry_count + new > self._max_topic_entries:
                raise RegistrationRefusedError(
                    f"{who}: {new} new topics beside {self.topics.entry_count} entries are too many (maxTopicEntries)"
                )

    def _take_place(self, group: BrokerGroup, claim: Registration, now_ms: int) -> None:
        if self._names.get((claim.cluster, claim.address), claim.broker_name) != claim.broker_name:
            self._drop([self._find(claim.cluster, claim.address)[1]], now_ms)  # the address has a new tenant
        before = (group.addresses, group.acting_master, group.zone)
        for broker_id, member in list(group.members.items()):
            if member.address == claim.address or broker_id == claim.broker_id:
                del group.members[broker_id]
                self._names.pop((claim.cluster, member.address), None)
        self._groups[group.name] = group
        self._names[claim.cluster, claim.address] = group.name
        # Topics are kept once, in the topic table; what a member needs later is the version.
        slim = replace(claim.table, topics={}, mappings={})
        group.members[claim.broker_id] = Member(replace(claim, table=slim), now_ms)
        group.acting_master = bool(claim.acting_master)
        group.zone = claim.zone
        if (group.addresses, group.acting_master, group.zone) != before:
            group.revision = self._next_revision()

    def _take_topics(self, group: BrokerGroup, claim: Registration) -> None:
        leads = claim.broker_id == LEADER_ID
        # RocketMQ's prime slave: while nobody leads, the smallest id speaks for the group, if its broker is of 5.x.
        speaks = leads or (claim.acting_master is not None and claim.broker_id == min(group.members))
        if not speaks:
            return
        source = (claim.address, claim.table.version)
        # By terms, a follower may lag: it brings back what a restarted nameserver forgot, and overwrites nothing.
        news = group.taken_version != source and (leads or claim.term == 0)
        for topic, queue in claim.table.topics.items():
            if news or group.name not in self.topics.queues(topic):
                read_only = not leads and group.acting_master
                self.topics.put(topic, replace(queue, perm=queue.perm & ~PERM_WRITE) if read_only else queue)
        if news:
            self.topics.put_mappings(claim.table)
            group.taken_version = source
        # RocketMQ's brokers send a table of one topic as an increment: it does not say that the others are gone.
        is_whole = not claim.table.is_increment and len(claim.table.topics) != 1
        if leads and self.delete_missing_topics and not claim.table.mappings and is_whole:
            for topic in set(self.topics.of_broker(group.name)).difference(claim.table.topics):
                self.topics.remove(topic, [group.name])

    def _note_new_min(self, group: BrokerGroup, claim: Registration) -> None:
        """A member came under a smaller id than all others: they hear of it, or itself when there are none."""
        others = tuple(address for broker_id, address in group.addresses.items() if broker_id != claim.broker_id)
        self._min_changes[group.name] = MinBrokerChange(
            group.name, claim.broker_id, claim.address, None, claim.ha_address, others or (claim.address,)
        )

    def _note_lost_min(self, group: BrokerGroup, gone: Member) -> None:
        """The member of the smallest id left: where one may act for it, all others hear of it."""
        addresses = group.addresses
        if addresses and group.acting_master and gone.registration.broker_id < min(addresses):
            smallest = min(addresses)
            self._min_changes[group.name] = MinBrokerChange(
                group.name, smallest, addresses[smallest], gone.address, None, tuple(addresses.values())
            )

    def _observe_terms(self, group: BrokerGroup, now_ms: int) -> None:
        leader_term = group.leader.registration.term if group.leader is not None else 0
        member_terms = (member.registration.term for member in group.members.values())
        self._terms.observe(group.name, leader_term, member_terms, now_ms)

    def _drop(self, members: list[Member], now_ms: int) -> list[Member]:
        emptied = set()
        for member in members:
            claim = member.registration
            group = self._groups[claim.broker_name]
            del group.members[claim.broker_id], self._names[claim.cluster, claim.address]
            group.revision = self._next_revision()
            self._observe_terms(group, now_ms)
            self._note_lost_min(group, member)
            if group.taken_version is not None and group.taken_version[0] == member.address:
                group.taken_version = None  # when it is back, its word counts again, in whatever version
            if not group.members:
                del self._groups[group.name]
                self._min_changes.pop(group.name, None)
                emptied.add(group.name)
            elif group.acting_master and group.leader is None:
                self.topics.wipe_write(group.name)
        if emptied:
            self.topics.remove_brokers(emptied)
        return members


def _check_whole(group: BrokerGroup, claim: Registration) -> None:
    """A part of a broker's topics is taken only from one that has registered all of them."""
    who = f"broker id {claim.broker_id} of {claim.broker_name}"
    holder = group.members.get(claim.broker_id)
    if claim.table.is_increment and (holder is None or holder.address != claim.address):
        raise RegistrationRefusedError(
            f"register broker failed: {who} must send a whole registration before an incremental one"
        )
    if holder is None and len(claim.table.topics) == 1:
        raise RegistrationRefusedError(
            f"register broker failed: {who} must send a whole registration before that of a single topic"
        )
