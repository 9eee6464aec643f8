"""QUERY_MESSAGE (12): records by key, found through the index.

    index: offsets, newest first ---> log: records of that topic and key ---> answered in the log's order

The index has only hashes and seconds, so the record itself is checked for the key. Leader and followers answer alike,
each from its own index.

Source: apache/rocketmq `broker/.../processor/QueryMessageProcessor.java`, `store/.../DefaultMessageStore.java`
(queryMessage, 5.3.3).
"""

from collections.abc import Sequence
from typing import Final

from broker.context import BrokerContext
from ledgermq.message.index_unit import TAG_TYPE, index_keys
from ledgermq.message.properties import TAGS, find_property
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import boolean, integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""A free field of the request: `true` if the key is a unique one; then the broker's own limit counts."""

_HEADER_ROOM_BYTES: Final = 1 << 16
_NOT_FOUND: Final = "can not find message, maybe time range not correct"


class QueryRequests:
    """Serves queries by key.

    Attributes:
        found: number of queries that found messages.
        missed: number of queries that found none.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._spawn = context.spawn
        self.found = 0
        self.missed = 0

    def query(self, connection: Connection, command: Command) -> None:
        """12: look up a key; code 22 if no message has it. Answered later, when the index was searched."""
        fields = command.ext
        topic, key = text(fields, "topic"), text(fields, "key")
        count_max = integer(fields, "maxNum")
        begin, end = long(fields, "beginTimestamp"), long(fields, "endTimestamp")
        if boolean(fields, UNIQUE_KEY_QUERY):
            count_max = self._config.default_query_max_count
        self._spawn(self._answer(connection, command, topic, key, count_max, begin, end))

    async def _answer(
        self, connection: Connection, command: Command, topic: str, key: str, count_max: int, begin: int, end: int
    ) -> None:
        index = self._store.index
        index_type = command.ext.get("indexType")
        records: list[memoryview] = []
        last_update = (0, 0)
        if index is not None:
            try:
                result = await index.query(topic, key, count_max, begin, end, index_type)
                records = self._read(result.offsets, topic.encode(), key.encode(), begin, index_type)
            except StoreError as error:
                connection.refuse(command, Refusal(Cause.SYSTEM_ERROR, str(error)))
                return
            last_update = (result.index_last_update_timestamp, result.index_last_update_offset)
        if records:
            self.found += 1
            connection.respond(command, ResponseCode.SUCCESS, _header(*last_update), records)
        else:
            self.missed += 1
            connection.respond(command, ResponseCode.QUERY_NOT_FOUND, _header(0, 0), remark=_NOT_FOUND)

    def _read(
        self, offsets: Sequence[int], topic: bytes, key: bytes, begin: int, index_type: str | None
    ) -> list[memoryview]:
        """Return the records that have the key, in the log's order; only the newest if not all fit into a frame."""
        room = self._config.limits.frame_bytes - _HEADER_ROOM_BYTES
        records: list[memoryview] = []
        for offset in offsets:
            record = self._store.reader.look_up(offset)
            if record is None or not _carries(record, topic, key, begin, index_type):
                continue
            room -= len(record)
            if room < 0 and records:
                break
            records.append(record)
        return records[::-1]


def _carries(record: memoryview, topic: bytes, key: bytes, begin: int, index_type: str | None) -> bool:
    """Whether a record is of this topic, has this key, and was not stored before `begin` (ms)."""
    _, _, sys_flag, _, _, timestamp, its_topic, properties = dispatch_fields(record, 0)
    if its_topic != topic or timestamp < begin:
        return False
    if index_type == TAG_TYPE:
        return find_property(properties, TAGS.encode()) == key
    return key in index_keys(sys_flag, properties)


def _header(timestamp: int, physical_offset: int) -> dict[str, str]:
    """Return store time and offset of the last record indexed; zeros where nothing was found, as Java answers."""
    return {"indexLastUpdateTimestamp": str(timestamp), "indexLastUpdatePhyoffset": str(physical_offset)}
