"""Dispatch by the thousand: what the queues need of the records of a batch, without a view of each.

Where a record is not of the common kind, or its tag is not plainly there, `store.dispatch` decides.
"""

from collections.abc import Collection, Iterator

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.hashing import tags_code
from ledgermq.message.layout import BLANK_SIZE_MIN
from store.dispatch import SCHEDULE_TOPIC, UnitFields, unit_fields
from store.mapped_file import MappedFile
from store.mapped_file_queue import MappedFileQueue
from store.record_batches import RecordBatch, read_batch

_FIRST_TAGS = b"TAGS\x01"
_TAGS = b"\x02TAGS\x01"

Dispatch = tuple[int, bool, UnitFields]
"""Physical offset of a record, whether its body is whole, and what its queue needs of it."""


def log_dispatches(queue: MappedFileQueue, start: int, end: int, damaged: Collection[int]) -> Iterator[Dispatch]:
    """The records of a classic log in `[start, end)`; see `ReplicatedLog.walk` for the bounds.

    `damaged` are the ones whose bodies the scan of the log found not to be whole.

    Raises:
        CorruptRecordError: something that is neither a record nor a blank.
    """
    while start < end and (file := queue.file_at(start)) is not None:
        base, limit = file.start_offset, min(file.write_position, end - file.start_offset)
        batch = read_batch(file, start - base, limit, check=False)
        for offset, fields in batch_fields(file, batch):
            yield offset, offset not in damaged, fields
        start = base + batch.end
        if batch.is_end and limit - batch.end >= BLANK_SIZE_MIN and not batch.is_blank:
            raise CorruptRecordError(start, f"no record in {file.path}")
        if batch.is_end:
            start = file.end_offset


def batch_fields(file: MappedFile, batch: RecordBatch) -> Iterator[tuple[int, UnitFields]]:
    """`(physical offset, fields)` of each record of the batch, damaged ones included.

    Raises:
        CorruptRecordError: one cannot be taken apart.
    """
    buffer, view, base = file.buffer, file.view, file.start_offset
    codes: dict[bytes, int] = {}
    heads = batch.heads
    columns = (
        batch.starts, batch.tails, batch.ends, batch.common,
        heads["queue_id"], heads["sys_flag"], heads["queue_offset"], heads["stored"],
    )  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for start, tail_at, end, is_common, queue_id, sys_flag, queue_offset, stored in rows:
        if is_common:
            tail = buffer[tail_at:end]
            topic_end = 1 + tail[0]
            topic = tail[1:topic_end]
            found = tail.rfind(_TAGS, topic_end + 1) + 6
            stop = tail.find(2, found)
            if found == 5 and topic != SCHEDULE_TOPIC and not tail.startswith(_FIRST_TAGS, topic_end + 2):
                yield base + start, (end - start, queue_id, sys_flag, queue_offset, stored, topic, 0)
                continue
            if stop > found > 5 and topic != SCHEDULE_TOPIC:
                tag = tail[found:stop]
                code = codes.get(tag)
                if code is None:
                    code = codes[tag] = tags_code(tag)
                yield base + start, (end - start, queue_id, sys_flag, queue_offset, stored, topic, code)
                continue
        yield base + start, unit_fields(base + start, view[start:end])
