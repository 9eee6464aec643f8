"""The file `config/timercheck`: how far the timers are. 4096 bytes, of which 56 are used.

| field | type | at |
|---|---|---|
| read time, ms: slots before it have been delivered | i64 | 0 |
| timer log flushed up to here | i64 | 8 |
| next queue offset of the timer topic to take into the wheel | i64 | 16 |
| the master's | i64 | 24 |
| version: state version, time in ms, counter | 3 * i64 | 32 |

Source: apache/rocketmq `store/.../timer/TimerCheckpoint.java` (5.3.3).
"""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import DiskFailedError, StoreFormatError
from store.files.folders import make_folder

_FIELDS = struct.Struct(">7q")
_FILE_SIZE: Final = 4096
_SIZE_MIN: Final = 32
"""Its oldest form had no version."""


class TimerCheck(NamedTuple):
    """The fields; zeros where no file is."""

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return the 56 bytes that request 60 answers with, too."""
        return _FIELDS.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> "TimerCheck":
        """Parse what `encode` returned. Raises `ValueError`: it is too short, or a field is negative."""
        if len(data) < _SIZE_MIN:
            raise ValueError(f"is {len(data)} bytes long, must be at least {_SIZE_MIN}")
        check = cls(*_FIELDS.unpack(bytes(data[: _FIELDS.size]).ljust(_FIELDS.size, b"\0")))
        if min(check) < 0:
            raise ValueError(f"has a negative field: {check}")
        return check


def read_check(path: Path) -> TimerCheck:
    """Read the fields of the file; all are zero if it is missing, or empty after a power cut in the first write.

    Raises:
        StoreFormatError: it is shorter than its oldest form, or a field is negative.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return TimerCheck()
    if not data:
        return TimerCheck()
    try:
        return TimerCheck.decode(data)
    except ValueError as error:
        raise StoreFormatError(path, str(error)) from error


def write_check(path: Path, check: TimerCheck) -> None:
    """Write the fields in place and sync them; for a thread. One sector, so that they change together.

    Raises:
        DiskFullError, DiskFailedError: the disk refused.
    """
    make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < _FILE_SIZE:
                os.ftruncate(descriptor, _FILE_SIZE)
            os.pwrite(descriptor, check.encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DiskFailedError(path, f"write failed: {error}") from error
