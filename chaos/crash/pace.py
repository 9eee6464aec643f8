"""Pace: chooses the images to judge if the time does not suffice for all."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random


class Pace:
    """Takes images at a rate at which the processor time lasts until the last one.

    The first image is always taken. The others are drawn, so that each moment of a run and each chooser may be taken.

    Args:
        seconds: processor time for all images; infinite: all are taken.
        groups: number of groups of images to come, of about equal size.
        dice: random generator of the draws.
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
        """Note that the next group of images begins."""
        self._begun += 1

    def takes_next(self) -> bool:
        """Return whether to judge the next image."""
        self._offered += 1
        if self._end == math.inf or not self._judged:
            return True
        images_left = (self._groups - self._begun + 0.5) * self._offered / self._begun
        needed_s = images_left * self._judging_s / self._judged
        return self._dice.random() * needed_s < self._end - time.process_time()

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Measure the processor time of making and judging one image, within the block."""
        began = time.process_time()
        yield
        self._judged += 1
        self._judging_s += time.process_time() - began
