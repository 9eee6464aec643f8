"""The two ids of a message.

    offset id   store host (8 | 20 bytes) + physical offset i64                          32 | 56 hex digits
    unique id   address (4 | 16) + pid u16 + discriminator i32 + ms in month u32 + counter u16   32 | 56

The broker makes the offset id, which tells the position of the record. The client makes the unique id (property
UNIQ_KEY), which stays the same through retries. Both are upper-case hex.

Source: apache/rocketmq `common/message/MessageDecoder.java`, `common/message/MessageClientIDSetter.java`.
"""

import struct
from datetime import UTC, datetime
from typing import Final

from ledgermq.message.errors import InvalidMessageIdError
from ledgermq.message.hosts import Host, decode_host

_OFFSET: Final = struct.Struct(">q")
_TIME_AND_COUNTER: Final = struct.Struct(">IH")
_IDENTITY: Final = struct.Struct(">Hi")


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return the offset id of the record at `physical_offset` on the broker at the encoded `host`."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, int]:
    """Return the store host and the physical offset of an offset id; lower case is accepted.

    Raises:
        InvalidMessageIdError: not 32 or 56 hex digits.
    """
    if len(text) not in (32, 56):
        raise InvalidMessageIdError(text, f"{len(text)} characters instead of 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) * 2 != len(text):  # `fromhex` skips blanks
        raise InvalidMessageIdError(text, "not hex digits")
    return decode_host(raw[:-8]), _OFFSET.unpack(raw[-8:])[0]


class UniqueIdGenerator:
    """Makes unique ids for one process. Not thread-safe.

    Args:
        address: 4 or 16 bytes of the machine's address.
        pid: process id; its low 16 bits are used.
        discriminator: differs between two generators of one process (Java: hash of the class loader); any i32.
    """

    def __init__(self, address: bytes, pid: int, discriminator: int) -> None:
        self._prefix = (address + _IDENTITY.pack(pid & 0xFFFF, discriminator)).hex().upper()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return an id made at `now_ms`. Ids are unique if fewer than 65536 are made in a millisecond."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        tail = _TIME_AND_COUNTER.pack((now_ms - self._month_start_ms) & 0xFFFFFFFF, counter)
        return self._prefix + tail.hex().upper()

    def _enter_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms // 1000, UTC).replace(day=1, hour=0, minute=0, second=0)
        after = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp()) * 1000
        self._month_end_ms = int(after.timestamp()) * 1000
