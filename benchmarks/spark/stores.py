"""A large store of records that differ in size and body, made quickly: its files are copies of the first one."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.store_check import FILE_SIZE, write_store
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import Damage, plan_parts, read_part


class Store:
    """A store that grows: copies of one file of the log, whose records say the places and queue offsets of the copy."""

    def __init__(self, root: Path) -> None:
        self.root, self._log = root, root / "commitlog"
        root.mkdir()
        write_store(root, 2 * FILE_SIZE >> 20, bodies())  # the first file is sealed
        for name in ("consumequeue", "index"):
            shutil.rmtree(root / name)
        (root / "checkpoint").unlink()
        (self._log / f"{FILE_SIZE:020d}").unlink()
        (part,) = plan_parts(open_store(str(root)), 0)
        blocks = [block for block in read_part(part, verify=False) if not isinstance(block, Damage)]
        self._starts = np.concatenate([block.starts + block.base for block in blocks])
        self._offsets = np.concatenate([block.heads["queue_offset"].astype(np.int64) for block in blocks])
        self._data = np.fromfile(self._log / f"{0:020d}", np.uint8)
        self.files = 1

    @property
    def records(self) -> int:
        """Of one file."""
        return len(self._starts)

    def grow(self, files: int) -> None:
        """Add files until there are as many."""
        for number in range(self.files, files):
            self._put(self._starts + 20, self._offsets + number * (int(self._offsets.max()) + 1))
            self._put(self._starts + 28, self._starts + number * FILE_SIZE)
            self._data.tofile(self._log / f"{number * FILE_SIZE:020d}")
        self.files = max(self.files, files)

    def _put(self, places: "np.ndarray[tuple[int], np.dtype[np.int64]]", values: object) -> None:
        raw = np.asarray(values).astype(">i8").view(np.uint8).reshape(-1, 8)
        for byte in range(8):
            self._data[places + byte] = raw[:, byte]


def bodies() -> Iterator[bytes]:
    """About 1 KiB of hex digits each, which compress to half, and no two alike."""
    lengths = random.Random(7)
    while True:
        yield os.urandom(lengths.randrange(480, 545)).hex().encode()
