"""`tail`: the last messages, and with `--follow` those that arrive, whoever writes them."""

import time
from collections.abc import Iterator
from pathlib import Path

from doctor.read.decoded import Found
from doctor.read.directory import StoreLayout, open_layout
from doctor.read.export import last_records
from doctor.read.framing import Blank, Unframed
from doctor.read.raw_file import FileWindow
from doctor.read.walk import end_of, framing_of

_POLL_S = 0.1


def follow(root: Path, log_dir: Path | None, count: int) -> Iterator[Found | None]:
    """Yield the last `count` records, then every new one; yield None if there is none, so that the caller may stop."""
    layout = open_layout(root, log_dir)
    found = last_records(layout, count)
    yield from found
    position = found[-1].end if found else end_of(layout)
    while True:
        new = read_new(open_layout(root, log_dir), position)
        yield from new
        if new:
            position = new[-1].end
        else:
            yield None
            time.sleep(_POLL_S)


def read_new(layout: StoreLayout, offset: int) -> list[Found]:
    """Return the whole records from `offset` on; a half-written one is left to the next call.

    If the file with `offset` was deleted, this continues with the oldest file after it.
    """
    found: list[Found] = []
    for file in layout.log_files:
        if file.start + file.length <= offset:
            continue
        framing = framing_of(layout, file)
        position = max(offset - file.start, 0)
        with FileWindow(file.path) as window:
            window.move(position)
            try:
                while True:
                    frame = framing.frame_at(window, position)
                    found.append(Found(frame, file.path, position, file.start + position))
                    position += frame.size
            except Blank:
                continue
            except Unframed:
                return found
    return found
