"""Finds out which records must be in the queues and the index.

In DLedger only committed ones must. A broker that has not stopped cleanly may have held the last units of queues in
memory, those of records behind its checkpoint.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doctor.check.columns import Columns
from doctor.check.small_check import raft_checkpoint
from doctor.read.directory import StoreLayout
from doctor.read.queues import BATCH_DIR, QUEUE_DIR, list_queues, open_queues
from ledgermq.store_progress import CHECKPOINT_NAME, read_progress
from store.directory.abort_file import ABORT_NAME, RAFT_ABORT_NAME

NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Settled:
    """The last entry known to be committed, and the end of the dispatched physical offsets; None: no bound.

    `written_end`: physical offset behind which the last units of a queue may be missing.
    """

    last_index: int | None = None
    end_offset: int | None = None
    written_end: int = NEVER

    def optional(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Return True for the records that may have no unit and no keys yet."""
        found = np.zeros(len(columns), np.bool_)
        if self.last_index is not None and len(columns.entry_indexes) == len(columns):
            found |= columns.entry_indexes > self.last_index
        if self.end_offset is not None:
            found |= columns.physical_offsets >= self.end_offset
        return found


def find_settled(layout: StoreLayout) -> Settled:
    """Return the bound from DLedger's checkpoint; without one, from the contents of the queues."""
    written_end = _written_end(layout)
    if layout.raft_dir is None or layout.is_bare:
        return Settled(written_end=written_end)
    checkpoint = raft_checkpoint(layout.raft_dir)
    if checkpoint is not None and checkpoint.committed_index >= 0:
        return Settled(last_index=checkpoint.committed_index, written_end=written_end)
    return Settled(end_offset=_dispatched_end(layout) + 1, written_end=written_end)


def _written_end(layout: StoreLayout) -> int:
    """Return the physical offset up to which, by the checkpoint, all units are written.

    `NEVER` after a clean stop, or if the checkpoint does not tell; 0 if there is none yet.
    """
    if not any((layout.root / name).exists() for name in (ABORT_NAME, RAFT_ABORT_NAME)):
        return NEVER
    if not (layout.root / CHECKPOINT_NAME).exists():  # Java's broker makes one when it starts
        return 0
    progress = read_progress(layout.root)
    return NEVER if progress is None else progress.dispatched_offset


def _dispatched_end(layout: StoreLayout) -> int:
    """Return the largest physical offset in any queue."""
    queues = open_queues(layout.root)
    last = -1
    for kind, is_batch in ((QUEUE_DIR, False), (BATCH_DIR, True)):
        for name in list_queues(layout.root, kind):
            units = queues.get(name, batch=is_batch)
            end = units.used_end()
            if end:
                last = max(last, int(units.read(end - 1, 1)["physical"][0]))
    return last
