"""`export`: messages as JSON lines, selected by topic, queue, place, time or key."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from doctor.check.columns import QueueName
from doctor.read.decoded import Found
from doctor.read.directory import StoreLayout
from doctor.read.queues import open_queues
from doctor.read.walk import OnGap, walk, walk_file
from ledgermq.message.record import Record
from node.errors import UsageError

_TIME_MIN = 100_000_000_000
"""Numbers from here on are ms since 1970 (1973 and later); smaller ones are offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The selection; None means any. `begin` and `end` are half-open bounds, see `parse_bound`."""

    topic: str | None = None
    queue_id: int | None = None
    begin: int | None = None
    end: int | None = None
    key: str | None = None

    def fits(self, found: Found, record: Record | None) -> bool:
        """Return whether a record is selected."""
        if record is None:
            return self.topic is None and self.queue_id is None and self.key is None
        if self.topic is not None and record.topic != self.topic:
            return False
        if self.queue_id is not None and record.queue_id != self.queue_id:
            return False
        if self.key is not None and self.key not in (*record.keys, record.unique_id, record.offset_message_id):
            return False
        is_after = self.begin is None or self._measure(self.begin, found, record) >= self.begin
        return is_after and (self.end is None or self._measure(self.end, found, record) < self.end)

    def _measure(self, bound: int, found: Found, record: Record) -> int:
        if bound >= _TIME_MIN:
            return record.store_timestamp
        return record.queue_offset if self.queue_id is not None else found.physical_offset


def parse_bound(text: str) -> int:
    """Parse a bound: a time (2026-11-21T09:12, or ms since 1970), or an offset.

    Offsets are those of the queue with --queue, else physical.

    Raises:
        UsageError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise UsageError(f"{text!r} is neither an offset nor a time such as 2026-11-21T09:12") from None


def choose(layout: StoreLayout, choice: Choice, on_gap: OnGap) -> Iterator[tuple[Found, Record | None]]:
    """Yield the selected records in the order of the log, starting where the named queue's unit points."""
    start = choice.begin if choice.begin is not None and choice.queue_id is None and choice.begin < _TIME_MIN else None
    if choice.topic is not None and choice.queue_id is not None and not layout.is_bare:
        start = _queue_start(layout, choice)
    for found in walk(layout, _file_start(layout, start or 0), on_gap):
        record = found.decode()
        if choice.fits(found, record):
            yield found, record


def _file_start(layout: StoreLayout, offset: int) -> int:
    """Return the start of the file that contains an offset."""
    return max((file.start for file in layout.log_files if file.start <= offset), default=0)


def _queue_start(layout: StoreLayout, choice: Choice) -> int | None:
    """Return the physical offset of the first selected unit of the named queue: the log before it is not read."""
    units = open_queues(layout.root).get(QueueName((choice.topic or "").encode(), choice.queue_id or 0))
    first = choice.begin if choice.begin is not None and choice.begin < _TIME_MIN else units.first
    for _, piece in units.pieces(max(first, units.first), units.used_end()):
        good = np.flatnonzero((piece["size"] > 0) & (piece["physical"] > 0))
        if len(good):
            return int(piece["physical"][good[0]])
    return None


def last_records(layout: StoreLayout, count: int) -> list[Found]:
    """Return the last `count` records of the log, oldest first."""
    records: list[Found] = []
    for file in reversed(layout.log_files):
        if len(records) >= count:
            break
        records = list(walk_file(layout, file))[-count:] + records
    return records[-count:] if count else []
