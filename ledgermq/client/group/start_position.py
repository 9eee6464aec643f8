"""Where a group begins in a queue from which it has never committed an offset."""

import contextlib
from datetime import datetime
from typing import Literal

from ledgermq.client.core.checks import unix_ms
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.errors import GroupNotFoundError, InvalidArgumentError
from ledgermq.client.group.queue_offsets import QueueOffsets

Start = Literal["first", "last"] | datetime
"""The oldest message kept, whatever comes from now on, or the first one stored at or after a time."""

WIRE_NAMES = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


def check_start(start: Start) -> None:
    """Refuse anything else.

    Raises:
        InvalidArgumentError: names it.
    """
    if isinstance(start, datetime):
        unix_ms(start, "start")
    elif not isinstance(start, str) or start not in WIRE_NAMES:
        raise InvalidArgumentError(f"start is {start!r}, not 'first', 'last' or a datetime")


def wire_name(start: Start) -> str:
    """RocketMQ's consumeFromWhere."""
    return "CONSUME_FROM_TIMESTAMP" if isinstance(start, datetime) else WIRE_NAMES[start]


async def find_start(offsets: QueueOffsets, group: str, queue: MessageQueue, start: Start) -> int:
    """The group's committed offset; without one the start, which is committed at once.

    Were it not, a member that takes the queue over before the first commit would find another "last", and leave out
    what came in between. A group that its broker does not know yet commits later.

    Raises:
        LedgerMQError: the leader does not tell.
    """
    committed = await offsets.committed(group, queue)
    if committed is not None:
        return committed
    if isinstance(start, datetime):
        offset = await offsets.at_time(queue, unix_ms(start, "start"))
    elif start == "last":
        offset = await offsets.end(queue)
    else:
        offset = await offsets.first(queue)
    with contextlib.suppress(GroupNotFoundError):  # a proxy keeps heartbeats to itself: the first pull makes the group
        await offsets.commit(group, queue, offset)
    return offset
