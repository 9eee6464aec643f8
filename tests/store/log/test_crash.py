"""A process is killed in the middle of writing, again and again; what it acknowledged is there, whole and in order."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.log.flusher import FlushMode
from store.opening import OpenStore
from tests.store.crash_child import QUEUES
from tests.store.support import bodies_of, open_classic

ROOT = Path(__file__).parents[3]
ROUNDS = 6


def write_until_killed(root: Path, flush_mode: FlushMode, start: int, acknowledgements: int) -> int:
    """Run a writer that begins with message `start`; answer the end of what it acknowledged."""
    command = [sys.executable, "-m", "tests.store.crash_child", str(root), flush_mode.name, str(start)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = start
        for _ in range(acknowledgements):
            acknowledged = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split("\n")
        complete = [int(line) for line in rest[:-1]]
    return complete[-1] if complete else acknowledged


async def numbers(store: OpenStore) -> list[int]:
    found = []
    for queue_id in range(QUEUES):
        queue = store.store.queues.get("T", queue_id)
        bodies = bodies_of(store, queue)
        assert len(bodies) == queue.max_offset
        mine = [int(body.split()[0]) for body in bodies]
        assert mine == sorted(mine)
        assert {number % QUEUES for number in mine} <= {queue_id}
        found += mine
    return sorted(found)


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path, flush_mode: FlushMode) -> None:
    dice = random.Random(7)
    written = 0
    for _ in range(ROUNDS):
        acknowledged = write_until_killed(tmp_path, flush_mode, written, dice.randrange(1, 60))
        store = await open_classic(tmp_path, flush_mode=flush_mode, file_size=16384, queue_file_size=2000)
        found = await numbers(store)
        assert found == list(range(len(found)))
        assert len(found) >= acknowledged > written
        written = len(found)
        await store.close()
