"""Machine: what outlives a process of one node: what is on its disk, and how that disk behaves at present."""

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
        flush_us: time a flush takes, `slow_factor` times that when slow; `is_stalled`: it does not return at all.
        has_failed, is_full: every flush fails; nothing more can be written.
        dies_in: changes of files until the process dies in the middle of something; None: it does not.
        is_cut: its machine dies with it then.
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
        """Whether nothing that was promised from here can be forgotten."""
        raise NotImplementedError

    def latency_us(self) -> int:
        """How long the flush that starts now will take."""
        return int(self.flush_us * self.slow_factor * (0.5 + self.rng.random()))

    def place_to_rot(self, where: Where) -> tuple[int, int, int] | None:
        """Index, position and size of an entry of the running process that a byte may be changed of; None: of none."""

    def rot(self, place: tuple[int, int, int]) -> None:
        """Change a byte of that entry, on the disk and in the page cache."""

    def process_died(self) -> None:
        """The process has ended; the page cache stays."""

    def power_cut(self, *, forgets: bool) -> None:
        """The machine lost power, and with it unflushed bytes. `forgets`: some of them may have been acknowledged."""
