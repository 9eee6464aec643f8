"""Index file: from the hash of a message's key to the physical offsets of the records that carry it.

    | header, 40 | slot 0 .. slot S-1, 4 each | entry 0 .. entry E-1, 20 each |
                        |                          ^       ^
                        '-- newest entry of the slot --'   '-- its `previous` --'

| header bytes | field | |
|---|---|---|
| 0-7   | begin timestamp, i64 | ms; store time of the first entry's record |
| 8-15  | end timestamp, i64   | ms; of the last entry's |
| 16-23 | begin offset, i64    | physical offset of the first entry's record |
| 24-31 | end offset, i64      | of the last entry's |
| 32-35 | slot count, i32      | slots in use |
| 36-39 | entry count, i32     | the next entry's number; starts at 1, entry 0 is never used |

| entry bytes | field | |
|---|---|---|
| 0-3   | key hash, i32 | 0 or more |
| 4-11  | physical offset, i64 | of the record's start |
| 12-15 | seconds, i32  | since the begin timestamp, 0 or more |
| 16-19 | previous, i32 | number of the slot's entry before this one; 0: none |

The text of a key is `topic#key`, its hash is the absolute value of Java's `String.hashCode` (0 where that stays
negative), and its slot is `hash % S`. Big-endian. The name of the file is the local time of its creation,
`yyyyMMddHHmmssSSS`.

Source: apache/rocketmq `store/.../index/IndexFile.java`, `IndexHeader.java`, `IndexService.java` (5.3.3).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ledgermq.message.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ledgermq.message.properties import find_property

HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = HEADER.size
SLOT: Final = struct.Struct(">i")
SLOT_SIZE: Final = SLOT.size
ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = ENTRY.size

FIRST_ENTRY: Final = 1
SLOTS_DEFAULT: Final = 5_000_000
ENTRIES_DEFAULT: Final = 20_000_000
FILE_NAME_DIGITS: Final = 17
SECONDS_MAX: Final = (1 << 31) - 1

TAG_TYPE: Final = "T"
_UNIQUE: Final = b"UNIQ_KEY"
_KEYS: Final = b"KEYS"


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """Sizes of a store's index files (maxHashSlotNum, maxIndexNum).

    Attributes:
        slots: 1 or more.
        entries: number of entries, including the unused entry 0; 2 or more.
    """

    slots: int = SLOTS_DEFAULT
    entries: int = ENTRIES_DEFAULT

    @property
    def entries_at(self) -> int:
        """Return the position of entry 0."""
        return HEADER_SIZE + self.slots * SLOT_SIZE

    @property
    def file_size(self) -> int:
        """Return the length of a file in bytes."""
        return self.entries_at + self.entries * ENTRY_SIZE

    def entry_at(self, number: int) -> int:
        """Return the position of an entry."""
        return self.entries_at + number * ENTRY_SIZE

    def slot_at(self, key_hash: int) -> int:
        """Return the position of the slot for a hash."""
        return HEADER_SIZE + key_hash % self.slots * SLOT_SIZE


class IndexHeader(NamedTuple):
    """The fields of the header, as in the table above."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    entry_count: int = FIRST_ENTRY


def read_header(buffer: bytes | memoryview) -> IndexHeader:
    """Return the header. An entry count below 1, as in a new file, counts as 1."""
    header = IndexHeader(*HEADER.unpack_from(buffer))
    return header if header.entry_count >= FIRST_ENTRY else header._replace(entry_count=FIRST_ENTRY)


def key_text(topic: str, key: str, index_type: str | None = None) -> str:
    """Return the text that is hashed for a key. Type `T` is for tags, which newer releases index."""
    return f"{topic}#{index_type}#{key}" if index_type == TAG_TYPE else f"{topic}#{key}"


def index_keys(sys_flag: int, properties: bytes) -> Iterator[bytes]:
    """Return the keys under which a record is indexed: its unique key, then its KEYS, split at single spaces.

    A rolled-back record has none. A key that occurs twice is returned twice.
    """
    if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return
    unique = find_property(properties, _UNIQUE)
    if unique is not None:
        yield unique
    keys = find_property(properties, _KEYS)
    if keys is not None:
        yield from filter(None, keys.split(b" "))
