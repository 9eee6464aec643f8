"""Parses the body of a broker's registration (103): its topics, their version, filter servers.

Three forms: JSON; the wrapper alone from brokers older than 3.0.11; and a zlib stream of sized parts,

    i32 n, version JSON | i32 topic count, each i32 n, "name read write perm filterType attributes"
    | i32 n, JSON list of filter servers | since 5.0: i32 count, each i32 n, mapping JSON

which Java's brokers never mark in the header (`compressed` is false), so the first byte decides.

Source: apache/rocketmq `remoting/.../protocol/body/RegisterBrokerBody.java` (5.3).
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.fields import I32_MIN
from ledgermq.remoting.codec.lenient_json import bad_body, json_body, json_value
from ledgermq.remoting.refusal import Cause, Refusal
from nameserver.core.model import QueueData, TopicTable

_FULL_BODY_SINCE_VERSION = 37  # V3_0_11
_MAPPING_SINCE_VERSION = 413  # V5_0_0
INFLATED_MAX: Final = 16 << 20
"""Bytes; a hundred thousand topics take six million."""

_QUEUES_MAX = 65_536
_DEFLATE = 0x78
_I32 = struct.Struct(">i")


def parse_register_body(
    body: bytes | memoryview,
    version: int,
    broker_name: str,
    *,
    is_increment: bool = False,
    inflated_max: int = INFLATED_MAX,
) -> TopicTable:
    """Parse a registration's body from a broker of that version (ordinal of MQVersion); no body is an empty table.

    Raises:
        Refusal: SYSTEM_ERROR, names what cannot be read.
    """
    table = _parse(body, version, broker_name, inflated_max)
    return replace(table, is_increment=True) if is_increment else table


def _parse(body: bytes | memoryview, version: int, broker_name: str, inflated_max: int) -> TopicTable:
    if not len(body):
        return TopicTable()
    if body[0] == _DEFLATE:
        return _Parts(_inflate(body, inflated_max)).table(version, broker_name)
    document = json_body(body, "registration")
    if version < _FULL_BODY_SINCE_VERSION:
        return _table(document, (), broker_name)
    wrapper = _object(document, "topicConfigSerializeWrapper")
    servers = document.get("filterServerList") or []
    return _table(wrapper, _filter_servers(servers), broker_name)


def parse_data_version(value: object) -> DataVersion:
    """Parse RocketMQ's DataVersion from decoded JSON; absent members are 0.

    Raises:
        Refusal: SYSTEM_ERROR, names the member.
    """
    if not isinstance(value, Mapping):
        raise bad_body("dataVersion", value, "a JSON object")
    numbers = [_integer(value, name, 0, "dataVersion") for name in ("counter", "timestamp", "stateVersion")]
    return DataVersion(*numbers)


def parse_queue_data(value: object) -> QueueData:
    """Parse RocketMQ's QueueData from decoded JSON.

    Raises:
        Refusal: SYSTEM_ERROR, names the member.
    """
    if not isinstance(value, Mapping) or not isinstance(name := value.get("brokerName"), str) or not name:
        raise bad_body("queueDatas", value, "queues with a brokerName")
    return _queues(value, name, f"queues on {name}")


def _table(wrapper: Mapping[str, Any], filter_servers: tuple[str, ...], broker_name: str) -> TopicTable:
    table = _object(wrapper, "topicConfigTable")
    topics = {name: _topic_queues(name, config, broker_name) for name, config in table.items()}
    version = parse_data_version(wrapper.get("dataVersion") or {})
    mappings = _object(wrapper, "topicQueueMappingInfoMap")
    return TopicTable(version=version, topics=topics, filter_servers=filter_servers, mappings=_mappings(mappings))


def _topic_queues(name: str, config: Any, broker_name: str) -> QueueData:
    """Return what `_queues` returns, fast for the usual form, since a broker may have many thousands of topics."""
    if type(config) is dict:
        read, write = config.get("readQueueNums"), config.get("writeQueueNums")
        perm, flag = config.get("perm"), config.get("topicSysFlag")
        if (
            type(read) is type(write) is type(perm) is type(flag) is int
            and I32_MIN <= read <= _QUEUES_MAX
            and I32_MIN <= write <= _QUEUES_MAX
        ):
            return QueueData(broker_name, read, write, perm, flag)
    if not isinstance(config, Mapping):
        raise bad_body(f"topic {name}", config, "a JSON object")
    return _queues(config, broker_name, f"topic {name}")


def _queues(config: Mapping[str, Any], broker_name: str, what: str) -> QueueData:
    return QueueData(
        broker_name,
        read_queues=_integer(config, "readQueueNums", 16, what, I32_MIN, _QUEUES_MAX),
        write_queues=_integer(config, "writeQueueNums", 16, what, I32_MIN, _QUEUES_MAX),
        perm=_integer(config, "perm", 6, what, I32_MIN),
        sys_flag=_integer(config, "topicSysFlag", 0, what, I32_MIN),
    )


def _mappings(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for topic, mapping in value.items():
        if not isinstance(mapping, Mapping):
            raise bad_body(f"queue mapping of topic {topic}", mapping, "a JSON object")
    return value


def _filter_servers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(server, str) for server in value):
        raise bad_body("filterServerList", value, "a list of addresses")
    return tuple(value)


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name) or {}
    if not isinstance(value, Mapping):
        raise bad_body(name, value, "a JSON object")
    return value


def _integer(
    document: Mapping[str, Any], name: str, default: int, what: str, low: int = 0, high: int = (1 << 63) - 1
) -> int:
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad_body(f"{what}: {name}", value, f"a number from {low} to {high}")
    return value


def _inflate(body: bytes | memoryview, most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, most)
    except zlib.error as error:
        raise Refusal(Cause.SYSTEM_ERROR, f"registration: {len(body)} bytes cannot be decompressed: {error}") from error
    if inflater.unconsumed_tail:
        raise Refusal(Cause.SYSTEM_ERROR, f"registration: has more than {most} bytes when decompressed")
    return data


class _Parts:
    """Reads the decompressed stream from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def table(self, version: int, broker_name: str) -> TopicTable:
        data_version = parse_data_version(json_body(self._part("dataVersion"), "dataVersion"))
        topics = dict(self._topic(broker_name) for _ in range(self._count("topics")))
        servers = json_value(self._part("filterServerList"), "filterServerList")
        mappings = {}
        if version >= _MAPPING_SINCE_VERSION and self._at < len(self._data):
            for _ in range(self._count("queue mappings")):
                mapping = json_body(self._part("queue mapping"), "queue mapping")
                mappings[str(mapping.get("topic"))] = mapping
        return TopicTable(
            version=data_version,
            topics=topics,
            filter_servers=_filter_servers(servers),
            mappings=mappings,
        )

    def _topic(self, broker_name: str) -> tuple[str, QueueData]:
        line = bytes(self._part("topic")).decode("utf-8", "replace")
        words = line.split(" ")
        try:
            read, write, perm = map(int, words[1:4])
        except ValueError:
            raise bad_body("topic", line, "name, two queue counts and a permission") from None
        name, config = words[0], {"readQueueNums": read, "writeQueueNums": write, "perm": perm}
        return name, _queues(config, broker_name, f"topic {name}")

    def _count(self, what: str) -> int:
        if self._at + _I32.size > len(self._data):
            raise self._too_short(what)
        (count,) = _I32.unpack_from(self._data, self._at)
        self._at += _I32.size
        if count < 0:
            raise bad_body(f"registration: count of {what}", count, "0 or more")
        return int(count)

    def _part(self, what: str) -> memoryview:
        size = self._count(what)
        if self._at + size > len(self._data):
            raise self._too_short(what)
        start, self._at = self._at, self._at + size
        return memoryview(self._data)[start : self._at]

    def _too_short(self, what: str) -> Refusal:
        where = f"at byte {self._at} of {len(self._data)}"
        return Refusal(Cause.SYSTEM_ERROR, f"registration: {what} {where} cannot be read")
