"""Key batch: the keys of a run of records, on their way into the index.

Filled on the loop's thread, in slices; given
away whole to the index's thread.

Source: apache/rocketmq `store/.../CommitLog.java` (the DispatchRequest), `index/IndexService.java` (buildIndex, 5.3.3).
"""

import struct

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK, TRANSACTION_MASK
from ledgermq.message.index_unit import index_keys
from ledgermq.message.properties import find_property
from ledgermq.message.record import MAGIC_V1, dispatch_fields
from store.index.hashing import prefix_hash

# the common record (V1, both hosts IPv4): magic, sysFlag, store timestamp, body length
_PEEK = struct.Struct(">4xi28xi16xq20xi")
_RARE = HOST_MASK | TRANSACTION_MASK
_UNIQUE = b"\x02UNIQ_KEY\x01"
_UNIQUE_SIZE = len(_UNIQUE)
_KEYS = b"\x02KEYS\x01"
_KEYS_SIZE = len(_KEYS)
_PREFIXES_MAX = 100_000

_prefixes: dict[bytes, int] = {}


class KeyBatch:
    """Keys of the records of `[.., end_offset)` of the log, in the log's order.

    Attributes:
        end_offset: where the next batch starts: a record's end.
        items: `prefix_hash` of the topic, key (not empty), physical offset of the record, its store time (ms).
    """

    __slots__ = ("end_offset", "items")

    def __init__(self, start_offset: int) -> None:
        self.end_offset = start_offset
        self.items: list[tuple[int, bytes, int, int]] = []

    def add(self, physical_offset: int, record: memoryview) -> None:
        """Take the keys of one record.

        Raises:
            CorruptRecordError: it cannot be taken apart; the position is `physical_offset`.
        """
        try:
            magic, sys_flag, timestamp, body_length = _PEEK.unpack_from(record)
            if magic != MAGIC_V1 or sys_flag & _RARE:
                self._add_rare(physical_offset, record)
            else:
                tail = bytes(record[_PEEK.size + body_length :])
                topic_end = 1 + tail[0]
                self._add_plain(physical_offset, timestamp, tail[1:topic_end], b"\x02" + tail[topic_end + 2 :])
        except (struct.error, IndexError) as error:
            raise CorruptRecordError(physical_offset, f"cannot be taken apart: {error}") from error
        self.end_offset = physical_offset + len(record)

    def _add_plain(self, physical_offset: int, timestamp: int, topic: bytes, properties: bytes) -> None:
        """What `index_keys` says, for whole properties behind a separator and no transaction; it is the hot path."""
        prefix = _prefixes.get(topic) or _prefix_of(topic)
        if (found := properties.rfind(_UNIQUE)) >= 0:
            start = found + _UNIQUE_SIZE
            if (end := properties.find(2, start)) <= start:
                self._add_all(0, physical_offset, timestamp, topic, properties)
                return
            self.items.append((prefix, properties[start:end], physical_offset, timestamp))
        if (found := properties.rfind(_KEYS)) >= 0:
            start = found + _KEYS_SIZE
            end = properties.find(2, start)
            value = properties[start:end] if end >= 0 else properties[start:]
            if value and b" " not in value:
                self.items.append((prefix, value, physical_offset, timestamp))
            else:
                keys = (find_property(properties, b"KEYS") or b"").split(b" ")
                self.items += [(prefix, key, physical_offset, timestamp) for key in keys if key]

    def _add_rare(self, physical_offset: int, record: memoryview) -> None:
        _, _, sys_flag, _, _, timestamp, topic, properties = dispatch_fields(record, 0)
        self._add_all(sys_flag, physical_offset, timestamp, topic, properties)

    def _add_all(self, sys_flag: int, physical_offset: int, timestamp: int, topic: bytes, properties: bytes) -> None:
        prefix = _prefixes.get(topic) or _prefix_of(topic)
        self.items += [(prefix, key, physical_offset, timestamp) for key in index_keys(sys_flag, properties)]


def _prefix_of(topic: bytes) -> int:
    if len(_prefixes) >= _PREFIXES_MAX:
        _prefixes.clear()
    _prefixes[topic] = prefix_hash(topic)
    return _prefixes[topic]
