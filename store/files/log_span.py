"""A log span: what of one file of a log may be read in whatever order, while nothing else happens."""

from collections.abc import Callable
from dataclasses import dataclass

from store.files.file_mapping import FileMapping

Read = Callable[[int, int], memoryview]
"""The bytes at a physical offset, so many; see `ReplicatedLog.read`."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Bytes of a file, served as `ReplicatedLog.read` serves them; what is not `known` in memory is asked for first.

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
