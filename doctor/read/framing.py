"""The frames of records in a log file: bare in a classic log, after 48-byte headers in DLedger's.

    classic   record | record | ... | blank: bytes left, BLANK_MAGIC
    dledger   header record | header record | ... | filler: -1, bytes left

Reads one frame at a time and checks every field: for records that the fast loop of `scan` does not handle, and to find
the next record after a bad place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from dledger.log.entry import (
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    body_fault,
    header_fault,
    read_header,
)
from doctor.read.raw_file import CHUNK_BYTES, FileWindow
from ledgermq.message.crc import CRC_MASK, crc32, decode_crc_property
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK, BLANK_MAGIC, MAGIC_V1, MAGIC_V2, check_record

COMMON: Final = Struct(">iii i 4x qq i 16x q 20x i")
"""A record with IPv4 hosts: size, magic, CRC, queue id, queue offset, physical offset, flags, store time, body size."""

_PREFIX: Final = Struct(">ii")
_PHYSICAL_AT: Final = 28
_PHYSICAL: Final = Struct(">q")
_SIZE_MAX: Final = 64 << 20
_CRC_PROPERTY_SIZE: Final = 20
_MAGICS: Final = tuple(Struct(">i").pack(magic) for magic in (MAGIC_V1, MAGIC_V2))
_ENTRY_MAGIC: Final = Struct(">i").pack(MAGIC)


@dataclass(frozen=True, slots=True)
class Frame:
    """One record with its place.

    Attributes:
        size: bytes to the next frame.
        record: its bytes; the body of a bare DLedger, if bodies are not records.
        fault: why it is damaged, though its length is known; None when it is whole.
        entry_index, term: DLedger's, else -1.
    """

    size: int
    record: bytes
    fault: str | None = None
    entry_index: int = -1
    term: int = -1


class Unframed(Exception):
    """There is no frame at this place."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Blank(Exception):
    """The rest of the file is filler; `detail` says what is wrong with it, if anything."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class RecordFraming:
    """A classic log. `file_start` is the offset of the file's first byte."""

    file_start: int
    is_dledger: bool = False
    has_records: bool = True

    def frame_at(self, window: FileWindow, position: int, next_index: int = -1, term: int = -1) -> Frame:
        """Return the frame at `position`; a classic log does not use index and term.

        Raises:
            Unframed, Blank.
        """
        left = window.length - position
        if left < FILLER_SIZE:
            raise Unframed(f"{left} bytes are left")
        size, magic = _PREFIX.unpack(window.peek(position, FILLER_SIZE))
        if magic == BLANK_MAGIC:
            raise Blank("" if size == left else f"the filler has {size} bytes by its header, {left} are left")
        if magic not in (MAGIC_V1, MAGIC_V2) or not 0 < size <= min(left, _SIZE_MAX):
            raise Unframed(f"size {size}, magic {magic & 0xFFFFFFFF:#010x}")
        return Frame(size, *_checked(window.peek(position, size), self.file_start + position))

    def find(self, window: FileWindow, position: int, next_index: int = -1, term: int = -1) -> int | None:
        """Return where the next whole frame at or after `position` begins."""
        for at in _occurrences(window, _MAGICS, position + 4):
            if _is_whole(self, window, at - 4, next_index, term):
                return at - 4
        return None


@dataclass(frozen=True, slots=True)
class EntryFraming:
    """DLedger's log. `has_records`: bodies are RocketMQ records, as a broker's are."""

    file_start: int
    has_records: bool = True
    is_dledger: bool = True

    def frame_at(self, window: FileWindow, position: int, next_index: int = -1, term: int = -1) -> Frame:
        """Return the frame at `position`, which must be entry `next_index` (-1: any), of `term` or later.

        Raises:
            Unframed, Blank.
        """
        left = window.length - position
        if left < HEADER_SIZE:
            raise Blank if position else Unframed(f"{left} bytes are left")
        head = window.peek(position, HEADER_SIZE)
        magic, size = FILLER.unpack_from(head)
        if magic == FILLER_MAGIC:
            raise Blank("" if size == left else f"the filler has {size} bytes by its header, {left} are left")
        header = read_header(head, 0)
        fault = header_fault(header, self.file_start + position, left)
        if fault is None and next_index not in (-1, header.entry_index):
            fault = f"index is {header.entry_index}, expected {next_index}"
        if fault is None and header.term < term:
            fault = f"term is {header.term}, after an entry of term {term}"
        if fault is not None:
            raise Unframed(fault)
        entry = window.peek(position, header.size)
        body = entry[HEADER_SIZE:]
        fault = body_fault(entry, 0, header, records=False)
        if self.has_records:
            try:
                body, record_fault = _checked(body, self.file_start + position + HEADER_SIZE)
                fault = fault or record_fault
            except Unframed as error:
                fault, body = fault or f"record: {error.detail}", b""
        return Frame(header.size, body, fault, header.entry_index, header.term)

    def find(self, window: FileWindow, position: int, next_index: int = -1, term: int = -1) -> int | None:
        """Return where the next whole frame at or after `position` begins."""
        for at in _occurrences(window, (_ENTRY_MAGIC,), position):
            header = window.peek(at, HEADER_SIZE)
            is_later = len(header) == HEADER_SIZE and HEADER.unpack(header)[2] >= next_index
            if is_later and _is_whole(self, window, at, -1, term):
                return at
        return None


def _checked(record: bytes, physical_offset: int) -> tuple[bytes, str | None]:
    """Return the record, and why it is damaged.

    Raises:
        Unframed: its lengths contradict each other, or its physical offset is another one.
    """
    try:
        size = check_record(record, 0, len(record), check_crc=False)
    except CorruptRecordError as error:
        raise Unframed(error.detail) from None
    if size == BLANK or size != len(record):
        raise Unframed(f"the record's size is {size}, but the entry has room for {len(record)} bytes")
    (found,) = _PHYSICAL.unpack_from(record, _PHYSICAL_AT)
    if found != physical_offset:
        raise Unframed(f"the record has physical offset {found}, but is at {physical_offset}")
    try:
        check_record(record, 0, len(record), check_crc=True)
    except CorruptRecordError as error:
        return record, error.detail
    expected = decode_crc_property(record)
    actual = crc32(memoryview(record)[: size - _CRC_PROPERTY_SIZE]) & CRC_MASK
    if expected not in (None, actual):
        return record, f"record CRC {actual}, its __CRC32# property is {expected}"
    return record, None


def _is_whole(
    framing: "RecordFraming | EntryFraming", window: FileWindow, position: int, next_index: int, term: int
) -> bool:
    if position < 0:
        return False
    try:
        return framing.frame_at(window, position, next_index, term).fault is None
    except (Unframed, Blank):
        return False


def _occurrences(window: FileWindow, patterns: tuple[bytes, ...], position: int) -> Iterator[int]:
    """Yield the positions of some four-byte patterns, in order."""
    while position < window.length:
        chunk = window.read(position, CHUNK_BYTES)
        at = -1
        while (at := min((i for i in (chunk.find(p, at + 1) for p in patterns) if i >= 0), default=-1)) >= 0:
            yield position + at
        if len(chunk) < CHUNK_BYTES:
            return
        position += len(chunk) - 3
