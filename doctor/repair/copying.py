"""Copies files with their holes: a store is mostly files allocated ahead, and a copy must not need their whole size."""

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from doctor.read.raw_file import CHUNK_BYTES, FileWindow, data_pieces


def copy_tree(source: Path, target: Path, without: Collection[Path], on_progress: Callable[[int], None]) -> None:
    """Copy a folder without the folders `without` of the source. Lock files are not copied.

    Raises:
        OSError: no room, no permission, or the disk cannot read the bytes.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path in without:
            continue
        if path.is_dir():
            copy_tree(path, target / path.name, without, on_progress)
        elif path.is_file() and path.name != "lock":
            copy_file(path, target / path.name)
            on_progress(path.stat().st_size)


def copy_file(source: Path, target: Path) -> None:
    """Copy one file with its mode and times; durable on return."""
    with FileWindow(source) as window, target.open("wb") as out:
        out.truncate(window.length)
        for start, end in data_pieces(window):
            _copy_piece(window, out.fileno(), start, end)
        out.flush()
        os.fsync(out.fileno())
    shutil.copystat(source, target)


def _copy_piece(window: FileWindow, out: int, start: int, end: int) -> None:
    while start < end:
        data = window.read(start, min(CHUNK_BYTES, end - start))
        if not data:
            return
        os.pwrite(out, data, start)
        start += len(data)
