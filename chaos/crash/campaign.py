"""Campaign: runs a workload for a seed, makes images of its moments, and judges each.

seed -> run under the recorder -> moments -> images, all different -> recover, judge
'--> the workload runs again on one of the images: a second generation
"""

import asyncio
import hashlib
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Protocol

from chaos.crash.disk import (
    Chooser,
    Image,
    Moment,
    OnlyNames,
    OnlySynced,
    TornSectors,
    WholeFiles,
    every_subset,
    image_of,
    torn_sector_count,
    write_image,
)
from chaos.crash.errors import Finding
from chaos.crash.ledger import Ledger, ledgers
from chaos.crash.pace import Pace
from chaos.crash.recorder import Recorder, inline_executors
from chaos.sim.errors import Violation

_AGAIN_EVERY = 7
_EXHAUSTIVE_SECTORS = 8

NO_IMAGE = -1
"""In place of an image's number: the recorded run itself."""


class StoreWorkload(Protocol):
    """A kind of store: how it is run, and how an image of it is judged."""

    async def run(self, recorder: Recorder, dice: Random, number: int) -> None:
        """Run below the recorder's root and note what is written; `number` is that of the first message."""

    async def judge(self, root: Path, ledger: Ledger, *, killed: bool, again: bool) -> None:
        """Recover and judge the image at `root`, which may be changed; `killed`: only the process died.

        Raises:
            Finding: what is wrong.
        """


@dataclass(frozen=True, slots=True)
class ImageVerdict:
    """A finding, and the number of the image that shows it; `NO_IMAGE` if the recorded run does."""

    seed: int
    number: int
    label: str
    chooser: str
    finding: Finding | Violation

    def __str__(self) -> str:
        name = type(self.finding).__name__
        return f"seed {self.seed}, image {self.number} ({self.chooser}, after {self.label}): {name}: {self.finding}"


@dataclass(slots=True)
class Tally:
    """Sums over the judged images. `per_chooser` counts them by the chooser that made them."""

    seeds: int = 0
    moments: int = 0
    images: int = 0
    per_chooser: dict[str, int] = field(default_factory=dict)
    verdicts: list[ImageVerdict] = field(default_factory=list)

    def count(self, chooser: str) -> None:
        """Count one more image."""
        self.images += 1
        self.per_chooser[chooser] = self.per_chooser.get(chooser, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Bounds of the work.

    Attributes:
        torn_per_moment: number of random images, with torn sectors or lost files, of each moment.
        exhaustive_images: most images of a moment with few torn sectors, one for each subset of them; 0: none.
        generations: number of runs, each but the first on an image of the one before.
        findings_max: number of findings after which to stop.
        seconds: processor time; if it does not suffice for all images of a seed, the judged ones are drawn.
    """

    torn_per_moment: int = 2
    exhaustive_images: int = 0
    generations: int = 2
    findings_max: int = 1
    seconds: float = math.inf


def memory_directory() -> Path | None:
    """Return the cheapest place for directories: in memory, if the machine has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


class Mode(Protocol):
    """Runs the seeds of a campaign on one kind of store."""

    def __call__(self, seed: int, effort: Effort, tally: Tally, only: int | None = None, /) -> None:
        """Run one seed, and count findings in `tally`; with `only`, judge just the image of that number."""


def run_seed(workload: StoreWorkload, seed: int, effort: Effort, tally: Tally, only: int | None = None) -> None:
    """Run one seed on a single store; see `Mode`."""
    with tempfile.TemporaryDirectory(dir=memory_directory()) as name, inline_executors():
        asyncio.run(_Seed(workload, seed, effort, tally, Path(name), only).run())


class _Seed:
    def __init__(
        self, workload: StoreWorkload, seed: int, effort: Effort, tally: Tally, directory: Path, only: int | None
    ) -> None:
        self._workload = workload
        self._seed = seed
        self._effort = effort
        self._tally = tally
        self._directory = directory
        self._only = only
        self._number = 0
        self._seen: set[bytes] = set()
        self._pace: Pace

    async def run(self) -> None:
        base, end = Ledger(), time.process_time() + self._effort.seconds
        root = self._directory / "generation0"
        root.mkdir()
        for generation in range(self._effort.generations):
            dice = Random(f"workload {self._seed} {generation}")
            recorder = Recorder(root)
            with recorder.recording():
                await self._workload.run(recorder, dice, generation * 1_000_000)
            known = list(ledgers(recorder.notes, base))
            seconds = (end - time.process_time()) / (self._effort.generations - generation)
            self._pace = Pace(seconds, len(recorder.moments), Random(f"pace {self._seed} {generation}"))
            for moment in recorder.moments:
                await self._judge_moment(moment, known[moment.note_count])
                if len(self._tally.verdicts) >= self._effort.findings_max:
                    return
            moment = dice.choice(recorder.moments)
            base = known[moment.note_count]
            root = self._directory / f"generation{generation + 1}"
            write_image(image_of(moment, TornSectors(dice)), root)

    async def _judge_moment(self, moment: Moment, ledger: Ledger) -> None:
        self._tally.moments += 1
        self._pace.begin_group()
        for chooser in self._choosers(moment):
            image = image_of(moment, chooser)
            digest = _digest(image, ledger)
            if digest not in self._seen:
                self._seen.add(digest)
                await self._judge_image(moment, ledger, chooser, image)

    def _choosers(self, moment: Moment) -> Iterator[Chooser]:
        dice = Random(f"images {self._seed} {self._number}")
        yield Chooser()
        yield OnlySynced()
        yield OnlyNames()
        for _ in range(self._effort.torn_per_moment):
            yield TornSectors(dice)
        yield WholeFiles(dice)
        if self._effort.exhaustive_images and torn_sector_count(moment) <= _EXHAUSTIVE_SECTORS:
            yield from every_subset(moment, self._effort.exhaustive_images)

    async def _judge_image(self, moment: Moment, ledger: Ledger, chooser: Chooser, image: Image) -> None:
        number, self._number = self._number, self._number + 1
        if self._only not in (None, number) or not self._pace.takes_next():
            return
        self._tally.count(chooser.name)
        root = self._directory / "image"
        with self._pace.judging():
            write_image(image, root, Random(number))
            try:
                again = number % _AGAIN_EVERY == 0
                await self._workload.judge(root, ledger, killed=chooser.name == "killed", again=again)
            except Finding as finding:
                self._tally.verdicts.append(ImageVerdict(self._seed, number, moment.label, chooser.name, finding))
            finally:
                shutil.rmtree(root)


def _digest(image: Image, ledger: Ledger) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for path, content in image.items():
        found.update(path.encode() + b"\0")
        found.update(b"directory" if content is None else content)
    found.update(b"%d %d" % (ledger.floor, ledger.start))
    return found.digest()


def run_seeds(mode: Mode, seeds: range, effort: Effort, only: int | None = None) -> Tally:
    """Run seeds one after another, until there are enough findings or all seconds are spent; `only` as in `Mode`."""
    tally, ends = Tally(), time.process_time() + effort.seconds
    for seed in seeds:
        mode(seed, replace(effort, seconds=max(0.0, ends - time.process_time())), tally, only)
        tally.seeds += 1
        if len(tally.verdicts) >= effort.findings_max or time.process_time() > ends:
            break
    return tally
