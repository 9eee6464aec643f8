"""The header of a DLedger entry, 48 bytes in front of each record of a Raft log, and the filler at a file's end.

| offset | type | field | |
|---|---|---|---|
| 0 | i32 | magic | 1; -1 starts the filler at a file's end; 2 and 3 are DLedger 0.4's and refused |
| 4 | i32 | size | 48 + body size |
| 8 | i64 | index | from 0, +1 each |
| 16 | i64 | term | never falls from one entry to the next |
| 24 | i64 | position | absolute, in the data file list; the end of the entry before, or the start of a file |
| 32, 36 | i32 | channel, chain CRC | 0 |
| 40 | u32 | body CRC | CRC-32 of the body; Java writes 0, and then only the record's own body CRC protects it |
| 44 | i32 | body size | |

An entry needs `size + 8` bytes left in its file; otherwise the rest of the file is filler: i32 -1, i32 bytes left,
zeros. All integers are big-endian.

Source: openmessaging/dledger 0.3.1.2 `entry/DLedgerEntryCoder.java`, `store/file/DLedgerMmapFileStore.java`.
"""

from struct import Struct
from typing import Final, NamedTuple

from ledgermq.message.buffers import Readable

HEADER: Final = Struct(">iiqqqiiIi")
HEADER_SIZE: Final = HEADER.size
FILLER: Final = Struct(">ii")
FILLER_SIZE: Final = FILLER.size

MAGIC: Final = 1
FILLER_MAGIC: Final = -1


class EntryHeader(NamedTuple):
    """The fields of a header as they are in the file, unchecked."""

    magic: int
    size: int
    entry_index: int
    term: int
    position: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int


def read_header(buffer: Readable, offset: int) -> EntryHeader:
    """Return the header in the 48 bytes at `offset`, which the caller knows to be there."""
    return EntryHeader._make(HEADER.unpack_from(buffer, offset))


def header_fault(header: EntryHeader, position: int, limit: int) -> str | None:
    """Return why `header`, read at absolute `position`, cannot be an entry's; None if it can.

    `limit` is the number of bytes from there to the file's end.
    """
    if header.magic != MAGIC:
        return f"magic is {header.magic}, expected {MAGIC}"
    if header.body_size <= 0 or header.size != header.body_size + HEADER_SIZE:
        return f"size {header.size} and body size {header.body_size} do not fit together"
    if header.size + FILLER_SIZE > limit:
        return f"size {header.size} does not fit into the {limit} bytes left in the file"
    if header.position != position:
        return f"position field is {header.position}, expected {position}"
    if header.channel or header.chain_crc:
        return f"channel is {header.channel}, chain CRC {header.chain_crc:#x}; DLedger writes 0 for both"
    return None
