"""A consume queue with an extension: its units hold an address in place of the tags code.

    consumequeue/T/0       | offset, size, address |     consumequeue_ext/T/0     | tags code, store time, bit map |

The extension is kept where `enableConsumeQueueExt` asks for it, and read wherever there is one. It is cut and cleaned
with its queue. Source: apache/rocketmq `store/ConsumeQueue.java`, `store/ConsumeQueueExt.java` (5.3.3).
"""

from pathlib import Path

from ledgermq.message.ext_unit import ExtUnit, ext_address, ext_position, is_ext_address
from store.queues.consume_queue import ConsumeQueue, QueueEntry, Unit
from store.queues.ext_files import ExtFiles
from store.queues.queue_file import QueueFile


class ExtQueue(ConsumeQueue):
    """One queue with its extension.

    Args:
        ext: the extension's files.
        writes: new units get an extension.
    """

    __slots__ = ("_ext", "_writes")

    def __init__(
        self, topic: str, queue_id: int, directory: Path | str, file_units: int, *, ext: ExtFiles, writes: bool
    ) -> None:
        super().__init__(topic, queue_id, directory, file_units)
        self._ext = ext
        self._writes = writes

    def load(self) -> None:
        """Open what both directories hold; errors as `ConsumeQueue.load`."""
        super().load()
        self._ext.load()

    def put_entry(self, entry: QueueEntry) -> None:
        """As `ConsumeQueue.put_entry`; the extension comes first."""
        wanted = ExtUnit(entry.tags_code, entry.store_timestamp)
        if self._is_there(entry, wanted):
            return
        code = ext_address(self._ext.put(wanted)) if self._writes else entry.tags_code
        self.put(entry.physical_offset, entry.size, code, entry.queue_offset)

    def tags_code(self, unit: Unit) -> int | None:
        """The tags code of a unit; None when its extension is lost: whoever filters must take it, and look himself."""
        if not is_ext_address(unit[2]):
            return unit[2]
        found = self.extension(unit)
        return found.tags_code if found is not None else None

    def extension(self, unit: Unit) -> ExtUnit | None:
        """What a unit's address points to; None without one."""
        return self._ext.get(ext_position(unit[2])) if is_ext_address(unit[2]) else None

    def take_expired(self) -> list[QueueFile]:
        """As `ConsumeQueue.take_expired`, of both directories."""
        taken = super().take_expired()
        first = self._edge(range(self.min_offset, self.max_offset))
        return taken + (self._ext.take_before(first[0]) if first is not None else [])

    def clear(self) -> None:
        """Forget all units."""
        super().clear()
        self._ext.clear()

    def take_unflushed(self) -> list[QueueFile]:
        """As `ConsumeQueue.take_unflushed`, of both directories."""
        return super().take_unflushed() + self._ext.take_unflushed()

    def close(self) -> None:
        """Unmap; the next use maps again."""
        super().close()
        self._ext.close()

    def _is_there(self, entry: QueueEntry, wanted: ExtUnit) -> bool:
        """The log is dispatched again, and this unit and its extension are what they should be."""
        unit = self.unit(entry.queue_offset)
        return unit is not None and unit[:2] == entry[:2] and self.extension(unit) == wanted

    def _cut(self, end: int) -> None:
        super()._cut(end)
        last = self._edge(range(self.max_offset - 1, self.min_offset - 1, -1))
        self._ext.cut(last[1] if last is not None else 0)

    def _sync_end(self) -> None:
        super()._sync_end()
        self._ext.sync_end()

    def _edge(self, offsets: range) -> tuple[int, int] | None:
        """Start and end of the first extension that is met along these units; None when none has one."""
        for offset in offsets if self._ext.end else ():
            unit = self.unit(offset)
            found = self.extension(unit) if unit is not None else None
            if unit is not None and found is not None:
                position = ext_position(unit[2])
                return position, position + found.size
        return None
