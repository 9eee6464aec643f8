"""The DLedger entry: a header of 48 bytes, then the record; and the index unit that points at it.

    data file   | header 48 | record ... | header 48 | record ... | -1 | left | zeros |
    index file  | unit 32   | unit 32    | ...                        at index * 32

The header is described in `ledgermq.message.entry_header`.

Index unit: magic i32, position i64, size i32, index i64, term i64. All integers are big-endian.

Invariants: an entry never spans two files. Behind the last entry of the log are zeros up to the end of the files,
except for the time between the write of a filler and of the next entry.

Source: openmessaging/dledger 0.3.1.2 `entry/DLedgerEntryCoder.java`, `store/file/DLedgerMmapFileStore.java`.
"""

from struct import Struct

from dledger.errors import EntryFormatError
from ledgermq.message.crc import crc32
from ledgermq.message.entry_header import (
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    EntryHeader,
    header_fault,
    read_header,
)
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import check_record

__all__ = [
    "FILLER",
    "FILLER_MAGIC",
    "FILLER_SIZE",
    "HEADER",
    "HEADER_SIZE",
    "INDEX_UNIT",
    "INDEX_UNIT_SIZE",
    "MAGIC",
    "NEWER_MAGICS",
    "Buffer",
    "EntryHeader",
    "body_fault",
    "check_span",
    "encode_entry",
    "header_fault",
    "read_header",
]

INDEX_UNIT = Struct(">iqiqq")
INDEX_UNIT_SIZE = INDEX_UNIT.size
NEWER_MAGICS = (2, 3)

Buffer = bytes | bytearray | memoryview


def encode_entry(index: int, term: int, position: int, body: Buffer, *, body_crc: int | None = None) -> bytes:
    """Return a whole entry. `body_crc` None: computed; 0: written as 0, as Java does."""
    crc = crc32(body) if body_crc is None else body_crc
    size = HEADER_SIZE + len(body)
    return HEADER.pack(MAGIC, size, index, term, position, 0, 0, crc, len(body)) + bytes(body)


def body_fault(buffer: Buffer, offset: int, header: EntryHeader, *, records: bool) -> str | None:
    """Return why the body of the entry at `offset` is damaged; None if it is whole.

    Args:
        buffer: contains the entry.
        offset: of its header in `buffer`.
        header: that header, which `header_fault` has passed.
        records: bodies are RocketMQ records, so that one without an entry CRC is checked by its own CRC.
    """
    start = offset + HEADER_SIZE
    end = offset + header.size
    if header.body_crc:
        actual = crc32(memoryview(buffer)[start:end])
        return None if actual == header.body_crc else f"body CRC is {actual:#010x}, header says {header.body_crc:#010x}"
    if not records:
        return None
    try:
        size = check_record(buffer, start, end, check_crc=True)
    except CorruptRecordError as error:
        return f"record is damaged: {error}"
    return None if size == header.body_size else f"record has {size} bytes, body has {header.body_size}"


def check_span(data: Buffer, first_index: int, last_index: int, term: int, start_position: int) -> bytearray:
    """Check the chain of headers in `data`; return the index units of its entries, one after the other.

    Every entry must be of `term`, indexes and positions must continue without a gap, and the last entry must end where
    `data` ends. Bodies are not checked: on the wire one CRC covers the whole span.

    Raises:
        EntryFormatError: at the first header that does not continue the chain, or when bytes are left over.
    """
    end = len(data)
    if not 0 <= last_index - first_index < end // HEADER_SIZE:
        raise EntryFormatError(start_position, f"{end} bytes cannot hold entries {first_index} to {last_index}")
    units = bytearray((last_index - first_index + 1) * INDEX_UNIT_SIZE)
    unpack = HEADER.unpack_from
    pack = INDEX_UNIT.pack_into
    offset = at = 0
    for index in range(first_index, last_index + 1):
        if offset + HEADER_SIZE > end:
            raise EntryFormatError(start_position + offset, f"{end - offset} bytes left, expected entry {index}")
        magic, size, found, entry_term, position, channel, chain_crc, _, body_size = unpack(data, offset)
        if (
            found != index
            or position != start_position + offset
            or size != body_size + HEADER_SIZE
            or entry_term != term
            or magic != MAGIC
            or body_size <= 0
            or channel
            or chain_crc
        ):
            detail = f"magic {magic}, size {size}, index {found}, term {entry_term}, position {position}"
            detail += f", channel {channel}, chain CRC {chain_crc:#x}, body size {body_size}"
            raise EntryFormatError(start_position + offset, f"{detail}; expected entry {index} of term {term}")
        pack(units, at, MAGIC, position, size, index, term)
        at += INDEX_UNIT_SIZE
        offset += size
    if offset != end:
        raise EntryFormatError(start_position + offset, f"{end - offset} bytes are left behind the span's last entry")
    return units
