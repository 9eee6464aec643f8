"""Reads the log's records one by one and decodes them on demand: for export, tail and diff. Slower than `scan`.

After a bad place it continues at the next record that has the physical offset of its place; `on_gap` is called.
"""

from collections.abc import Callable, Iterator

from dledger.log.entry import HEADER_SIZE
from doctor.read.decoded import Found
from doctor.read.directory import DLEDGER, OffsetFile, StoreLayout
from doctor.read.framing import Blank, EntryFraming, RecordFraming, Unframed
from doctor.read.raw_file import FileWindow
from ledgermq.message.record import Record

OnGap = Callable[[OffsetFile, int, int, str], None]
"""Called with the file, the first position, the end and the reason."""


def framing_of(layout: StoreLayout, file: OffsetFile) -> RecordFraming | EntryFraming:
    """Return the framing of a file of this log."""
    if layout.kind == DLEDGER:
        return EntryFraming(file.start, has_records=not layout.is_bare)
    return RecordFraming(file.start)


def walk(layout: StoreLayout, start: int = 0, on_gap: OnGap = lambda *_: None) -> Iterator[Found]:
    """Yield the records from offset `start` (a frame's start, or that of a file) to the end of the last file."""
    for file in layout.log_files:
        if file.start + file.length > start:
            yield from walk_file(layout, file, max(start - file.start, 0), on_gap)


def walk_file(
    layout: StoreLayout, file: OffsetFile, position: int = 0, on_gap: OnGap = lambda *_: None
) -> Iterator[Found]:
    """Yield the records of one file from `position` on."""
    framing = framing_of(layout, file)
    index = term = -1
    with FileWindow(file.path) as window:
        window.move(position)
        while position < window.length:
            try:
                frame = framing.frame_at(window, position, index, term)
            except Blank:
                return
            except Unframed as bad:
                found = framing.find(window, position + 1, index, term)
                if found is None:
                    return
                on_gap(file, position, found, bad.detail)
                position, index = found, -1
                continue
            yield Found(frame, file.path, position, file.start + position)
            position += frame.size
            index, term = frame.entry_index + 1 or -1, frame.term
            if position >= window.start + len(window.data):
                window.move(position)


def record_at(layout: StoreLayout, physical_offset: int) -> Record | None:
    """Return the record that begins at a physical offset; None where none does."""
    offset = physical_offset - (HEADER_SIZE if layout.kind == DLEDGER else 0)
    for file in layout.log_files:
        if file.start <= offset < file.start + file.length:
            found = next(walk_file(layout, file, offset - file.start), None)
            return found.decode() if found is not None and found.offset == offset else None
    return None


def end_of(layout: StoreLayout) -> int:
    """Return the end of the last record, found in the last file that has one."""
    for file in reversed(layout.log_files):
        end = -1
        for found in walk_file(layout, file):
            end = found.end
        if end >= 0:
            return end
    return layout.log_files[0].start if layout.log_files else 0
