"""Dispatch: from a record of the log to the unit of its queue.

Source: apache/rocketmq `store/.../CommitLog.java` (checkMessageAndReturnSize, the DispatchRequest, 5.3.3).
"""

from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import find_property

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
_S, _M, _H = 1000, 60_000, 3_600_000
DELAY_LEVELS_MS = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S),
    *(minutes * _M for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(1 * _H, 2 * _H),
)
"""messageDelayLevel's default: level n is item n - 1."""


def unit_tags_code(topic: bytes, properties: bytes, store_timestamp: int) -> int:
    """What a unit holds: the hash of the record's tag (0 without one), or when a parked delayed message is due.

    Args:
        topic: as in the record.
        properties: encoded.
        store_timestamp: ms.
    """
    if topic == SCHEDULE_TOPIC:
        level = find_property(properties, b"DELAY")
        if level is not None and level.isdigit() and int(level) > 0:
            return store_timestamp + DELAY_LEVELS_MS[min(int(level), len(DELAY_LEVELS_MS)) - 1]
    tags = find_property(properties, b"TAGS")
    return tags_code(tags) if tags is not None else 0
