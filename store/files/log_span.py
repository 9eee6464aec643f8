"""A log span: the part of one file of a log that may be read now, in any order, until something is written."""

from collections.abc import Callable
from dataclasses import dataclass

from store.files.file_mapping import FileMapping

Read = Callable[[int, int], memoryview]
"""The bytes at a physical offset, so many; see `ReplicatedLog.read`."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Confirmed bytes of one file. Before a chunk that is not `known` to be in memory is touched, ask the file for it.

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
