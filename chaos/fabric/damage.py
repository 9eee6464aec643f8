"""Damages the files of a log, as a failing disk does."""

import os
from pathlib import Path

from node.errors import CommandError

_BYTES = 16


def flip_bytes(directory: Path) -> str:
    """Invert 16 bytes in the middle of the oldest full file of a log; return the proof.

    Raises:
        CommandError: the folder has fewer than two files, or the bytes did not change.
    """
    files = sorted(path for path in directory.glob("[0-9]*") if path.name.isdecimal())
    if len(files) < 2:
        raise CommandError(f"{directory} has no full file yet: send more before, or make files smaller")
    place = files[0].stat().st_size // 2
    with files[0].open("r+b") as file:
        before = os.pread(file.fileno(), _BYTES, place)
        os.pwrite(file.fileno(), bytes(byte ^ 0xFF for byte in before), place)
        os.fsync(file.fileno())
        after = os.pread(file.fileno(), _BYTES, place)
    if len(before) < _BYTES or before == after:
        raise CommandError(f"{files[0]} has the same bytes at {place}")
    return f"{_BYTES} bytes of {files[0].name} are inverted from byte {place} on"
