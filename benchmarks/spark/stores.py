"""A large store of records that differ in size and body, made quickly: its files are copies of the first one."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.store_check import FILE_SIZE, QUEUES, TOPIC, write_store
from ledgermq.history import Outcome, Send
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import Damage, plan_parts, read_part

_KEY_BACK = len(b"\x02WAIT\x01true\x02") + 24
"""From the end of a record back to the digits of its key."""


class Store:
    """A store that grows: copies of one file of the log, whose records say the places, offsets and keys of the copy."""

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
        self._keys = np.concatenate([block.ends + block.base for block in blocks]) - _KEY_BACK
        self._offsets = np.concatenate([block.heads["queue_offset"].astype(np.int64) for block in blocks])
        self._widths = (self.records - 1 - np.arange(self.records) % QUEUES) // QUEUES + 1  # offsets of each queue
        self._data = np.fromfile(self._log / f"{0:020d}", np.uint8)
        self.files = 1

    @property
    def records(self) -> int:
        """Of one file."""
        return len(self._starts)

    def grow(self, files: int) -> None:
        """Add files until there are as many."""
        for number in range(self.files, files):
            self._put(self._starts + 20, self._offsets + number * self._widths)
            self._put(self._starts + 28, self._starts + number * FILE_SIZE)
            for place, digit in enumerate(b"%04X" % number):
                self._data[self._keys + place] = digit
            self._data.tofile(self._log / f"{number * FILE_SIZE:020d}")
        self.files = max(self.files, files)

    def write_history(self, path: Path, first: int) -> None:
        """Append what the producer of the files from number `first` on was told: each record is acknowledged."""
        with path.open("ab") as opened:
            for file in range(first, self.files):
                offsets = (self._offsets + file * self._widths).tolist()
                for number, offset in enumerate(offsets):
                    key, place = f"0A000001{file:04X}{number:020X}", (number % QUEUES, offset)
                    send = Send("p", file * self.records + number, key, TOPIC.decode(), Outcome.OK, *place)
                    opened.write(send.line())

    def _put(self, places: "np.ndarray[tuple[int], np.dtype[np.int64]]", values: object) -> None:
        raw = np.asarray(values).astype(">i8").view(np.uint8).reshape(-1, 8)
        for byte in range(8):
            self._data[places + byte] = raw[:, byte]


def bodies() -> Iterator[bytes]:
    """About 1 KiB of hex digits each, which compress to half, and no two alike."""
    lengths = random.Random(7)
    while True:
        yield os.urandom(lengths.randrange(480, 545)).hex().encode()
