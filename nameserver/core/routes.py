"""The route table: brokers register, leave or fall silent; clients ask for routes. Pure: times are arguments.

    register / heartbeat / unregister / connection_closed / expire  -->  groups x topics  -->  route(topic)

Nameservers share nothing: each broker registers with each of them. `election` decides who leads. A revision counts
every change that a client could see, so that a client may wait for the next one. Not thread-safe.

Source: apache/rocketmq `namesrv/.../routeinfo/RouteInfoManager.java` (5.3), and LedgerMQ's rule of terms.
"""

from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, replace

from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.route import LEADER_ID, PERM_WRITE
from nameserver.core.election import RegistrationRefusedError, TermMemory, check_claim
from nameserver.core.model import (
    BrokerGroup,
    BrokerMember,
    MinBrokerChange,
    QueueData,
    Registration,
    TopicRoute,
)
from nameserver.core.topics import TopicIndex

SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Prefix of the topics by which RocketMQ's members of a broker name find each other; routes show the true leader."""

ELECTION_MS = 10_000
"""How long a broker name without a leader is expected to elect one."""


class UnknownBrokerError(LookupError):
    """No broker is registered with that cluster and address (and broker id, if one was given)."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: where the leader is; None for the leader itself, or when there is none."""

    leader_address: str | None
    leader_ha_address: str | None


class RouteTable:
    """The brokers and topics that one nameserver knows.

    Args:
        first_revision: start of the revisions; a number that grows from one start of the process to the next, such as
            the time in ms, so that a version from before a restart never equals a new one by chance.
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
        """The revision; it grows with every change that a client could see."""
        return self._revision

    @property
    def groups(self) -> Iterable[BrokerGroup]:
        """All broker names with members."""
        return self._groups.values()

    @property
    def has_members(self) -> bool:
        """Whether any broker is registered."""
        return bool(self._groups)

    def group(self, broker_name: str) -> BrokerGroup | None:
        """Return the members of a broker name; None without members."""
        return self._groups.get(broker_name)

    def highest_term(self, broker_name: str) -> int:
        """Return the highest term with which id 0 of a broker name was taken; 0 when none is kept."""
        return self._terms.highest(broker_name)

    def take_min_changes(self) -> list[MinBrokerChange]:
        """Return the changes of smallest ids since the last call, at most one for each broker name: the newest."""
        changes, self._min_changes = list(self._min_changes.values()), {}
        return changes

    # ---- what brokers say

    def register(self, claim: Registration, now_ms: int) -> Registered:
        """Register a broker: set its id by the election rule, and take over its topics if it may speak for the group.

        Raises:
            RegistrationRefusedError: nothing was changed; an id that the broker already has stays its own.
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

    def heartbeat(self, cluster: str, address: str, now_ms: int, broker_id: int | None = None) -> BrokerMember:
        """Note that a broker is alive.

        Raises:
            UnknownBrokerError: it is not registered, or under another id than it sends: it should register.
        """
        broker_id_known, member = self._find(cluster, address)
        if broker_id is not None and broker_id != broker_id_known:
            raise UnknownBrokerError(f"{address} is registered as broker id {broker_id_known}, not {broker_id}")
        member.seen_ms = now_ms
        return member

    def data_version(self, cluster: str, address: str, broker_id: int | None = None) -> DataVersion | None:
        """Return the version of the topic table that a broker last registered, with that id if given; or None."""
        try:
            known_id, member = self._find(cluster, address)
        except UnknownBrokerError:
            return None
        return member.registration.table.version if broker_id in (None, known_id) else None

    def unregister(self, brokers: Iterable[tuple[str, str, str]], now_ms: int) -> list[BrokerMember]:
        """Remove brokers, each named by cluster, broker name and address; return those that were registered."""
        known = {at: None for name, at in ((n, (c, a)) for c, n, a in brokers) if self._names.get(at) == name}
        return self._drop([self._find(*at)[1] for at in known], now_ms)

    def connections_closed(self, connections: Set[Hashable], now_ms: int) -> list[BrokerMember]:
        """Remove the brokers that last registered on one of the connections; return them."""
        return self._drop([m for m in self._members() if m.registration.connection in connections], now_ms)

    def expire(self, now_ms: int) -> list[BrokerMember]:
        """Remove the brokers that were silent for longer than their time-out; return them."""
        self._terms.expire(now_ms)
        return self._drop([member for member in self._members() if member.expires_ms < now_ms], now_ms)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic's queues on registered broker names (request 217).

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
        """Delete a topic, everywhere or on the brokers of one cluster; an unknown topic is no error."""
        names = None if not cluster else {group.name for group in self._groups.values() if group.cluster == cluster}
        self.topics.remove(topic, names)

    # ---- what clients ask

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None when it is unknown."""
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
        """Return what `route` returns, with acting masters.

        In a group that allows it and has no leader, the member of the smallest id is shown as the leader. This holds
        only where the topic takes no sends: an acting master serves reads, timers and ends of transactions.
        """
        route = self.route(topic)
        if route is None or topic.startswith(SYNC_MEMBER_PREFIX):
            return route
        queues = self.topics.queues(topic)
        acting = (g.name for g in route.groups if g.acting_master and g.leader is None)
        return replace(route, acting=frozenset(name for name in acting if not queues[name].perm & PERM_WRITE))

    def is_between_leaders(self, topic: str, now_ms: int) -> bool:
        """Return whether a broker name of the topic's route has had no leader for less than `ELECTION_MS`."""
        groups = (self._groups[name] for name in self.topics.queues(topic) if name in self._groups)
        since = (group.leaderless_since_ms for group in groups)
        return any(began is not None and now_ms - began < ELECTION_MS for began in since)

    def version(self, topic: str) -> int:
        """Return the version that `route(topic)` would have; 0 when the topic is unknown."""
        revisions = [self._groups[name].revision for name in self.topics.queues(topic) if name in self._groups]
        return max(self.topics.revision(topic), *revisions) if revisions else 0

    def clusters(self) -> dict[str, list[str]]:
        """Return broker names by cluster, both in the order of registration."""
        clusters: dict[str, list[str]] = {}
        for group in self._groups.values():
            clusters.setdefault(group.cluster, []).append(group.name)
        return clusters

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics with queues on a broker of the cluster."""
        names = set(self.clusters().get(cluster, ()))
        return [topic for topic in self.topics if names.intersection(self.topics.queues(topic))]

    # ---- internals

    def _next_revision(self) -> int:
        self._revision += 1
        return self._revision

    def _members(self) -> Iterable[BrokerMember]:
        return [member for group in self._groups.values() for member in group.members.values()]

    def _find(self, cluster: str, address: str) -> tuple[int, BrokerMember]:
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
            new = self._new_topics(claim)
            if self.topics.entry_count + new > self._max_topic_entries and self.topics.is_changing:
                self.topics.change_some(None)
                new = self._new_topics(claim)
            if self.topics.entry_count + new > self._max_topic_entries:
                raise RegistrationRefusedError(
                    f"{who}: {new} new topics beside {self.topics.entry_count} entries are too many (maxTopicEntries)"
                )

    def _new_topics(self, claim: Registration) -> int:
        return len(claim.table.topics.keys() - self.topics.of_broker(claim.broker_name).keys())

    def _take_place(self, group: BrokerGroup, claim: Registration, now_ms: int) -> None:
        if self._names.get((claim.cluster, claim.address), claim.broker_name) != claim.broker_name:
            self._drop([self._find(claim.cluster, claim.address)[1]], now_ms)  # another broker had this address before
        before = (group.addresses, group.acting_master, group.zone)
        for broker_id, member in list(group.members.items()):
            if member.address == claim.address or broker_id == claim.broker_id:
                del group.members[broker_id]
                self._names.pop((claim.cluster, member.address), None)
        self._groups[group.name] = group
        self._names[claim.cluster, claim.address] = group.name
        # Topics are kept once, in the topic table; what a member needs later is the version.
        slim = replace(claim.table, topics={}, mappings={})
        group.members[claim.broker_id] = BrokerMember(replace(claim, table=slim), now_ms)
        group.acting_master = bool(claim.acting_master)
        group.zone = claim.zone
        if (group.addresses, group.acting_master, group.zone) != before:
            group.revision = self._next_revision()

    def _take_topics(self, group: BrokerGroup, claim: Registration) -> None:
        leads = claim.broker_id == LEADER_ID
        # RocketMQ's prime slave: without a leader, the smallest id speaks for the group, if its broker is of 5.x.
        speaks = leads or (claim.acting_master is not None and claim.broker_id == min(group.members))
        if not speaks:
            return
        source = (claim.address, claim.table.version)
        # With terms a follower may lag: it adds topics that a restarted nameserver lacks, and overwrites nothing.
        news = group.taken_version != source and (leads or claim.term == 0)
        is_read_only = not leads and group.acting_master
        self.topics.enter(group.name, claim.table.topics, is_news=news, is_read_only=is_read_only)
        if news:
            for topic in claim.table.removed if leads else ():
                self.topics.remove(topic, [group.name])
            self.topics.put_mappings(claim.table)
            group.taken_version = source
        # RocketMQ's brokers send a table of one topic as an increment: the other topics remain.
        is_whole = not claim.table.is_increment and len(claim.table.topics) != 1
        if leads and self.delete_missing_topics and not claim.table.mappings and is_whole:
            self.topics.remove_all(group.name, self.topics.of_broker(group.name).keys() - claim.table.topics.keys())

    def _note_new_min(self, group: BrokerGroup, claim: Registration) -> None:
        """Note that a member has a smaller id than all others: notify them, or itself when there are none."""
        others = tuple(address for broker_id, address in group.addresses.items() if broker_id != claim.broker_id)
        self._min_changes[group.name] = MinBrokerChange(
            group.name, claim.broker_id, claim.address, None, claim.ha_address, others or (claim.address,)
        )

    def _note_lost_min(self, group: BrokerGroup, gone: BrokerMember) -> None:
        """Note that the member with the smallest id left: if another one may act for it, notify all others."""
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
        elects = any(member.registration.term for member in group.members.values())
        if group.leader is not None or not elects:
            group.leaderless_since_ms = None
        elif group.leaderless_since_ms is None:
            group.leaderless_since_ms = now_ms

    def _drop(self, members: list[BrokerMember], now_ms: int) -> list[BrokerMember]:
        emptied = set()
        for member in members:
            claim = member.registration
            group = self._groups[claim.broker_name]
            del group.members[claim.broker_id], self._names[claim.cluster, claim.address]
            group.revision = self._next_revision()
            self._observe_terms(group, now_ms)
            self._note_lost_min(group, member)
            if group.taken_version is not None and group.taken_version[0] == member.address:
                # when a member registers again, its table is taken over whatever its version
                group.taken_version = None
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
    """Check that a broker which sends a part of its topics has registered all of them before."""
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
