"""Machine: the part of a node that outlives its processes: its disk, and the disk's present faults."""

from random import Random
from typing import Literal

from chaos.sim.clock import SimClock
from chaos.sim.log_image import LogImage, Payload

Where = Literal["committed", "last committed", "behind"]
"""Which entry rots: one that the durable checkpoint calls committed, or the last of these if another file of the log
follows, or a durable one behind them."""


class Machine(LogImage[Payload]):
    """One node's disk.

    Attributes:
        flush_us: microseconds that a flush takes, times `slow_factor`; with `is_stalled` it does not return.
        has_failed: whether every flush fails.
        is_full: whether nothing more can be written.
        dies_in: number of file changes after which the process dies, within that change; None: it does not.
        is_cut: the machine loses power at that moment, too.
        amnesiac: acknowledged entries may be lost (ASYNC_FLUSH and a power cut).
    """

    def __init__(self, clock: SimClock, rng: Random, flush_us: int) -> None:
        super().__init__()
        self.clock = clock
        self.rng = rng
        self.flush_us = flush_us
        self.slow_factor = 1
        self.is_stalled = False
        self.has_failed = False
        self.is_full = False
        self.amnesiac = False
        self.dies_in: int | None = None
        self.is_cut = False

    @property
    def is_sound(self) -> bool:
        """Whether nothing that this node promised can have been forgotten."""
        raise NotImplementedError

    def latency_us(self) -> int:
        """Return the time in us that a flush takes if it starts now."""
        return int(self.flush_us * self.slow_factor * (0.5 + self.rng.random()))

    def place_to_rot(self, where: Where) -> tuple[int, int, int] | None:
        """Return index, position and size of an entry that can be damaged; None if there is none."""

    def rot(self, place: tuple[int, int, int]) -> None:
        """Change a byte of the entry at that place, on the disk and in the page cache."""

    def process_died(self) -> None:
        """End the process; the page cache stays."""

    def power_cut(self, *, forgets: bool) -> None:
        """Lose unflushed bytes; with `forgets` some of them may have been acknowledged."""
