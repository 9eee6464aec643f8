"""The offset from which a group reads a queue in which it has never committed one."""

import contextlib
from datetime import datetime
from typing import Literal

from ledgermq.client.core.checks import unix_ms
from ledgermq.client.errors import GroupNotFoundError, InvalidArgumentError
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.remoting.route import MessageQueue

Start = Literal["first", "last"] | datetime
"""The oldest message kept, messages sent from now on, or the first message stored at or after a time."""

WIRE_NAMES = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


def check_start(start: Start) -> None:
    """Accept a `Start`.

    Raises:
        InvalidArgumentError: another value.
    """
    if isinstance(start, datetime):
        unix_ms(start, "start")
    elif not isinstance(start, str) or start not in WIRE_NAMES:
        raise InvalidArgumentError(f"start is {start!r}, not 'first', 'last' or a datetime")


def wire_name(start: Start) -> str:
    """Return RocketMQ's consumeFromWhere."""
    return "CONSUME_FROM_TIMESTAMP" if isinstance(start, datetime) else WIRE_NAMES[start]


async def find_start(offsets: QueueOffsets, group: str, queue: MessageQueue, start: Start) -> int:
    """Return the group's committed offset; without one the start offset, which is committed at once.

    The commit is needed with "last": a member that takes the queue over before the first commit would otherwise begin
    at a later end, and skip what was sent in between. Brokers that do not know the group yet get the commit later.

    Raises:
        LedgerMQError: the leader did not answer in time.
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
    with contextlib.suppress(GroupNotFoundError):  # behind a proxy only a pull makes the group
        await offsets.commit(group, queue, offset)
    return offset
