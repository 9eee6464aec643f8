"""The connected clients: consumers and producers by group, from their heartbeats and connections.

A client belongs to a group from its heartbeat until it unregisters, its connection closes, or it is silent for 120 s.
When a group's members or topics change, every member is notified at once (code 40), so that queues are assigned again.

Source: apache/rocketmq `broker/.../client/ConsumerManager.java`, `ConsumerGroupInfo.java`, `ProducerManager.java`.
"""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from broker.groups.subscription import Subscription
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

EXPIRY_SECONDS = 120.0
GROUPS_MAX = 10_000
"""Most groups in one heartbeat."""

_AT_ONCE_S: Final = 0.5
IDS_MAX = 1_000
"""Most producers' client ids of one connection, to which replies can go; a proxy has several."""

MEMBERS_MAX = 200_000
"""Most members of all groups; a connection counts once for each of its groups."""
BROADCASTING = "BROADCASTING"

HEARTBEAT = "heartbeat"
"""Attribute of a connection: its last heartbeat and what it unregistered since then, a tuple of `Command`, so that they
can be passed on to a new leader."""


@dataclass(slots=True)
class Client:
    """One client process in one group, on one connection. `last_seen` is in seconds of the loop's clock."""

    client_id: str
    connection: Connection
    language: str
    version: int
    last_seen: float
    user: str | None = None

    def to_json(self) -> dict[str, Any]:
        host, port = self.connection.peer
        return {
            "clientAddr": f"{host}:{port}",
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


class Gone(Enum):
    """Why a consumer has no connection any more."""

    LEFT = "it has said that it leaves"
    DIED = "its connections to several members ended within half a second: its process has ended"
    LOST = "unknown: it may come back"


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and its subscriptions. The last heartbeat decides how the group consumes."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    _connection_counts: Counter[str] = field(default_factory=Counter)
    _dropped_at: dict[str, float] = field(default_factory=dict)

    def put(self, connection: Connection, member: Client) -> bool:
        """Take a member's heartbeat; return whether its id is new in the group."""
        known = self.members.get(connection)
        if known is not None and known.client_id == member.client_id:
            self.members[connection] = member
            return False
        self.drop(connection, member.last_seen)
        self.members[connection] = member
        self._dropped_at.pop(member.client_id, None)
        self._connection_counts[member.client_id] += 1
        return self._connection_counts[member.client_id] == 1

    def drop(self, connection: Connection, now: float) -> tuple[Client | None, Gone | None]:
        """Remove a connection; return its member, if it had one, and why that is gone if this was its last one."""
        member = self.members.pop(connection, None)
        if member is None:
            return None, None
        client_id = member.client_id
        self._connection_counts[client_id] -= 1
        if self._connection_counts[client_id] > 0:
            self._dropped_at[client_id] = now
            return member, None
        del self._connection_counts[client_id]
        return member, Gone.DIED if now - self._dropped_at.pop(client_id, -math.inf) < _AT_ONCE_S else Gone.LOST

    def one_by_one(self) -> list[Client]:
        """Return each member once; of several connections, its own one rather than that of another broker."""
        return _one_by_one(self.members.values())

    def client_ids(self) -> list[str]:
        """Return the ids of the members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> Client | None:
        """Return the member with this id; None if there is none."""
        return next((member for member in self.members.values() if member.client_id == client_id), None)

    def subscribe(self, subscriptions: Mapping[str, Subscription]) -> bool:
        """Take over a heartbeat's subscriptions; return whether the set of topics changed.

        A subscription older than the stored one of its topic is ignored.
        """
        before = self.subscriptions.keys()
        newest = {
            topic: stored if (stored := self.subscriptions.get(topic)) and stored.version > offered.version else offered
            for topic, offered in subscriptions.items()
        }
        changed = newest.keys() != before
        self.subscriptions = newest
        return changed

    def renew(self, subscriptions: Iterable[Subscription]) -> None:
        """Take over subscriptions that a member sends between heartbeats, if they are newer than the stored ones."""
        for offered in subscriptions:
            stored = self.subscriptions.get(offered.topic)
            if stored is None or stored.version < offered.version:
                self.subscriptions[offered.topic] = offered


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """The part of a heartbeat about one group."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat: the client and its groups."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]

    @classmethod
    def from_json(cls, value: Any) -> Generator[None, None, "Heartbeat"]:
        """Read the body of a HEART_BEAT, a group a step.

        Raises:
            Refusal: MALFORMED_FIELD or SUBSCRIPTION_PARSE_FAILED, names what is wrong.
        """
        if not isinstance(value, Mapping):
            raise Refusal(Cause.MALFORMED_FIELD, f"heartbeat: the body is not a JSON object but {type(value).__name__}")
        of_producers, of_consumers = _entries(value, "producerDataSet"), _entries(value, "consumerDataSet")
        check_group_count(len(of_producers) + len(of_consumers))
        producers, consumers = [], []
        for entry in of_producers:
            producers.append(_text(entry, "groupName"))
            yield
        for entry in of_consumers:
            consumers.append(_consumer_data(entry))
            yield
        return cls(_text(value, "clientID"), tuple(producers), tuple(consumers))


class ClientTable:
    """All groups with connected clients.

    Args:
        clock: seconds, monotonic.
        on_change: called with the group whose members or topics changed, after the change.
        on_gone: called with a group, the id of a consumer that has no connection in it any more, and why; before
            `on_change`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[ConsumerGroup], None],
        on_gone: Callable[[str, str, Gone], None] = lambda _group, _client_id, _why: None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._on_gone = on_gone
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Connection, Client]] = {}
        self._producer_connections: dict[str, Connection] = {}
        self._producer_ids: dict[Connection, set[str]] = {}  # at most `IDS_MAX` of each
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}  # it consumes in, it produces in
        self._at_address: dict[str, Connection] = {}  # those of them that are not relayed
        self._member_count = 0  # of all these groups

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return the group; None if it has no members."""
        return self._consumers.get(name)

    def is_subscribed(self, group_name: str, topic: str) -> bool:
        """Return whether a group with members subscribes to the topic; True for a group without members."""
        group = self._consumers.get(group_name)
        return group is None or topic in group.subscriptions

    def producers(self, group: str) -> list[Client]:
        """Return the connected producers of a group, each once."""
        return _one_by_one(self._producers.get(group, {}).values())

    def connections(self) -> KeysView[Connection]:
        """Return the connections of all clients, a view, in the order of their first heartbeats."""
        return self._groups_of.keys()

    def connected_at(self, address: str) -> Connection | None:
        """Return the connection of the clients at this address, `host:port`; None where none is connected here."""
        return self._at_address.get(address)

    def producer_connection(self, client_id: str) -> Connection | None:
        """Return the connection of the last heartbeat of the producer with this id."""
        return self._producer_connections.get(client_id)

    def all_producers(self) -> dict[str, list[Client]]:
        """Return the connected producers by group."""
        return {group: _one_by_one(members.values()) for group, members in self._producers.items()}

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return the groups with members."""
        return list(self._consumers.values())

    def beat_producer(
        self, group: str, client_id: str, connection: Connection, language: str, version: int, user: str | None
    ) -> None:
        """Take a producer's heartbeat, which `user` signed.

        Raises:
            Refusal: BUSY, groups have too many members already.
        """
        self._join(connection, _PRODUCES, group)
        members = self._producers.setdefault(group, {})
        members[connection] = Client(client_id, connection, language, version, self._clock(), user)
        ids = self._producer_ids.setdefault(connection, set())
        if client_id not in ids and len(ids) >= IDS_MAX:
            return
        ids.add(client_id)
        known = self._producer_connections.get(client_id)
        if known is None or known.is_closed or known.user == user:
            self._producer_connections[client_id] = connection  # else another user's client has this id

    def beat_consumer(
        self, data: ConsumerData, client_id: str, connection: Connection, language: str, version: int
    ) -> None:
        """Take a consumer's heartbeat; call `on_change` if it is a new member or the group's topics changed.

        Raises:
            Refusal: BUSY, groups have too many members already.
        """
        self._join(connection, _CONSUMES, data.group)
        group = self._consumers.setdefault(data.group, ConsumerGroup(data.group))
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        is_new = group.put(connection, Client(client_id, connection, language, version, self._clock()))
        if group.subscribe(data.subscriptions) or is_new:
            self._on_change(group)

    def leave_producer(self, group: str, connection: Connection) -> None:
        """Remove a producer that unregisters."""
        members = self._producers.get(group, {})
        gone = members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        if gone is None:
            return
        if not self._leave(connection, _PRODUCES, group):
            for client_id in self._producer_ids.pop(connection, ()):
                if self._producer_connections.get(client_id) is connection:
                    del self._producer_connections[client_id]

    def leave_consumer(self, group: str, connection: Connection, *, has_left: bool) -> None:
        """Remove a consumer that unregisters (`has_left`) or whose connection closed."""
        found = self._consumers.get(group)
        member, why = (None, None) if found is None else found.drop(connection, self._clock())
        if found is None or member is None:
            return
        self._leave(connection, _CONSUMES, group)
        if not found.members:
            del self._consumers[group]
        if why is not None or has_left:
            self._on_gone(group, member.client_id, Gone.LEFT if has_left or why is None else why)
        if why is not None:
            self._on_change(found)

    def connection_closed(self, connection: Connection) -> Iterator[None]:
        """Remove all clients of a closed connection, a group a step."""
        consumes, produces = self._groups_of.get(connection, ((), ()))
        for name in tuple(consumes):
            self.leave_consumer(name, connection, has_left=False)
            yield
        for name in tuple(produces):
            self.leave_producer(name, connection)
            yield

    def _join(self, connection: Connection, kind: int, group: str) -> None:
        groups = self._groups_of.get(connection, _NO_GROUPS)[kind]
        if group in groups:
            return
        if self._member_count >= MEMBERS_MAX:
            raise Refusal(Cause.BUSY, f"[OVERLOAD]system busy: groups have {MEMBERS_MAX} members", retry_after_ms=1000)
        self._groups_of.setdefault(connection, (set(), set()))[kind].add(group)
        if not connection.is_relayed:
            self._at_address[connection.address] = connection
        self._member_count += 1

    def _leave(self, connection: Connection, kind: int, group: str) -> set[str]:
        """Return the groups of the kind in which the connection still is."""
        both = self._groups_of[connection]
        both[kind].discard(group)
        self._member_count -= 1
        if not any(both):
            del self._groups_of[connection]
            if self._at_address.get(connection.address) is connection:
                del self._at_address[connection.address]
        return both[kind]

    def expire(self) -> Iterator[None]:
        """Remove, in steps, clients that sent no heartbeat for too long, and close their connections."""
        oldest = self._clock() - EXPIRY_SECONDS
        for members in [*(group.members for group in self._consumers.values()), *self._producers.values()]:
            for connection in list(members):
                member = members.get(connection)  # others may have sent one while this loop stood still
                if member is not None and member.last_seen < oldest:
                    connection.close()  # first: it takes no heartbeat any more
                    yield from self.connection_closed(connection)
            yield


_CONSUMES: Final = 0
_PRODUCES: Final = 1
_NO_GROUPS: Final[tuple[set[str], set[str]]] = (set(), set())


def check_group_count(count: int) -> None:
    """Refuse a heartbeat of more than `GROUPS_MAX` groups."""
    if count > GROUPS_MAX:
        raise Refusal(Cause.INVALID_PARAMETER, f"heartbeat: {count} groups, more than {GROUPS_MAX}")


def _one_by_one(members: Iterable[Client]) -> list[Client]:
    found: dict[str, Client] = {}
    for member in members:
        known = found.get(member.client_id)
        if known is None or known.connection.is_relayed:
            found[member.client_id] = member
    return list(found.values())


def _consumer_data(entry: Mapping[str, Any]) -> ConsumerData:
    subscriptions = map(Subscription.from_json, _entries(entry, "subscriptionDataSet"))
    return ConsumerData(
        group=_text(entry, "groupName"),
        consume_type=str(entry.get("consumeType") or "CONSUME_PASSIVELY"),
        message_model=str(entry.get("messageModel") or "CLUSTERING"),
        consume_from_where=str(entry.get("consumeFromWhere") or "CONSUME_FROM_LAST_OFFSET"),
        subscriptions={subscription.topic: subscription for subscription in subscriptions},
    )


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise Refusal(Cause.MALFORMED_FIELD, f"heartbeat: {name} is {str(found)[:100]!r}, not a text")
    return found


def _entries(value: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = value.get(name) or []
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise Refusal(Cause.MALFORMED_FIELD, f"heartbeat: {name} is {str(found)[:100]!r}, not a list of objects")
    return found
