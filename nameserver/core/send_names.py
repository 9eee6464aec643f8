"""Broker names for producers in the routes of groups that elect: their sends go to followers, which pass them on.

    1~broker-a     id 0: the first follower                 written
    2~broker-a     id 0: the second follower                written
    broker-a       id 0: the leader, ids of the followers   read; no queue to write to

RocketMQ's producers know one address of each broker name, try a failed send again at another name or queue, and ask
for routes every 30 s only: without these names, a dead leader costs them up to 30 s. A follower holds a send until a
new leader is elected, and looks in the log for one whose answer was lost.

Each group has two names at all times, with all queues of its topic in order, and the names sort by their number first:
a key that chooses a queue by its hash modulo their number chooses the same one with and without these names, and
through every failover. The leader stands in for a follower that is missing.

Go's client tries the next queues of its route, whatever their names, and keeps their order: for it the second names
begin with the last group's. Where each of three machines leads a group, no two names in a row are on one machine then.
"""

from collections.abc import Set
from dataclasses import replace
from itertools import chain, pairwise
from operator import attrgetter
from typing import Final

from ledgermq.remoting.route import LEADER_ID, PERM_INHERIT, PERM_WRITE
from nameserver.core.model import BrokerGroup, QueueData, TopicRoute

MARK: Final = "~"
"""Between the number of a name for producers and the name of its group."""

_COUNT: Final = 2
_RETRY_PREFIX: Final = "%RETRY%"


def with_send_names(route: TopicRoute, *, for_go: bool = False) -> TopicRoute:
    """Return the route with names for producers, for groups that elect and that are not alone; in order `for_go`.

    Not for topics that only brokers write to, and none where such a name is that of another group.
    """
    if route.topic.startswith(_RETRY_PREFIX) or route.mappings:
        return route
    names = {group.name: _named(group) for group in route.groups}
    taken = {queue.broker_name for queue in route.queues}
    queues: list[QueueData] = []
    written: list[list[QueueData]] = [[] for _ in range(_COUNT)]  # by the number of the name
    added: list[BrokerGroup] = []
    for queue in route.queues:
        named = names.get(queue.broker_name, []) if queue.perm & PERM_WRITE else []
        if not named or any(group.name in taken for group in named):
            queues.append(queue)
            continue
        added += named
        queues.append(_read_only(queue))
        for group, others in zip(named, written, strict=True):
            others.append(replace(queue, broker_name=group.name, perm=PERM_WRITE))
    if for_go:
        first, second = [sorted(others, key=attrgetter("broker_name")) for others in written]
        written = [first, second[-1:] + second[:-1]]
    return replace(route, groups=(*route.groups, *added), queues=(*chain.from_iterable(written), *queues))


def named_group(route: TopicRoute, name: str) -> TopicRoute | None:
    """Return the route of a broker name for producers, given that of its group's name; None if it has no such name.

    Brokers have a topic of their own name. RocketMQ's proxy asks for its route to find the broker of a queue.
    """
    for group in route.groups:
        for named in _named(group):
            if named.name == name:
                queues = [replace(queue, broker_name=name) for queue in route.queues if queue.broker_name == group.name]
                return replace(route, topic=name, groups=(named,), queues=tuple(queues))
    return None


def _read_only(queue: QueueData) -> QueueData:
    """Return the queues of a group's own name, to which producers must not send.

    The permission of an ordinary topic stays, since mqadmin compares it with the one that it sets. A template of new
    topics also loses its write bit, since clients derive queues to write to from its read queues.
    """
    perm = queue.perm & ~PERM_WRITE if queue.perm & PERM_INHERIT else queue.perm
    return replace(queue, write_queues=0, perm=perm)


def _named(group: BrokerGroup) -> list[BrokerGroup]:
    """Return the group under each of its names for producers; none if it has one member only, or one of RocketMQ's.

    A member of RocketMQ's neither passes sends on nor takes those of others. Ours say how far their log is confirmed;
    one that has just started may not know its term yet.
    """
    registrations = [member.registration for member in group.members.values()]
    elects = any(one.term for one in registrations)
    if len(registrations) < 2 or not elects or any(one.confirm_offset < 0 and not one.term for one in registrations):
        return []
    followers = [group.members[broker_id] for broker_id in _in_ring(group.members.keys() - {LEADER_ID})]
    chosen = [*followers[:_COUNT], *[group.leader or followers[0]] * _COUNT][:_COUNT]
    return [
        BrokerGroup(group.cluster, f"{number}{MARK}{group.name}", {LEADER_ID: member}, zone=group.zone)
        for number, member in enumerate(chosen, 1)
    ]


def _in_ring(ids: Set[int]) -> list[int]:
    """Return the ids of followers in ascending order, beginning behind the gap if there is one: the leader's own id.

    So if each of several machines leads a group, the first names of the groups are on different machines, and the
    second names, too: of three names that a producer tries, only one is on a dead machine.
    """
    ordered = sorted(ids)
    start = next((place for place, (one, other) in enumerate(pairwise(ordered), 1) if other - one > 1), 0)
    return ordered[start:] + ordered[:start]
