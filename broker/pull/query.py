"""QUERY_MESSAGE (12): records by key, found through the index.

    index: offsets, newest first ---> log: records of that topic and key ---> answered in the log's order

The index has only hashes and seconds, so the record itself is checked for the key. Leader and followers answer alike,
each from its own index.

Source: apache/rocketmq `broker/.../processor/QueryMessageProcessor.java`, `store/.../DefaultMessageStore.java`
(queryMessage, 5.3.3).
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

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
from store.index.builder import QueryResult

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""A free field of the request: `true` if the key is a unique one; then the broker's own limit counts."""

_OF_CONNECTION_MAX: Final = 64
_COUNT_MAX: Final = 1024
_NOT_FOUND: Final = "can not find message, maybe time range not correct"


class _Query(NamedTuple):
    """Times in ms."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int


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
        self._throttled = context.throttled
        self._searches: Counter[Connection] = Counter()
        self.found = 0
        self.missed = 0

    def query(self, connection: Connection, command: Command) -> None:
        """12: look up a key; code 22 if no message has it. Answered later, when the index was searched.

        Raises:
            Refusal: BUSY, 64 searches of the connection, or 1024 in all, are under way.
        """
        fields = command.ext
        topic, key = text(fields, "topic"), text(fields, "key")
        count_max = integer(fields, "maxNum")
        begin, end = long(fields, "beginTimestamp"), long(fields, "endTimestamp")
        if boolean(fields, UNIQUE_KEY_QUERY):
            count_max = self._config.default_query_max_count
        if self._searches[connection] >= _OF_CONNECTION_MAX or self._searches.total() >= _COUNT_MAX:
            remark = f"[OVERLOAD]system busy: {self._searches.total()} searches by key are under way"
            raise Refusal(Cause.BUSY, remark, retry_after_ms=1000)
        self._searches[connection] += 1
        self._spawn(self._search(connection, command, _Query(topic, key, count_max, begin, end)))

    async def _search(self, connection: Connection, command: Command, query: _Query) -> None:
        index = self._store.index
        try:
            result = QueryResult([], 0, 0) if index is None else await index.query(*query, command.ext.get("indexType"))
            self._throttled.guard(partial(self._answer, query, result))(connection, command)
        except StoreError as error:
            connection.refuse(command, Refusal(Cause.SYSTEM_ERROR, str(error)))
        except Refusal as refusal:
            connection.refuse(command, refusal)
        finally:
            self._searches -= Counter((connection,))

    def _answer(self, query: _Query, result: QueryResult, connection: Connection, command: Command) -> None:
        topic, key = query.topic.encode(), query.key.encode()
        try:
            records = self._read(result.offsets, topic, key, query.begin_ms, command.ext.get("indexType"))
        except StoreError as error:
            raise Refusal(Cause.SYSTEM_ERROR, str(error)) from error
        if records:
            self.found += 1
            last_update = result.index_last_update_timestamp, result.index_last_update_offset
            connection.respond(command, ResponseCode.SUCCESS, _header(*last_update), records)
        else:
            self.missed += 1
            connection.respond(command, ResponseCode.QUERY_NOT_FOUND, _header(0, 0), remark=_NOT_FOUND)

    def _read(
        self, offsets: Sequence[int], topic: bytes, key: bytes, begin: int, index_type: str | None
    ) -> list[memoryview]:
        """Return the records that have the key, in the log's order; only the newest if not all fit into a frame."""
        room = self._config.limits.body_max_bytes
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
    """Return whether a record is of this topic, has this key, and was not stored before `begin` (ms)."""
    _, _, sys_flag, _, _, timestamp, its_topic, properties = dispatch_fields(record, 0)
    if its_topic != topic or timestamp < begin:
        return False
    if index_type == TAG_TYPE:
        return find_property(properties, TAGS.encode()) == key
    return key in index_keys(sys_flag, properties)


def _header(timestamp: int, physical_offset: int) -> dict[str, str]:
    """Return store time and offset of the last record indexed; zeros where nothing was found, as Java answers."""
    return {"indexLastUpdateTimestamp": str(timestamp), "indexLastUpdatePhyoffset": str(physical_offset)}
