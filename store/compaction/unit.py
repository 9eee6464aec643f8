"""One unit of a compacted queue: that of a batch consume queue (`ledgermq.message.batch_unit`), used sparsely.

The physical offset is the one in the compaction log, every record counts as one message, and queue offsets grow with
gaps. A unit with offset -1 and no message ends a full file.

Source: apache/rocketmq `store/.../queue/SparseConsumeQueue.java` (5.3.3).
"""

from typing import Final

from ledgermq.message.batch_unit import BATCH_UNIT, BATCH_UNIT_SIZE, NOT_COMPACTED

UNIT_SIZE: Final = BATCH_UNIT_SIZE
QUEUE_OFFSET_AT: Final = 28
END_UNIT: Final = BATCH_UNIT.pack(-1, 0, 0, 0, 0, 0, NOT_COMPACTED, 0)

Unit = tuple[int, int, int, int, int]
"""Physical offset, size, tags code, store timestamp (ms), queue offset."""


def pack_unit(physical_offset: int, size: int, tags_code: int, store_timestamp: int, queue_offset: int) -> bytes:
    """Return the 46 bytes of a unit."""
    return BATCH_UNIT.pack(physical_offset, size, tags_code, store_timestamp, queue_offset, 1, NOT_COMPACTED, 0)


def unpack_unit(buffer: memoryview, position: int) -> Unit | None:
    """Return the unit at a byte position; None if there is none: at the end of a file, or where nothing is written."""
    physical, size, tags_code, timestamp, queue_offset, count, _, _ = BATCH_UNIT.unpack_from(buffer, position)
    if physical < 0 or size <= 0 or queue_offset < 0 or count <= 0:
        return None
    return physical, size, tags_code, timestamp, queue_offset
