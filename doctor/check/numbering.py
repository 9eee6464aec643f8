"""Finds queue offsets that are wrong by those around them, and topics that cannot name a folder. Neither has a CRC.

    queue q   ... 118 119 9223 121 122 ...      the third must be 120: its neighbours allow only one number

Where the neighbours allow several numbers, nothing is claimed here; the queue's units decide.
"""

from typing import Final

import numpy as np

from doctor.check.columns import Columns, Ints

OFFSET_MAX: Final = 1 << 40
"""No queue reaches this: it takes a message every microsecond for twelve days."""

_TOPIC_SIZE_MAX: Final = 255


def is_folder_name(topic: bytes) -> bool:
    """Return whether a queue of this topic can have a directory."""
    return 0 < len(topic) <= _TOPIC_SIZE_MAX and b"/" not in topic and b"\0" not in topic and topic not in (b".", b"..")


def misnumbered(columns: Columns) -> dict[int, int]:
    """Return the rows whose queue offset is wrong, with the right one; -1 where that is not known."""
    rows = np.flatnonzero(columns.in_queue)
    if columns.batches or not len(rows):
        rows = rows[np.isin(rows, list(columns.batches), invert=True)]
    order = rows[np.argsort(columns.queues[rows], kind="stable")]
    same = columns.queues[order][1:] == columns.queues[order][:-1]
    steps = np.diff(columns.queue_offsets[order])
    suspects = np.flatnonzero(same & (steps != 1))
    absurd = np.flatnonzero((columns.queue_offsets[order] < 0) | (columns.queue_offsets[order] > OFFSET_MAX))
    found: dict[int, int] = {}
    for at in sorted({*suspects.tolist(), *(suspects + 1).tolist(), *absurd.tolist()}):
        right = _judge(columns, order, at)
        if right is not None:
            found[int(order[at])] = right
    return found


def _judge(columns: Columns, order: Ints, at: int) -> int | None:
    """Return the queue offset that `order[at]` must have; None if its own may be right."""
    queue = columns.queues[order[at]]
    own = int(columns.queue_offsets[order[at]])
    before, after = (
        int(columns.queue_offsets[order[place]])
        if 0 <= place < len(order) and columns.queues[order[place]] == queue
        else None
        for place in (at - 1, at + 1)
    )
    if before is not None and after == before + 2 and own != before + 1:
        return before + 1
    if 0 <= own <= OFFSET_MAX:
        return None
    for neighbour, right in ((before, 1), (after, -1)):
        if neighbour is not None and 0 <= neighbour <= OFFSET_MAX:
            return max(neighbour + right, 0)
    return -1
