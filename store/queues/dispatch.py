"""Dispatch: from a record of the log to the unit of its queue.

Source: apache/rocketmq `store/.../CommitLog.java` (checkMessageAndReturnSize, the DispatchRequest, 5.3.3).
"""

import struct

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.hashing import tags_code
from ledgermq.message.queue_unit import SCHEDULE_TOPIC, unit_code
from ledgermq.message.record import MAGIC_V1, dispatch_fields

UnitFields = tuple[int, int, int, int, int, bytes, int]
"""Size, queue id, sysFlag, queue offset, store timestamp (ms), topic, tags code."""

# the common record (V1, both hosts IPv4): size, magic, queue id, queue offset, sysFlag, store timestamp, body length
_PEEK = struct.Struct(">ii4xi4xq8xi16xq20xi")
_FIRST_TAGS = b"TAGS\x01"
_TAGS = b"\x02TAGS\x01"


def unit_fields(physical_offset: int, record: memoryview) -> UnitFields:
    """Return the fields of a record that its queue needs.

    Raises:
        CorruptRecordError: the record cannot be parsed; the error's position is `physical_offset`.
    """
    try:
        size, magic, queue_id, queue_offset, sys_flag, timestamp, body_length = _PEEK.unpack_from(record)
        if magic != MAGIC_V1 or sys_flag & HOST_MASK:
            return _rare_unit_fields(record)
        tail = bytes(record[_PEEK.size + body_length :])
        topic_end = 1 + tail[0]
        topic = tail[1:topic_end]
        found = tail.rfind(_TAGS, topic_end + 1)
        start = found + len(_TAGS)
        if topic == SCHEDULE_TOPIC or tail.startswith(_FIRST_TAGS, topic_end + 2):
            code = unit_code(topic, tail[topic_end + 2 :], timestamp)
        elif found < 0:
            code = 0
        elif (end := tail.find(2, start)) > start:
            code = tags_code(tail[start:end])
        else:  # unterminated or empty
            code = unit_code(topic, tail[topic_end + 2 :], timestamp)
    except (struct.error, IndexError) as error:
        raise CorruptRecordError(physical_offset, f"its fields cannot be read: {error}") from error
    return size, queue_id, sys_flag, queue_offset, timestamp, topic, code


def _rare_unit_fields(record: memoryview) -> UnitFields:
    size, queue_id, sys_flag, queue_offset, _, timestamp, topic, properties = dispatch_fields(record, 0)
    return size, queue_id, sys_flag, queue_offset, timestamp, topic, unit_code(topic, properties, timestamp)
