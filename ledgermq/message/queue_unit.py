"""One unit of a consume queue, 20 bytes, big-endian.

| bytes | field |
|---|---|
| 0-7   | physical offset of the record, i64 |
| 8-11  | size of the record, i32 |
| 12-19 | code, i64: see `unit_code` |

Source: apache/rocketmq `store/ConsumeQueue.java`, `store/CommitLog.java` (checkMessageAndReturnSize).
"""

import struct
from typing import Final

from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import find_property

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = UNIT.size

SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_S, _M, _H = 1000, 60_000, 3_600_000
DELAY_LEVELS_MS: Final = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S),
    *(minutes * _M for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(1 * _H, 2 * _H),
)
"""Default of messageDelayLevel; level n is item n - 1."""


def unit_code(topic: bytes, properties: bytes, timestamp: int) -> int:
    """Return the hash of a record's tag, or 0 without a tag; for a delayed message its due time (ms).

    `timestamp` is the store time in ms. The hash is signed, and so sign-extended to 64 bits.
    """
    if topic == SCHEDULE_TOPIC:
        level = find_property(properties, b"DELAY")
        # nine digits exceed any level, and int() refuses thousands of digits
        if level is not None and level.isdigit() and (number := int(level[:9])) > 0:
            return timestamp + DELAY_LEVELS_MS[min(number, len(DELAY_LEVELS_MS)) - 1]
    tags = find_property(properties, b"TAGS")
    return tags_code(tags) if tags is not None else 0
