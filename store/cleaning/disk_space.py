"""How full a disk is, counted as RocketMQ counts it: in whole percents, rounded up, of what users may have.

Source: apache/rocketmq `common/.../UtilAll.java` (getDiskPartitionSpaceUsedPercent, 5.3.3).
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """One disk, in bytes. `used` and `usable` leave out what only the system may take."""

    used: int
    usable: int
    total: int

    @property
    def ratio(self) -> float:
        """Used part of the disk, 0 to 1, rounded up to whole percents."""
        whole = self.used + self.usable
        return -(-self.used * 100 // whole) / 100 if whole else 0.0


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """The disks under a store.

    Attributes:
        log, queues: the disks of the log and of the queues; often the same one.
        store_bytes: what the store itself holds; only asked for where stores share a disk.
    """

    log: DiskSpace
    queues: DiskSpace
    store_bytes: int = 0


def disk_space(path: Path) -> DiskSpace:
    """Return the state of the disk that holds `path`, or its nearest parent that exists.

    Raises:
        OSError: it cannot be asked.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    block = status.f_frsize
    return DiskSpace(
        used=(status.f_blocks - status.f_bfree) * block,
        usable=status.f_bavail * block,
        total=status.f_blocks * block,
    )


def bytes_under(paths: Iterable[Path]) -> int:
    """Return the bytes in the blocks of the files below these folders; files that vanish meanwhile do not count."""
    total = 0
    for root in paths:
        for folder, _, names in os.walk(root):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += (Path(folder) / name).stat().st_blocks * 512
    return total
