"""Pace: which images of a run are judged where the time does not suffice for all of them."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random


class Pace:
    """Takes images at a rate by which the seconds of processor time last until the last one.

    The first is taken in any case. The others are drawn, so that each moment of a run and each chooser has its chance.

    Args:
        seconds: for all images; infinite: all are taken.
        groups: so many groups of images will come, of about the same size.
        dice: for the draws.
    """

    def __init__(self, seconds: float, groups: int, dice: Random) -> None:
        self._end = time.process_time() + seconds
        self._groups = groups
        self._dice = dice
        self._begun = 0
        self._offered = 0
        self._judged = 0
        self._judging_s = 0.0

    def begin_group(self) -> None:
        """The images of one more group come."""
        self._begun += 1

    def takes_next(self) -> bool:
        """Whether the next image is judged."""
        self._offered += 1
        if self._end == math.inf or not self._judged:
            return True
        images_left = (self._groups - self._begun + 0.5) * self._offered / self._begun
        needed_s = images_left * self._judging_s / self._judged
        return self._dice.random() * needed_s < self._end - time.process_time()

    @contextmanager
    def judging(self) -> Iterator[None]:
        """An image is made and judged within the block; its time counts."""
        began = time.process_time()
        yield
        self._judged += 1
        self._judging_s += time.process_time() - began
