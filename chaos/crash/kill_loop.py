"""`python -m chaos.crash.kill_loop --mode standalone|raft --rounds N`: a broker is killed under load, again and again.

    load ---->  kill -9 .... start  --> everything acknowledged is read, each message at its acknowledged queue offset;
    (16 tasks, never stopped)           queues have no gaps

Real processes, started by the command line. `flushDiskType` is the mode's default: a killed process leaves the page
cache to the next one, so nothing may be lost in either mode. Exit codes: 0 no finding, 10 a finding, 2 bad arguments.
"""

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import command
from chaos.crash.errors import DisagreeError, Finding, LostError
from ledgermq.client import Admin, Consumer, LedgerMQError, Producer
from ledgermq.remoting.route import MessageQueue
from ledgermq.testing.cluster import start_cluster, stop_cluster
from ledgermq.testing.control import ask

_SENDERS = 16
_LIMIT_S = 60.0
_FOUND = 10
_TOPIC, _QUEUES = "crash-loop", 4

Place = tuple[MessageQueue, int]
"""A queue and a queue offset."""


@dataclass(slots=True)
class Books:
    """The places at which messages were acknowledged and read."""

    acknowledged: dict[Place, int] = field(default_factory=dict)
    read: dict[Place, int] = field(default_factory=dict)
    missing: set[Place] = field(default_factory=set)

    def note_acknowledged(self, place: Place, number: int) -> None:
        """Note that message `number` was acknowledged at this place."""
        if self.acknowledged.setdefault(place, number) != number:
            raise DisagreeError(f"{place} was acknowledged to {self.acknowledged[place]} and to {number}")
        if place not in self.read:
            self.missing.add(place)

    def note_read(self, place: Place, number: int) -> None:
        """Note that message `number` was read at this place."""
        self.missing.discard(place)
        if self.read.setdefault(place, number) != number or self.acknowledged.get(place, number) != number:
            acknowledged = self.acknowledged.get(place)
            raise DisagreeError(
                f"{place} holds {number}; {self.read[place]} was read there, {acknowledged} acknowledged"
            )

    def check_gaps(self) -> None:
        """Check that no queue that was read has a gap.

        Raises:
            LostError: it has; the text says where.
        """
        ends: dict[MessageQueue, int] = {}
        for queue, offset in self.read:
            ends[queue] = max(ends.get(queue, 0), offset + 1)
        for queue, end in ends.items():
            gaps = [offset for offset in range(end) if (queue, offset) not in self.read]
            if gaps:
                raise LostError(f"{queue} lacks the offsets {gaps[:10]} below {end}")


async def run_loop(mode: str, rounds: int, directory: Path, dice: random.Random) -> dict[str, Any]:
    """Run all rounds on a new broker; return the figures.

    Raises:
        Finding: something acknowledged is not there, or a queue contradicts it.
    """
    cluster, settings = directory / "cluster", "mappedFileSizeCommitLog=16777216"
    process, description = start_cluster(cluster, "--mode", mode, "--nodes", "1", "--conf", settings)
    try:
        return await _Loop(cluster, str(description["namesrv"]), rounds, dice).run()
    finally:
        await asyncio.to_thread(stop_cluster, process)


class _Loop:
    def __init__(self, directory: Path, namesrv: str, rounds: int, dice: random.Random) -> None:
        self._directory = directory
        self._namesrv = namesrv
        self._rounds = rounds
        self._dice = dice
        self._books = Books()
        self._next = 0
        self._recoveries: list[float] = []

    async def run(self) -> dict[str, Any]:
        namesrv = self._namesrv
        async with Admin(namesrv) as admin:
            await admin.create_topic(_TOPIC, queue_count=_QUEUES)
        async with (
            asyncio.TaskGroup() as tasks,
            Producer(namesrv) as producer,
            Consumer(namesrv, "followers", _TOPIC) as consumer,
        ):
            load = [tasks.create_task(self._send_on(producer)) for _ in range(_SENDERS)]
            reading = tasks.create_task(_read_on(consumer, self._books))
            await self._more(100)
            for _ in range(self._rounds):
                await self._round()
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
            await self._all_read(self._books)
            reading.cancel()
        await self._read_again()
        counts = {"rounds": self._rounds, "acknowledged": len(self._books.acknowledged), "read": len(self._books.read)}
        return counts | {"writable_again_s": round(sum(self._recoveries) / len(self._recoveries), 3)}

    async def _round(self) -> None:
        await asyncio.sleep(self._dice.random() * 0.3)  # a random moment
        for verb in ("kill", "start"):
            await asyncio.to_thread(ask, self._directory, verb, "n0")
        began = time.monotonic()
        await self._more(1)
        self._recoveries.append(time.monotonic() - began)
        await self._more(100)
        await self._all_read(self._books)
        self._books.check_gaps()

    async def _read_again(self) -> None:
        """Read everything again from the first offset on, with a new group."""
        books = Books(dict(self._books.acknowledged), {}, set(self._books.acknowledged))
        async with Consumer(self._namesrv, "readers", _TOPIC) as consumer:
            task = asyncio.create_task(_read_on(consumer, books))
            await self._all_read(books)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        books.check_gaps()

    async def _all_read(self, books: Books) -> None:
        """Wait until everything acknowledged by now is read."""
        wanted = set(books.missing)
        deadline = time.monotonic() + _LIMIT_S
        while wanted & books.missing:
            if time.monotonic() > deadline:
                lost = sorted(wanted & books.missing, key=str)
                raise LostError(f"{len(lost)} acknowledged messages are not there, such as {lost[:5]}")
            await asyncio.sleep(0.01)

    async def _more(self, count: int) -> None:
        wanted = len(self._books.acknowledged) + count
        async with asyncio.timeout(_LIMIT_S):
            while len(self._books.acknowledged) < wanted:
                await asyncio.sleep(0.005)

    async def _send_on(self, producer: Producer) -> None:
        while True:
            number, self._next = self._next, self._next + 1
            body = b"%d " % number + b"x" * self._dice.randrange(2000)
            with contextlib.suppress(LedgerMQError):  # not acknowledged: it may be lost
                result = await producer.send(_TOPIC, body, tags=f"tag{number % 3}")
                self._books.note_acknowledged((result.queue, result.queue_offset), number)


async def _read_on(consumer: Consumer, books: Books) -> None:
    async for message in consumer:
        books.note_read((message.queue, message.queue_offset), int(message.body.split()[0]))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.crash.kill_loop", description=__doc__, allow_abbrev=False)
    parser.add_argument("--mode", choices=("standalone", "raft"), default="raft")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the pauses and sizes; what the broker does has none")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        try:
            done = asyncio.run(run_loop(options.mode, options.rounds, Path(name), random.Random(options.seed)))
        except (Finding, ExceptionGroup) as error:
            findings = list(_findings_of(error))
            if not findings:
                raise
            print(*(f"{type(finding).__name__}: {finding}" for finding in findings), sep="\n")
            return _FOUND
    print(json.dumps({"mode": options.mode} | done))
    return 0


def _findings_of(error: Exception) -> Iterator[Finding]:
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _findings_of(part)
    elif isinstance(error, Finding):
        yield error


if __name__ == "__main__":
    command.run(main)
