"""The campaign finds what it is for: each bug that is put in here is found, and as what it is."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.state.saver import StateSaver
from chaos.crash.campaign import Effort, run_seeds
from chaos.crash.errors import DisagreeError, Finding, ImageRefusedError, InventedError, LostError
from chaos.crash.modes import MODES
from dledger.background import Checkpointer as RaftCheckpointer
from dledger.log.commit_checkpoint import CommitCheckpoint
from dledger.log.entry_log import EntryLog
from dledger.log.recovery import EntryScan, RecoveredEntries
from dledger.log.start_file import LogStart, save_start
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log import recovery
from store.log.flusher import Flusher
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_file import QueueFile
from store.queues.queue_sync import QueueSync
from store.recovery.record_batches import RecordBatch, read_batch

SEEDS_MAX = 20
Patch = contextlib.AbstractContextManager[Any]


def flush_not_awaited() -> Patch:
    return mock.patch.object(MappedFile, "sync", lambda _: None)


def a_sync_counts_for_what_was_placed_while_it_ran() -> Patch:
    advance = Flusher._advance

    def too_far(flusher: Flusher, _: int, files: list[MappedFile]) -> None:
        advance(flusher, flusher._queue.max_offset, files)

    return mock.patch.object(Flusher, "_advance", too_far)


def directory_of_the_log_not_synced() -> Patch:
    return mock.patch("store.files.disk.sync_directory", lambda _: None)


def directory_of_term_and_vote_not_synced() -> Patch:
    return mock.patch("ledgermq.durable_files.sync", lambda _: None)


def checkpoint_ahead_of_the_log() -> Patch:
    return mock.patch.object(MessageStore, "durable_offset", property(lambda store: store.log.max_offset))


def checkpoint_ahead_of_the_queues() -> Patch:
    return mock.patch.object(QueueFile, "sync", lambda _: None)


def checkpoint_ahead_of_the_file_system() -> Patch:
    return mock.patch.object(QueueSync, "_sync_file_systems", lambda _: True)


def checkpoint_ahead_of_held_units() -> Patch:
    return mock.patch.object(ConsumeQueue, "write_held", ConsumeQueue._drop_held)


def crc_not_checked() -> Patch:
    def unchecked(file: MappedFile, position: int, limit: int, *, check: bool, torn: bool = False) -> RecordBatch:
        return read_batch(file, position, limit, check=False, torn=False)

    return mock.patch.object(recovery, "read_batch", unchecked)


def one_record_too_many_cut() -> Patch:
    def short(file: MappedFile, position: int, limit: int, *, check: bool, torn: bool = False) -> RecordBatch:
        batch = read_batch(file, position, limit, check=check, torn=torn)
        if not batch.is_end or batch.is_blank or not len(batch.starts):
            return batch
        fields = {name: getattr(batch, name)[:-1] for name in ("starts", "ends", "tails", "heads", "common", "sound")}
        return dataclasses.replace(batch, end=int(batch.starts[-1]), **fields)

    return mock.patch.object(recovery, "read_batch", short)


def one_entry_too_few_cut() -> Patch:
    truncate = EntryLog.truncate_after

    def short(log: EntryLog, last_index: int) -> None:
        truncate(log, min(last_index + 1, log.last_index))

    return mock.patch.object(EntryLog, "truncate_after", short)


def a_filler_counts_without_an_entry_behind_it() -> Patch:
    scan_file = EntryScan._scan_file

    def counts(scan: EntryScan, file: MappedFile, offset: int, found: RecoveredEntries) -> bool:
        goes_on = scan_file(scan, file, offset, found)
        if goes_on:
            found.end_position = file.end_offset
        return goes_on

    return mock.patch.object(EntryScan, "_scan_file", counts)


def an_install_is_not_marked_as_begun() -> Patch:
    def unmarked(directory: Path, start: LogStart) -> None:
        save_start(directory, dataclasses.replace(start, installing=False))

    return mock.patch("dledger.log.entry_log.save_start", unmarked)


def what_a_start_finds_is_not_synced() -> Patch:
    return mock.patch("dledger.log.opening._sync", lambda *_: None)


def checkpoint_of_the_raft_log_above_what_is_durable() -> Patch:
    def ahead(checkpointer: RaftCheckpointer) -> CommitCheckpoint:
        log = checkpointer._log
        return CommitCheckpoint(checkpointer._commit_index(), log.last_index, log.data.flushed_offset)

    return mock.patch.object(RaftCheckpointer, "picture", ahead)


def a_cut_deletes_from_the_front() -> Patch:
    remove = MappedFileQueue.remove

    def from_the_front(queue: MappedFileQueue, doomed: list[MappedFile]) -> None:
        remove(queue, sorted(doomed, key=lambda file: file.start_offset))

    return mock.patch.object(MappedFileQueue, "remove", from_the_front)


def tables_do_not_wait_for_the_log() -> Patch:
    write_durable = StateSaver.write_durable

    def at_once(saver: StateSaver) -> None:
        with mock.patch.object(saver, "_flushed_offset", lambda: 1 << 62):
            write_durable(saver)

    return mock.patch.object(StateSaver, "write_durable", at_once)


@contextlib.contextmanager
def tables_ahead_of_the_log_are_believed() -> Iterator[None]:
    with tables_do_not_wait_for_the_log(), mock.patch("broker.log_follower.clamp_to_log", lambda *_: None):
        yield


# The mode, the bug, as what it is found, and the seed where the search begins: one that shows it soon.
BUGS = [
    ("classic-sync", flush_not_awaited, (LostError,), 0),
    ("raft", flush_not_awaited, (LostError, InventedError), 0),
    ("classic-sync", a_sync_counts_for_what_was_placed_while_it_ran, (LostError,), 0),
    ("classic-sync", directory_of_the_log_not_synced, (LostError, ImageRefusedError), 0),
    ("raft", directory_of_the_log_not_synced, (LostError, ImageRefusedError), 0),
    ("raft", directory_of_term_and_vote_not_synced, (DisagreeError, ImageRefusedError, LostError), 0),
    ("classic-async", checkpoint_ahead_of_the_log, (DisagreeError, LostError, InventedError, ImageRefusedError), 0),
    ("classic-queue", checkpoint_ahead_of_the_queues, (DisagreeError,), 2),
    ("classic-syncfs", checkpoint_ahead_of_the_file_system, (DisagreeError,), 2),
    ("classic-held", checkpoint_ahead_of_held_units, (DisagreeError,), 0),
    ("classic-async", crc_not_checked, (DisagreeError, InventedError), 0),
    ("classic-sync", one_record_too_many_cut, (LostError,), 1),
    ("raft", one_entry_too_few_cut, (InventedError,), 0),
    ("raft", a_filler_counts_without_an_entry_behind_it, (ImageRefusedError,), 0),
    ("raft", an_install_is_not_marked_as_begun, (LostError,), 8),
    ("raft", what_a_start_finds_is_not_synced, (LostError,), 0),
    ("raft", checkpoint_of_the_raft_log_above_what_is_durable, (LostError,), 6),
    ("raft", a_cut_deletes_from_the_front, (ImageRefusedError,), 9),
    ("tables", tables_do_not_wait_for_the_log, (DisagreeError,), 0),
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL)
    yield


@pytest.mark.parametrize(
    ("mode", "bug", "expected", "first"), BUGS, ids=[f"{mode}-{bug.__name__}" for mode, bug, _, _ in BUGS]
)
def test_the_bug_is_found(mode: str, bug: Any, expected: tuple[type[Finding], ...], first: int) -> None:
    with bug():
        tally = run_seeds(MODES[mode], range(first, first + SEEDS_MAX), Effort())
    assert tally.verdicts, f"not found in {tally.images} images"
    assert isinstance(tally.verdicts[0].finding, expected), tally.verdicts[0]


def test_tables_that_are_ahead_of_the_log_and_believed_are_found_by_changes_without_effect() -> None:
    """That they are ahead is found first, in other images."""
    with tables_ahead_of_the_log_are_believed():
        tally = run_seeds(MODES["tables"], range(1), Effort(torn_per_moment=0, generations=1, findings_max=1000))
    findings = [verdict.finding for verdict in tally.verdicts]
    assert any(isinstance(finding, LostError) for finding in findings), findings
