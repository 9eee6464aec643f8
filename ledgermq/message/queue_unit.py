"""One unit of a consume queue, 20 bytes, big-endian.

| bytes | field |
|---|---|
| 0-7   | physical offset of the record, i64 |
| 8-11  | size of the record, i32 |
| 12-19 | tags code: `hashing.tags_code` of its TAGS, sign-extended, i64 |

Source: apache/rocketmq `store/ConsumeQueue.java`.
"""

import struct
from typing import Final

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = UNIT.size
