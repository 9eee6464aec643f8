"""Mappings: which files of a log are mapped. A log of a terabyte is read through a hundred mappings, not a thousand.

    touched --> mapped --> not read between two calls of `release_idle`: idle --> unmapped to map another file

A file maps itself at its first use and calls `Mappings.added` of its queue; the file that was idle longest is unmapped.
`release_idle` is called every few seconds and finds the files that were read since the last call in
`FileMapping.known`, so a read needs no counting.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (swapMap, cleanSwapedMap, 5.3.3), which remaps by the
hour and which nothing calls.
"""

from collections.abc import Iterable

from store.files import pages
from store.files.file_mapping import FileMapping

MAPPED_COUNT_MAX = 100
"""Default number of mapped files of a queue, as RocketMQ's commitLogSwapMapReserveFileNum."""


class Mappings:
    """The mapped files of one queue.

    Args:
        count_max: most files mapped at once, at least 2. The newest file may always be mapped.
        reads_ahead: let the system read ahead (dataReadAheadEnable).
    """

    def __init__(self, count_max: int = MAPPED_COUNT_MAX, *, reads_ahead: bool = True) -> None:
        self._count_max = max(count_max, 2)
        self._reads_ahead = reads_ahead
        self._idle_looks: dict[FileMapping, int] = {}

    def __len__(self) -> int:
        return len(self._idle_looks)

    def added(self, file: FileMapping) -> None:
        """Note that a file has mapped itself; unmap the file that was idle longest if there are too many."""
        if not self._reads_ahead:
            pages.scattered(file.buffer)
        while len(self._idle_looks) >= self._count_max:
            self._unmap(max(self._idle_looks, key=self._idle_looks.__getitem__))
        self._idle_looks[file] = 0

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """Set whether the system reads ahead, in present and later mappings."""
        self._reads_ahead = reads_ahead
        advise = pages.ordinary if reads_ahead else pages.scattered
        for file in self._idle_looks:
            if file.is_mapped:
                advise(file.buffer)

    def release_idle(self) -> None:
        """Note which files were read since the last call; later reads check their pages again."""
        for file, idle in list(self._idle_looks.items()):
            if not file.is_mapped:
                del self._idle_looks[file]
            elif any(file.known):
                self._idle_looks[file] = 0
                file.forget_known()
            else:
                self._idle_looks[file] = idle + 1

    def removed(self, files: Iterable[FileMapping]) -> None:
        """Forget files that have left the queue."""
        for file in files:
            file.mappings = None
            self._idle_looks.pop(file, None)

    def _unmap(self, file: FileMapping) -> None:
        del self._idle_looks[file]
        file.unmap()
