"""One unit of a batch consume queue, 46 bytes, big-endian: a record that holds one or more messages.

| bytes | field |
|---|---|
| 0-7   | physical offset of the record, i64 |
| 8-11  | size of the record, i32 |
| 12-19 | tags code, i64 |
| 20-27 | store timestamp of the record, ms, i64 |
| 28-35 | queue offset of its first message, i64 |
| 36-37 | number of its messages, i16 |
| 38-41 | compacted offset, i32; -1 |
| 42-45 | reserved, 0 |

Source: apache/rocketmq `store/queue/BatchConsumeQueue.java` (5.3.3).
"""

import struct
from typing import Final

BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
BATCH_UNIT_SIZE: Final = BATCH_UNIT.size
NOT_COMPACTED: Final = -1
BATCH_MESSAGES_MAX: Final = 32767
"""Largest number of messages, which is a signed 16-bit integer."""
