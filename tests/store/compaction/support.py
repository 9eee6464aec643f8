"""What the tests of compaction share: records, a queue of them, a model of what must be left."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

from ledgermq.message.draft import RecordDraft
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import decode_record, record_size
from store.compaction.compaction_log import CompactionLog, Copied
from store.compaction.config import CompactionConfig
from store.compaction.segment_replacement import QueueFolders
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import ReplicatedLog
from store.time_slice import TimeSlice
from tests.store.support import HOST, fill

SMALL = CompactionConfig(log_file_size_bytes=1, unit_file_size_bytes=46 * 8, interval_ms=3_600_000, thread_count=1)
"""Log files of 1840 bytes, seven records each at most."""

Message = tuple[str | None, bytes]
"""Key and body."""


def make_record(queue_offset: int, key: str | None, body: bytes, tags: str | None = None) -> memoryview:
    """A record as it lies in a commit log."""
    draft = RecordDraft()
    fill(draft, "T", 0, body, tags=tags, queue_offset=queue_offset)
    properties = ({} if tags is None else {"TAGS": tags}) | ({} if key is None else {"KEYS": key})
    draft.properties = encode_properties(properties)
    draft.size = record_size(len(body), len(draft.topic), len(draft.properties), 0, v2=False)
    draft.physical_offset, draft.store_timestamp = 10_000 + queue_offset * 1000, 1_700_000_000_000 + queue_offset
    return memoryview(b"".join(draft.pieces(HOST)))


def place_in(root: Path) -> QueueFolders:
    return QueueFolders(root / "compactionLog/T/0", root / "compactionCq/T/0")


def open_log(root: Path, config: CompactionConfig = SMALL, *, clean: bool = True) -> CompactionLog:
    opened = CompactionLog("T", 0, place_in(root), config)
    opened.load(clean=clean)
    return opened


def contents(opened: CompactionLog) -> list[tuple[int, str, bytes]]:
    """Queue offset, key and body of every record, in order, read from the segments."""
    found = []
    for segment in opened._segments:
        for unit in segment.units():
            record = decode_record(segment.record(unit))
            assert (record.queue_offset, record.physical_offset, record.size) == (unit[4], unit[0], unit[1])
            found.append((record.queue_offset, " ".join(record.keys), record.body))
    return found


class Source:
    """A queue and the log below it, in one: what a compaction log copies from."""

    def __init__(self) -> None:
        self.min_offset = 0
        self.records: list[memoryview] = []
        self.messages: list[Message] = []

    @property
    def max_offset(self) -> int:
        return len(self.records)

    def send(self, key: str | None, body: bytes = b"", tags: str | None = None) -> None:
        self.records.append(make_record(len(self.records), key, body, tags))
        self.messages.append((key, body))

    def iterate(self, start: int, end: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        for offset in range(start, end):
            code = next((tags_code(tags) for tags in (find_tags(self.records[offset]),) if tags is not None), 0)
            yield offset, (offset, len(self.records[offset]), code)

    def read(self, physical_offset: int, _size: int) -> memoryview:
        return self.records[physical_offset]

    def copy_to(self, opened: CompactionLog, until: int | None = None) -> None:
        """Copy all of it; full segments become durable at once."""
        everything = self.records
        self.records = everything[:until]
        while self._copy(opened) is not Copied.ALL:
            if opened.undurable is not None:
                opened.undurable.sync()
                opened.undurable.close()
                opened.undurable = None
        self.records = everything

    def _copy(self, opened: CompactionLog) -> Copied:
        return opened.copy(cast("ConsumeQueue", self), cast("ReplicatedLog", self), 1 << 40, TimeSlice(float("inf")))

    def read_all(self, opened: CompactionLog) -> list[tuple[int, str, bytes]]:
        """Return what a consumer gets that pulls from offset 0 on."""
        found: list[tuple[int, str, bytes]] = []
        offset = 0
        while True:
            result = opened.read(cast("ConsumeQueue", self), offset, 3, 1000, None)
            if result is None:
                return found
            assert result.next_offset > offset
            offset = result.next_offset
            for record in map(decode_record, result.records):
                found.append((record.queue_offset, " ".join(record.keys), record.body))


def find_tags(record: memoryview) -> bytes | None:
    tags = decode_record(record).tags
    return None if tags is None else tags.encode()


def compact_all(opened: CompactionLog, position: int = -1) -> int:
    """Compact what is due; return the new position."""
    segments = opened.due(position)
    if not segments:
        return position
    made = opened.compact_into(segments, position, lambda: False)
    opened.take_over(made, len(segments))
    return made.until


def last_of_each_key(messages: list[Message], until: int) -> dict[str, int]:
    """The model: of each key, the offset of the last message among the first `until`, unless that has no body."""
    last: dict[str, int] = {}
    for offset, (key, _) in enumerate(messages[:until]):
        if key:
            last[key] = offset
    return {key: offset for key, offset in last.items() if messages[offset][1]}
