"""Held units: units of consume queues that are in memory only, until the next checkpoint writes them to their files.

To make and map a file costs much more than the unit of one message. In a store in which many queues have mapped files,
further queues therefore hold their units, and only queues that get many between two checkpoints map their files.

    units    |== in the file ==|-- held: [start, max_offset) --|
                                                                  many, or no room here: the file is mapped
                      a checkpoint: written, queue by queue, in slices, then synced

A crash loses held units like those that are not synced: the log is read again from the checkpoint on.
"""

from typing import Protocol

from store.queues.queue_file import QueueFile
from store.queues.queue_mapping import MappedQueues

HELD_MAX = 204
"""Units that one queue holds at most, a page of its file."""

ROOM_AHEAD = 7
"""Units for which a queue is given room in memory at least beyond those that were asked for, while there is plenty."""

UNITS_MAX = 2_000_000
"""Units that all queues of a store hold, 40 MB, but for room that was given; further queues map their files."""

MAPPED_MIN = 256
"""So many queues have mapped files before units of others are held."""


class Holder(Protocol):
    """A queue, as far as its held units are concerned; see `ConsumeQueue`."""

    counted_units: int

    def held_below(self, end_offset: int) -> bytes:
        """Return the units below `end_offset` that are held."""

    def write_held(self) -> None:
        """Write held units to their file."""

    def take_unflushed(self) -> list[QueueFile]:
        """Return files to be synced."""


class HeldUnits:
    """The queues of one store that hold units. Owned by the loop's thread.

    Args:
        mapped: the queues with mapped files.
        mapped_min: see `MAPPED_MIN`.

    Attributes:
        queues: those that hold units or have room in memory for some, in the order in which they got it.
        count: their units.
    """

    __slots__ = ("_mapped", "_mapped_min", "_moved", "count", "queues")

    def __init__(self, mapped: MappedQueues, mapped_min: int) -> None:
        self._mapped = mapped
        self._mapped_min = mapped_min
        self.queues: dict[Holder, None] = {}
        self.count = 0
        self._moved: dict[Holder, None] = {}

    def may_take(self) -> bool:
        """Return whether a queue may be given room for more units, as far as the others leave some."""
        return self.count < UNITS_MAX and len(self._mapped) >= self._mapped_min

    def note_moved(self, queue: Holder) -> None:
        """Note that held units came into a mapped file: an earlier checkpoint has counted them and did not sync it."""
        self._moved[queue] = None

    def take_moved(self) -> list[Holder]:
        """Return the queues that were noted as moved since the last call; one that was removed has no files."""
        moved, self._moved = self._moved, {}
        return list(moved)

    @property
    def is_half_full(self) -> bool:
        """Return whether a checkpoint should not be put off."""
        return self.count >= UNITS_MAX // 2
