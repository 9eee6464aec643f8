"""A power cut: sectors that were not synced are old or new, each as chance has it; what was acknowledged is whole.

The image of the disk is put together from two copies of the directory: one at the last checkpoint, one at the cut.
Below the log's flushed offset everything is new; behind it, and in the queues, each 512 bytes are one or the other.
"""

import random
import shutil
import threading
from pathlib import Path

import pytest

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import decode_record
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.opening import OpenStore
from store.queues.consume_queue import BLANK_SIZE
from tests.limits import WAIT_S
from tests.store.support import Outcomes, fast_directory, open_classic, put_all, queued

SECTOR = 512
FILE_SIZE = 16384


async def open_small(root: Path) -> OpenStore:
    return await open_classic(root, flush_mode=FlushMode.SYNC, file_size=FILE_SIZE, queue_file_size=2000)


class Writer:
    """Numbered messages over a few queues."""

    def __init__(self, store: OpenStore, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        self.number = 0

    def drafts(self) -> list[QueuedDraft]:
        found = []
        for _ in range(self.dice.randrange(1, 12)):
            queue = self.store.store.queues.get(f"T{self.dice.randrange(2)}", self.dice.randrange(2))
            body = b"%d " % self.number + b"x" * self.dice.randrange(900)
            found.append(queued(queue, body, tags="tag" if self.number % 2 else None))
            self.number += 1
        return found


def mix(dice: random.Random, old: bytes, new: bytes) -> bytes:
    """Every sector one or the other."""
    old = old.ljust(len(new), b"\0")
    likely_new = dice.choice([0.1, 0.5, 0.9])
    sectors = range(0, len(new), SECTOR)
    return b"".join((new if dice.random() < likely_new else old)[at : at + SECTOR] for at in sectors)


def cut_power(dice: random.Random, synced: Path, cached: Path, flushed: int) -> None:
    """Turn `cached` (all that was written) into what the disk holds."""
    for path in sorted(cached.rglob("*")):
        if not path.is_file():
            continue
        before = synced / path.relative_to(cached)
        new = path.read_bytes()
        if path.parent.name == "commitlog":
            start = int(path.name)
            kept = max(min(flushed - start, len(new)), 0)
            path.write_bytes(mix(dice, new[:kept], new))
        elif "consumequeue" in path.parts:
            if before.exists():
                path.write_bytes(mix(dice, before.read_bytes(), new))
            elif dice.random() < 0.3:
                path.unlink()
            else:
                path.write_bytes(mix(dice, b"", new))
        elif path.name == "checkpoint" and before.exists() and dice.random() < 0.5:
            path.write_bytes(before.read_bytes())


def found_numbers(store: OpenStore, flushed: int) -> list[int]:
    """Numbers of all whole messages, after a look at every unit; a damaged body may only lie behind `flushed`."""
    found = []
    for queue in store.store.queues:
        for offset, (physical_offset, size, _) in queue.iterate(queue.min_offset, queue.max_offset):
            if size == BLANK_SIZE:
                assert physical_offset >= flushed
                continue
            try:
                record = decode_record(store.store.log.read(physical_offset, size))
            except CorruptRecordError:
                assert physical_offset >= flushed
                continue
            assert (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, offset)
            found.append(int(record.body.split()[0]))
    return sorted(found)


@pytest.mark.parametrize("seed", range(40))
async def test_nothing_acknowledged_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    with fast_directory() as directory:
        synced, cached = directory / "synced", directory / "cached"
        store = await open_small(directory / "root")
        log = store.store.log
        assert isinstance(log, CommitLog)
        writer = Writer(store, dice)
        for _ in range(dice.randrange(20)):
            await put_all(store, writer.drafts())
        if dice.random() < 0.8:
            store.checkpointer._save(store.checkpointer._capture())
        shutil.copytree(directory / "root", synced)
        for _ in range(dice.randrange(1, 20)):
            await put_all(store, writer.drafts())
        acknowledged, flushed = writer.number, log.flushed_offset
        gate = threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(MappedFile, "sync", lambda _: gate.wait(WAIT_S))
            for _ in range(dice.randrange(6)):
                store.store.put(writer.drafts(), Outcomes())
            shutil.copytree(directory / "root", cached)
            gate.set()
            await store.close()
        cut_power(dice, synced, cached, flushed)

        again = await open_small(cached)
        found = found_numbers(again, flushed)
        assert found[:acknowledged] == list(range(acknowledged))
        writer = Writer(again, dice)
        writer.number = 1_000_000
        for _ in range(5):
            await put_all(again, writer.drafts())
        found += range(1_000_000, writer.number)
        assert found_numbers(again, flushed) == found
        await again.close()
        once_more = await open_small(cached)
        assert found_numbers(once_more, flushed) == found
        await once_more.close()
