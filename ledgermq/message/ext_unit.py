"""One unit of a consume queue's extension, 20 bytes and a bit map, big-endian; and its address in the queue.

| bytes | field |
|---|---|
| 0-1   | size of the whole unit, i16; -1 where the rest of a file is empty |
| 2-9   | tags code, i64 |
| 10-17 | store timestamp of the record, ms, i64 |
| 18-19 | size of the bit map, i16 |
| 20-   | bit map: which consumers' filters take the message |

A queue unit holds the address of its extension in place of the tags code: the position in the extension's files, plus
the least 64-bit number. No hash of tags is as low as that.

Source: apache/rocketmq `store/ConsumeQueueExt.java` (5.3.3).
"""

import struct
from dataclasses import dataclass
from typing import Final

_HEAD: Final = struct.Struct(">hqqh")
EXT_UNIT_SIZE_MIN: Final = _HEAD.size
END_OF_FILE: Final = b"\xff\xff"
END_OF_FILE_ROOM: Final = 4
"""Bytes at the end of a file that no unit may use."""

_LEAST: Final = -(1 << 63)
_ADDRESS_MAX: Final = -(1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """The fields; `bit_map` has at most 32747 bytes."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the whole unit."""
        return EXT_UNIT_SIZE_MIN + len(self.bit_map)

    def encode(self) -> bytes:
        """The unit's bytes."""
        return _HEAD.pack(self.size, self.tags_code, self.store_timestamp, len(self.bit_map)) + self.bit_map


def decode_ext_unit(view: memoryview) -> ExtUnit | None:
    """The unit at the start of `view`; None where none is whole."""
    if len(view) < EXT_UNIT_SIZE_MIN:
        return None
    size, tags_code, timestamp, map_size = _HEAD.unpack_from(view)
    if map_size < 0 or size != EXT_UNIT_SIZE_MIN + map_size or size > len(view):
        return None
    return ExtUnit(tags_code, timestamp, bytes(view[EXT_UNIT_SIZE_MIN:size]))


def is_ext_address(tags_code: int) -> bool:
    """Whether what a queue unit holds is no tags code."""
    return tags_code <= _ADDRESS_MAX


def ext_address(position: int) -> int:
    """What a queue unit holds for the extension at `position`."""
    return position + _LEAST


def ext_position(address: int) -> int:
    """Where in the extension's files an address points."""
    return address - _LEAST
