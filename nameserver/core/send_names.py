"""Further broker names in the routes of producers, so that each knows more than one address of a group that elects.

    broker-a       id 0: the leader, ids of the followers      read and written
    broker-a~1     id 0: the first follower                    written only; its queues are those of broker-a
    broker-a~2     id 0: the second follower                   the same

Members of such a group pass sends on to their leader. RocketMQ's producers know one address of each broker name, try a
failed send again at another name or queue, and ask for routes every 30 s only: without these names, a dead leader costs
them up to 30 s. Each name has all queues of its topic, in order, so that a key that chooses a queue by its hash chooses
the same one with and without these names, as long as the topic is on one group.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from nameserver.core.model import LEADER_ID, PERM_WRITE, BrokerGroup, BrokerMember, QueueData, TopicRoute

MARK: Final = "~"
"""Between the name of a group and the number of the follower, from 1."""

_RETRY_PREFIX: Final = "%RETRY%"


def with_send_names(route: TopicRoute) -> TopicRoute:
    """Return the route with a broker name for each follower of its groups that elect.

    Not for topics that only brokers write to, and none where the name of a group is taken.
    """
    if route.topic.startswith(_RETRY_PREFIX) or route.mappings:
        return route
    queues = {queue.broker_name: queue for queue in route.queues}
    added = [
        (_group(group, name, member), replace(queue, broker_name=name, perm=PERM_WRITE))
        for group in route.groups
        if (queue := queues[group.name]).perm & PERM_WRITE
        for name, member in _followers(group)
        if name not in queues
    ]
    return replace(
        route,
        groups=(*route.groups, *(group for group, _ in added)),
        queues=tuple(_in_order(route.queues, [queue for _, queue in added])),
    )


def _followers(group: BrokerGroup) -> Iterator[tuple[str, BrokerMember]]:
    """The followers, each with its name. A member with a term elects, and passes sends on."""
    followers = (group.members[broker_id] for broker_id in sorted(group.members) if broker_id != LEADER_ID)
    elect = (member for member in followers if member.registration.term > 0)
    return ((f"{group.name}{MARK}{number}", member) for number, member in enumerate(elect, 1))


def _group(group: BrokerGroup, name: str, member: BrokerMember) -> BrokerGroup:
    return BrokerGroup(group.cluster, name, {LEADER_ID: member}, zone=group.zone)


def _in_order(queues: tuple[QueueData, ...], added: list[QueueData]) -> Iterator[QueueData]:
    for queue in queues:
        yield queue
        yield from (one for one in added if one.broker_name.rpartition(MARK)[0] == queue.broker_name)
