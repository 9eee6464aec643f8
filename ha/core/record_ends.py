"""Finds the last record end in bytes of a log that arrive in pieces: bytes below it may be dispatched and read."""

import struct
from typing import Final

from ledgermq.message.buffers import Readable
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK_MAGIC, BLANK_SIZE_MIN, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN

_PREFIX: Final = struct.Struct(">ii")


def last_record_end(file: Readable, position: int, written: int, file_size: int) -> int:
    """End of the last whole record of a file of a classic log.

    Args:
        file: the file's bytes.
        position: a record's start, or its end.
        written: bytes of the file that have arrived.
        file_size: bytes of a file; this is returned once the blank at the file's end is there.

    Raises:
        CorruptRecordError: what follows `position` is no record.
    """
    unpack = _PREFIX.unpack_from
    while written - position >= BLANK_SIZE_MIN:
        size, magic = unpack(file, position)
        if magic == BLANK_MAGIC:
            return file_size if written == file_size else position
        end = position + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN or end > file_size:
            raise CorruptRecordError(position, f"size {size}, magic {magic & 0xFFFFFFFF:#010x}")
        if end > written:
            return position
        position = end
    return position
