"""A log span: the part of one file of a log that may be read now, in any order, until something is written."""

from collections.abc import Callable
from dataclasses import dataclass

from store.files.file_mapping import FileMapping

Read = Callable[[int, int], memoryview]
"""Returns `size` bytes from a physical offset on; see `ReplicatedLog.read`."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Confirmed bytes of one file. Call `file.ensure_readable` before you touch a chunk that is not `file.known`.

    Attributes:
        file: holds them.
        base: physical offset of the file's first byte.
        start: position in the file of the first one served.
        end: position behind the last one.
    """

    file: FileMapping
    base: int
    start: int
    end: int
