"""Which queues a member of a group reads when the broker shares them out. Pure.

    PULL   the strategy's share
    POP    everybody reads every broker (queue -1), or the own share and those of the next members

Source: apache/rocketmq `broker/.../processor/QueryAssignmentProcessor.java`, `client/.../consumer/rebalance/*.java`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.pop.handles import ANY_QUEUE
from broker.state.pop_tables import POP, RequestMode
from ledgermq.remoting.allocation import allocate_averagely, java_order, sorted_queues
from ledgermq.remoting.route import MessageQueue

Allocate = Callable[[str, Sequence[str], Sequence[MessageQueue]], tuple[MessageQueue, ...]]


def allocate_by_circle(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Every n-th queue; arguments as `allocate_averagely`."""
    ordered = sorted(members, key=java_order)
    if member not in ordered:
        return ()
    return tuple(sorted_queues(queues)[ordered.index(member) :: len(ordered)])


STRATEGIES: Final[Mapping[str, Allocate]] = {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}


def assign(
    allocate: Allocate, mode: RequestMode, member: str, members: Sequence[str], queues: Sequence[MessageQueue]
) -> set[MessageQueue]:
    """The queues that `member` reads; `members` and `queues` in any order, each once."""
    if mode.mode != POP:
        return set(allocate(member, members, queues))
    if mode.share_count <= 0 or mode.share_count >= len(members) - 1:
        return {queue._replace(queue_id=ANY_QUEUE) for queue in queues}
    ordered = sorted(members, key=java_order)
    if member not in ordered:
        return set()
    index = ordered.index(member)
    if len(ordered) > len(queues):
        return {sorted_queues(queues)[index % len(queues)]} if queues else set()
    sharers = [ordered[(index + step) % len(ordered)] for step in range(mode.share_count + 1)]
    return {queue for sharer in sharers for queue in allocate(sharer, members, queues)}
