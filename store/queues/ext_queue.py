"""A consume queue with an extension, as RocketMQ writes one: units may hold an address in place of the tags code.

    consumequeue/T/0       | offset, size, address |     consumequeue_ext/T/0     | tags code, store time, bit map |

Extensions are read, cut and cleaned with their queue, and never written: a new unit holds its tags code.

One unit of an extension, big-endian, found by its position in bytes from the start of the first file there ever was;
none lies across two files:

| bytes | field |
|---|---|
| 0-1   | size of the whole unit, i16; -1 where the rest of a file is empty |
| 2-9   | tags code, i64 |
| 10-17 | store timestamp of the record, ms, i64 |
| 18-19 | size of the bit map, i16 |
| 20-   | bit map: which consumers' filters take the message |

An address is this position plus the least 64-bit number. No hash of tags is as low as that.

Source: apache/rocketmq `store/ConsumeQueue.java`, `store/ConsumeQueueExt.java` (5.3.3).
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from store.queues.consume_queue import ConsumeQueue, QueueEntry, Unit
from store.queues.queue_file import QueueFile
from store.queues.queue_files import QueueFiles
from store.queues.queue_mapping import MappedQueues

_HEAD: Final = struct.Struct(">hqqh")
_LEAST: Final = -(1 << 63)
_ADDRESS_MAX: Final = -(1 << 31) - 1


class Extension(NamedTuple):
    """One unit of an extension without its bit map; `size` is that of the whole unit in bytes."""

    size: int
    tags_code: int
    store_timestamp: int


def decode_extension(view: memoryview) -> Extension | None:
    """Return the unit at the start of `view`, or None if no whole one is there."""
    if len(view) < _HEAD.size:
        return None
    size, tags_code, timestamp, map_size = _HEAD.unpack_from(view)
    if map_size < 0 or size != _HEAD.size + map_size or size > len(view):
        return None
    return Extension(size, tags_code, timestamp)


def extension_position(code: int) -> int | None:
    """Return the position to which a queue unit's code points, or None if it is a tags code."""
    return code - _LEAST if code <= _ADDRESS_MAX else None


class ExtQueue(ConsumeQueue):
    """One queue with its extension.

    Args:
        extension_directory: of the extension's files; it may be missing.
        extension_file_bytes: size of each of them.
    """

    __slots__ = ("_extension_end", "_extension_files")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path | str,
        file_units: int,
        extension_directory: Path,
        extension_file_bytes: int,
        mapped: MappedQueues | None = None,
    ) -> None:
        super().__init__(topic, queue_id, directory, file_units, mapped)
        self._extension_files = QueueFiles(extension_directory, extension_file_bytes, 1)
        self._extension_end = 0

    def load(self) -> None:
        """Open what both directories hold; errors as `ConsumeQueue.load`."""
        super().load()
        self._extension_files.load()
        self._extension_end = self._extension_files.end

    def put_entry(self, entry: QueueEntry) -> None:
        """As `ConsumeQueue.put_entry`; a unit that has its extension already keeps it."""
        unit = self.unit(entry.queue_offset)
        found = self.extension(unit) if unit is not None and unit[:2] == entry[:2] else None
        if found is None or found[1:] != (entry.tags_code, entry.store_timestamp):
            super().put_entry(entry)

    def tags_code(self, unit: Unit) -> int | None:
        """Return the tags code of a unit; None when its extension is lost: a filter must then read the message."""
        if extension_position(unit[2]) is None:
            return unit[2]
        found = self.extension(unit)
        return found.tags_code if found is not None else None

    def extension(self, unit: Unit) -> Extension | None:
        """Return what a unit's address points to; None if it has none or nothing is there."""
        position, files = extension_position(unit[2]), self._extension_files
        file = files.find(position) if position is not None and position < self._extension_end else None
        if position is None or file is None:
            return None
        if not files.is_last(file):
            files.keep_mapped(file)
        return decode_extension(file.view[position - file.start_bytes :])

    def take_expired(self) -> list[QueueFile]:
        """As `ConsumeQueue.take_expired`, of both directories."""
        taken = super().take_expired()
        first = self._edge(range(self.min_offset, self.max_offset))
        if first is not None:
            return taken + self._extension_files.take_before(first[0])
        self._clear_extensions()
        return taken

    def clear(self) -> None:
        """Drop all units and extensions."""
        super().clear()
        self._clear_extensions()

    def close(self) -> None:
        """Unmap; the next use maps again."""
        super().close()
        self._extension_files.close()

    def _clear_extensions(self) -> None:
        self._extension_files.clear()
        self._extension_end = 0

    def _cut(self, end: int) -> None:
        super()._cut(end)
        last = self._edge(range(self.max_offset - 1, self.min_offset - 1, -1))
        self._extension_end = last[1] if last is not None else 0
        self._extension_files.cut(self._extension_end)

    def _sync_end(self) -> None:
        super()._sync_end()
        self._extension_files.sync_end()

    def _edge(self, offsets: range) -> tuple[int, int] | None:
        """Return start and end of the first extension found along these units; None when none has one."""
        for offset in offsets if self._extension_end else ():
            unit = self.unit(offset)
            found = self.extension(unit) if unit is not None else None
            position = extension_position(unit[2]) if unit is not None else None
            if found is not None and position is not None:
                return position, position + found.size
        return None
