"""Finds where records start and end in bytes of a log that arrive in pieces; only whole records are dispatched."""

import re
import struct
from typing import Final

from ledgermq.message.buffers import Readable
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK_MAGIC, BLANK_SIZE_MIN, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN

_PREFIX: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">ii20xq")  # size, magic, physical offset
_MAGICS: Final = re.compile(b"|".join(re.escape(_PREFIX.pack(0, one)[4:]) for one in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC)))


def last_record_end(file: Readable, position: int, written: int, file_size: int) -> int:
    """Return the end of the last whole record in a file of a classic log; the blank at the file's end is none.

    Args:
        file: the file's bytes.
        position: a record's start, or its end.
        written: bytes of the file that have arrived.
        file_size: bytes of a file.

    Raises:
        CorruptRecordError: what follows `position` is no record.
    """
    unpack = _PREFIX.unpack_from
    while written - position >= BLANK_SIZE_MIN:
        size, magic = unpack(file, position)
        if magic == BLANK_MAGIC:
            return position
        end = position + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN or end > file_size:
            raise CorruptRecordError(position, f"size {size}, magic {magic & 0xFFFFFFFF:#010x}")
        if end > written:
            return position
        position = end
    return position


def is_blank(file: Readable, position: int, written: int, file_size: int) -> bool:
    """Return whether the file has arrived whole, and ends with a blank that begins at `position`."""
    return (
        written == file_size
        and file_size - position >= BLANK_SIZE_MIN
        and _PREFIX.unpack_from(file, position)[1] == BLANK_MAGIC
    )


def record_start(file: Readable, low: int, position: int, written: int, base: int, file_size: int) -> int | None:
    """Return the start of the record, or of the blank at the file's end, in which the byte at `position` lies.

    A record holds its own physical offset, and a blank reaches to the file's end, so both are found without the records
    before them.

    Args:
        file: the file's bytes, of a log of whole records.
        low: where to begin to look.
        position: at most `written`.
        written: bytes of the file.
        base: physical offset of the file.
        file_size: bytes of a file.

    Returns:
        None: it begins before `low`, or nothing was written at `position`.
    """
    for match in _MAGICS.finditer(bytes(file[low : min(position + _PREFIX.size, written)])):
        start = low + match.start() - 4
        if start < low:
            continue
        size, magic = _PREFIX.unpack_from(file, start)
        if magic == BLANK_MAGIC:
            is_one = start + size == file_size
        else:
            is_one = written - start >= RECORD_SIZE_MIN and _HEAD.unpack_from(file, start)[2] == base + start
        if is_one and start <= position < start + size:
            return start
    return None
