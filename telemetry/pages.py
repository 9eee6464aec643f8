"""A page of metrics, made in pieces: rows are collected on the event loop a few at a time, and written in a thread.

    collectors --rows, some a turn--> Part, ... --in a thread--> piece of text --> scrapers, at their own speed
                   (on the loop)                   (at most `LINES_A_PIECE`)         (all get the same pieces)

The time that collecting takes in one turn of the loop is bounded, however many series there are.
"""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, NamedTuple

from telemetry.families import Buckets, Collector, Family, FamilyPart, Row, TextWriter

STEPS_A_TURN: Final = 300
"""Largest number of steps of collectors, with a row or not, between two turns of the loop."""

SLICE_S: Final = 0.0005
"""Seconds after which a turn of collecting ends."""

LINES_A_PIECE: Final = 500
"""Lines of a piece; the rows of one step may exceed it."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_FAST: Final = 1


class Section(NamedTuple):
    """Families that are written in the same way, with at most `rows_max` rows each; those without rows are left out."""

    collectors: Iterable[Collector]
    writer: TextWriter
    rows_max: int


async def pieces(section: Section) -> AsyncIterator[bytes]:
    """Yield the text of a section; other callbacks of the loop run in between."""
    loop = asyncio.get_running_loop()
    batch = _Batch()
    steps, deadline = 0, time.monotonic() + SLICE_S
    for found in _steps(section):
        steps += 1
        if found is not None:
            batch.add(*found)
        if batch.lines >= LINES_A_PIECE:
            yield await loop.run_in_executor(None, section.writer.write, batch.take())
        elif steps < STEPS_A_TURN and time.monotonic() < deadline:
            continue
        else:
            await asyncio.sleep(0)
        steps, deadline = 0, time.monotonic() + SLICE_S
    if batch.lines:
        yield await loop.run_in_executor(None, section.writer.write, batch.take())


def _steps(section: Section) -> Iterator[tuple[Family, Row] | None]:
    for collector in section.collectors:
        for family in collector:
            if family is None:
                yield None
                continue
            count = 0
            for row in family.rows:
                if row is not None and count < section.rows_max:
                    count += 1
                    yield family, row
                else:
                    yield None


class _Batch:
    """Rows that are written together."""

    def __init__(self) -> None:
        self._parts: list[FamilyPart] = []
        self._family: Family | None = None
        self.lines = 0

    def add(self, family: Family, row: Row) -> None:
        is_first = family is not self._family
        if is_first or not self._parts:
            self._family = family
            self._parts.append(FamilyPart(family, is_first, []))
        self._parts[-1].rows.append(row)
        self.lines += len(row[1].counts) + 2 if isinstance(row[1], Buckets) else 1

    def take(self) -> list[FamilyPart]:
        parts, self._parts, self.lines = self._parts, [], 0
        return parts


class SharedPage:
    """A page that is made for each scrape; scrapes that arrive while it is being made get the same page.

    Args:
        make: yields its pieces.
    """

    def __init__(self, make: Callable[[], AsyncIterator[bytes]]) -> None:
        self._make = make
        self._making: _Making | None = None

    def read(self) -> AsyncIterator[bytes]:
        """Yield all pieces of the page; raises the exceptions of making it."""
        if self._making is None:
            self._making = _Making(self._make(), self._forget)
        return self._making.read()

    def _forget(self) -> None:
        self._making = None  # only its readers hold it from now on


class _Making:
    """A page being made, to its end, whether or not it is still being read."""

    def __init__(self, source: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        self._pieces: list[bytes] = []
        self._more = asyncio.Event()
        self._done = done
        self._task = asyncio.get_running_loop().create_task(self._make(source))

    async def read(self) -> AsyncIterator[bytes]:
        given = 0
        while True:
            for piece in self._pieces[given:]:
                given += 1
                yield piece
            if given < len(self._pieces):
                continue
            if self._task.done():
                self._task.result()
                return
            await self._more.wait()

    async def _make(self, source: AsyncIterator[bytes]) -> None:
        try:
            async for piece in source:
                self._pieces.append(piece)
                self._wake()
        finally:
            self._done()
            asyncio.get_running_loop().call_soon(self._wake)  # when the task is done

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


async def compressed(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same as gzip, compressed in a thread without the interpreter's lock."""
    loop, packer = asyncio.get_running_loop(), zlib.compressobj(_FAST, zlib.DEFLATED, _GZIP)
    async for piece in source:
        if packed := await loop.run_in_executor(None, packer.compress, piece):
            yield packed
    yield packer.flush()
