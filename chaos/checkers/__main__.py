"""Judges a generated history, to show that time grows with its length and memory does not.

    python -m chaos.checkers --operations 10000000

Three operations a message: a send, its end, its delivery. Some end without an answer, and are stored or not; some are
stored twice; order keys, redeliveries after faults and committed offsets occur. `--plant` puts one error of each kind
at the end, which the judge must find.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from chaos import command
from chaos.checkers.operations import PROMISES, Judge, RunCounts
from ledgermq.history import Op, Operation

_QUEUES, _KEYS, _UNDER_WAY = 16, 64, 50
_RATE = 10_000.0
_FAULT_EVERY = 20_000


def made_up(messages: int, seed: int) -> Iterator[Operation]:
    """Yield a clean history of `messages` messages."""
    rng = Random(seed)
    ends = [0] * _QUEUES
    waiting: list[tuple[int, int, int]] = []
    yield Operation(Op.RUN, 0.0, name="steady", queue="raft")
    for number in range(messages):
        at_s = number / _RATE
        yield Operation(Op.INVOKE, at_s, number, name=f"key-{number % _KEYS}")
        queue = number % _QUEUES
        waiting.append((number, queue, ends[queue]))
        ends[queue] += 1
        if len(waiting) >= _UNDER_WAY:
            yield from _ended(waiting, at_s, rng)
        if number % _FAULT_EVERY == _FAULT_EVERY - 1:
            yield from _ended(waiting, at_s, rng)
            yield Operation(Op.FAULT, at_s, name="kill n0")
            yield Operation(Op.DELIVER, at_s, number, f"b/{queue}", ends[queue] - 1, name="again")
            yield Operation(Op.COMMIT, at_s, queue=f"b/{queue}", offset=ends[queue])
    yield from _ended(waiting, messages / _RATE, rng)


def _ended(waiting: list[tuple[int, int, int]], at_s: float, rng: Random) -> Iterator[Operation]:
    """End all open sends in random order, and deliver their messages in the order of their places."""
    for number, queue, offset in rng.sample(waiting, len(waiting)):
        is_told = rng.random() > 0.01
        place = (f"b/{queue}", offset) if is_told else ("", -1)
        yield Operation(Op.OK if is_told else Op.INFO, at_s, number, *place)
    for number, queue, offset in waiting:
        yield Operation(Op.DELIVER, at_s, number, f"b/{queue}", offset)
    waiting.clear()


def planted(messages: int) -> Iterator[Operation]:
    """Yield operations that follow `messages` clean messages, with one error of each promise in queue `x/0`."""
    at_s, number = messages / _RATE + 100.0, messages
    sends: list[tuple[str, float, float, Op, int, float]] = [  # key, begin, end, outcome, offset, due
        ("", 0.0, 0.1, Op.OK, 900, 0.0),  # 0 lost
        ("", 0.0, 0.1, Op.FAIL, -1, 0.0),  # 1 aborted
        ("", 0.0, 0.3, Op.OK, 1, 0.0),  # 2 overstored
        ("", 0.0, 0.3, Op.OK, 800, 0.0),  # 3 misplaced
        ("", 0.0, 0.3, Op.OK, 7, 0.0),  # 4 stored before, and ...
        ("", 0.4, 0.5, Op.OK, 6, 0.0),  # 5 ... acknowledged before it began
        ("", 0.4, 0.5, Op.OK, -1, 9.0),  # 6 early
        ("k", 0.4, 0.5, Op.OK, -1, 0.0),  # 7 after 8 in the order of their key
        ("k", 0.4, 0.5, Op.OK, -1, 0.0),  # 8
    ]
    events = [(begin, Operation(Op.INVOKE, at_s + begin, number + n, name=k)) for n, (k, begin, *_) in enumerate(sends)]
    for n, (_, _, end, op, offset, due) in enumerate(sends):
        place = ("y/0" if n == 0 else "x/0", offset) if offset >= 0 else ("", -1)
        events.append((end, Operation(op, at_s + end, number + n, *place, due_s=at_s + due if due else 0.0)))
    yield from (operation for _, operation in sorted(events, key=lambda one: one[0]))
    given: list[tuple[int | None, int]] = [(1, 0), (2, 1), (2, 2), (3, 3), (6, 4), (8, 5), (5, 6), (4, 7), (7, 9)]
    given += [(None, 10), (2, 1)]
    for told, offset in given:  # offset 8 is left out; offset 1 comes again long after the last fault
        known = None if told is None else number + told
        yield Operation(Op.DELIVER, at_s + 1.0, known, "x/0", offset)
    yield Operation(Op.INVOKE, at_s + 2.0, number + len(sends))
    yield Operation(Op.OK, at_s + 2.1, number + len(sends), "z/0", 0)
    yield Operation(Op.INVOKE, at_s + 2.2, number + len(sends) + 1)
    yield Operation(Op.OK, at_s + 2.3, number + len(sends) + 1, "z/0", 1)
    yield Operation(Op.DELIVER, at_s + 2.4, number + len(sends) + 1, "z/0", 1)
    yield Operation(Op.DELIVER, at_s + 2.5, number + len(sends), "z/0", 0)  # disordered
    yield Operation(Op.COMMIT, at_s + 3.0, queue="z/0", offset=3)  # passes what was delivered


def check(operations: int, *, plant: bool) -> RunCounts:
    """Judge a generated history of about `operations` operations."""
    messages = operations // 3
    judge = Judge()
    try:
        for operation in made_up(messages, seed=1):
            judge.feed(operation)
        if plant:
            for operation in planted(messages):
                judge.feed(operation)
        return judge.findings()
    finally:
        judge.close()


def main(words: Sequence[str]) -> int:
    """Return 0 if a clean history has no finding, or a planted one each kind of finding."""
    parser = argparse.ArgumentParser(prog="chaos.checkers", description="Judge a long made-up history.")
    parser.add_argument("--operations", type=int, default=1_000_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--plant", action="store_true", help="with one error of each kind")
    arguments = parser.parse_args(words)
    began_s = time.process_time()
    findings = check(arguments.operations, plant=arguments.plant)
    used_s = time.process_time() - began_s
    status = Path("/proc/self/status").read_text()
    memory = int(status.partition("RssAnon:")[2].split()[0]) // 1024
    print(f"{arguments.operations:,} operations, {used_s:.1f} CPU s, {memory} MiB of memory besides files")
    print(f"peak with mapped files {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    found = {name for _, name, _ in PROMISES if getattr(findings, name)}
    wanted = {name for _, name, _ in PROMISES if name != "undelivered"} if arguments.plant else set()
    print(f"found {', '.join(sorted(found)) or 'nothing'}")
    return 0 if found == wanted else 1


if __name__ == "__main__":
    command.run(lambda: main(sys.argv[1:]))
