"""Recovery of randomly damaged directories: an answer or a typed refusal, and never a record that was not written."""

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chaos.crash.campaign import memory_directory
from chaos.crash.classic import ClassicRun, ClassicSettings, open_small
from chaos.crash.ledger import Appended
from chaos.crash.raft import RaftCrashSettings, RaftRun, entries_of, open_small_raft
from chaos.crash.recorder import Recorder, inline_executors
from dledger.errors import DLedgerError
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import decode_record
from store.errors import StoreError, StoreFormatError
from store.opening import OpenStore
from store.queues.consume_queue import BLANK_SIZE
from tests.limits import WAIT_S
from tests.store.crash.damage import damage_files

SEEDS_PER_TEST, TESTS = 60, 4
CLASSIC, RAFT = ClassicSettings(steps=25), RaftCrashSettings(steps=25)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL)
    yield


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as name, inline_executors():
        yield Path(name)


def written(recorder: Recorder) -> dict[int, set[bytes]]:
    """By offset, everything that was ever put there."""
    found: dict[int, set[bytes]] = {}
    for note in recorder.notes:
        if isinstance(note, Appended):
            for item in note.items:
                found.setdefault(item.start, set()).add(item.data)
    return found


@pytest.mark.parametrize("number", range(TESTS))
async def test_a_damaged_classic_store_is_opened_or_refused(directory: Path, number: int) -> None:
    root = directory / "sound"
    root.mkdir()
    recorder = Recorder(root)
    await ClassicRun(recorder, CLASSIC, Random(f"fuzz {number}")).run()
    known = written(recorder)
    for seed in range(number * SEEDS_PER_TEST, (number + 1) * SEEDS_PER_TEST):
        dice = Random(f"damage {seed}")
        copy = directory / "damaged"
        shutil.copytree(root, copy)
        if dice.random() < 0.7:
            (copy / "abort").touch()
        done = damage_files(copy, dice)
        try:
            store = await asyncio.wait_for(open_small(copy, CLASSIC), WAIT_S)
        except StoreError:
            pass
        else:
            assert shown(store) <= {body for records in known.values() for body in map(body_of, records)}, (seed, done)
            await store.close()
        shutil.rmtree(copy)


def shown(store: OpenStore) -> set[bytes]:
    """Bodies that a consumer would take: those that have their CRCs."""
    bodies = set()
    for queue in store.store.queues:
        with contextlib.suppress(StoreFormatError):  # a file was cut that was known to be whole: met when it is read
            for _, (physical_offset, size, _) in queue.iterate(queue.min_offset, queue.max_offset):
                if size != BLANK_SIZE:
                    # there may be rotten units, and rotten bodies, in what recovery had no reason to look at
                    with contextlib.suppress(StoreError, CorruptRecordError):
                        bodies.add(body_of(store.store.log.read(physical_offset, size)))
    return bodies


def body_of(record: bytes | memoryview) -> bytes:
    return decode_record(record).body


def _without_term(entry: bytes) -> bytes:
    """DLedger's format has no CRC over the header: a term that is damaged to a higher one looks like a new term."""
    return entry[:16] + entry[24:]


@pytest.mark.parametrize("number", range(TESTS))
async def test_a_damaged_raft_log_is_opened_or_refused(directory: Path, number: int) -> None:
    root = directory / "sound"
    root.mkdir()
    recorder = Recorder(root)
    await RaftRun(recorder, RAFT, Random(f"fuzz {number}")).run()
    known = written(recorder)
    for seed in range(number * SEEDS_PER_TEST, (number + 1) * SEEDS_PER_TEST):
        dice = Random(f"damage {seed}")
        copy = directory / "damaged"
        shutil.copytree(root, copy)
        done = damage_files(copy, dice)
        try:
            files = open_small_raft(copy, RAFT, "another boot")
        except (StoreError, DLedgerError):
            pass
        else:
            damaged = {damage.position for damage in files.opened.found.damages}
            found = entries_of(files, files.opened.verified_from)  # what lies before is verified by and by
            strange = [
                item.key
                for item in found
                if item.start not in damaged
                and _without_term(item.data) not in map(_without_term, known.get(item.start, ()))
            ]
            assert not strange, (seed, done)
            files.close(is_clean=False)
        shutil.rmtree(copy)
