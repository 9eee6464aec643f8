"""Assigns queues to the members of a group: RocketMQ's average allocation, so that Python and Java members agree.

    7 queues, 3 members:   0 1 2 | 3 4 | 5 6

Every member computes the whole allocation itself, from the same two sorted lists. Java sorts strings by UTF-16 code
unit, hence `java_order`.

Source: apache/rocketmq `client/.../consumer/rebalance/AllocateMessageQueueAveragely.java` (5.x).
"""

from collections.abc import Iterable, Sequence

from ledgermq.remoting.route import MessageQueue


def java_order(text: str) -> bytes:
    """Return the sort key that orders strings as `String.compareTo` does."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return the queues in the order of Java's `MessageQueue`: topic, broker name, queue id."""
    return sorted(queues, key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.queue_id))


def allocate_averagely(member: str, members: Sequence[str], queues: Sequence[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return the queues of `member`, in order; none when it is not among `members`.

    Args:
        member: client id of this member.
        members: client ids of the whole group, in any order, each once.
        queues: all queues of one topic, in any order.
    """
    ordered_members = sorted(members, key=java_order)
    if member not in ordered_members:
        return ()
    ordered = sorted_queues(queues)
    index = ordered_members.index(member)
    share, rest = divmod(len(ordered), len(ordered_members))
    start = index * share + min(index, rest)
    return tuple(ordered[start : start + share + (index < rest)])
