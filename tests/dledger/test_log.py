"""The entry log on disk: appends over files, spans, flush reports, cuts, resets, deletion, recovery."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger.background import Checkpointer
from dledger.core.messages import Span, TermRun
from dledger.errors import EntryFormatError
from dledger.log.commit_checkpoint import CommitCheckpoint, save_checkpoint
from dledger.log.entry import HEADER_SIZE, INDEX_UNIT_SIZE
from dledger.log.entry_batches import EntryBatches
from dledger.log.entry_log import EntryLog
from dledger.log.reader import is_sound, walk_records
from dledger.log.term_start import term_start_draft
from ledgermq.message.draft import RecordDraft
from ledgermq.message.record import decode_record
from store.errors import DiskFailedError, DiskFullError, RecordTooLargeError
from store.queues.dispatch import unit_fields
from tests.dledger.conftest import STORE_HOST, LogOpener, ManualFlusher, make_draft, open_entry_log

Draft = Callable[..., RecordDraft]


def fill(log: EntryLog, count: int, *, term: int = 1, size: int = 300, batch: int = 4) -> None:
    for start in range(0, count, batch):
        bodies = [b"%05d" % (start + i) + b"x" * size for i in range(min(batch, count - start))]
        drafts = [make_draft(body) for body in bodies]
        if log.last_index >= 0 and log.term_at(log.last_index) != term:
            drafts[0] = term_start_draft(term, "n1", STORE_HOST, 1000)
        log.append_drafts(drafts, term, 1000 + start)


def copied(log: EntryLog, first: int, limit: int = 10**6) -> Span:
    span = log.read(first, limit)
    assert span is not None
    return Span(span.term, first, span.last_index, span.start_position, span.end_position, bytes(span.data))


def replicate(source: EntryLog, target: EntryLog, limit: int = 1500) -> None:
    while target.last_index < source.last_index:
        target.append_span(copied(source, target.last_index + 1, limit))


def files_of(root: Path, folder: str = "data") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / folder).iterdir())}


def bodies_of(log: EntryLog) -> list[bytes]:
    return [
        decode_record(bytes(record)).body[:5]
        for _, record in walk_records(log.data, log.first_position, log.max_position)
    ]


def test_drafts_get_the_physical_offset_behind_their_header(entry_log: LogOpener) -> None:
    log = entry_log()
    drafts = [make_draft(b"a" * n) for n in (10, 2000, 2000, 30)]
    log.append_drafts(drafts, 5, 77)
    for index, draft in enumerate(drafts):
        position, size, term = log.units[index]
        assert (draft.physical_offset, draft.size, draft.store_timestamp) == (
            position + HEADER_SIZE,
            size - HEADER_SIZE,
            77,
        )
        record = decode_record(log.data.slice(draft.physical_offset, draft.size))
        assert (record.physical_offset, record.body, term) == (draft.physical_offset, draft.body, 5)
    assert drafts[2].physical_offset == 4096 + HEADER_SIZE, "an entry that does not fit starts the next file"


def test_a_copied_log_has_the_same_files(entry_log: LogOpener, tmp_path: Path) -> None:
    leader, follower = entry_log("leader"), entry_log("follower")
    fill(leader, 40, term=1)
    leader.append_term_start(40, 2)
    fill(leader, 20, term=2, size=900)
    replicate(leader, follower)
    assert files_of(tmp_path / "leader") == files_of(tmp_path / "follower")
    assert files_of(tmp_path / "leader", "index") == files_of(tmp_path / "follower", "index")
    assert follower.term_runs == leader.term_runs == (TermRun(1, 0), TermRun(2, 40))


def test_a_span_holds_one_term_of_one_file_within_the_limit(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 6, term=1)
    log.append_term_start(6, 2)
    assert copied(log, 0).last_index == 5
    assert copied(log, 6).term == 2
    first = copied(log, 0, 1)
    assert first.last_index == 0, "one entry even if it is larger than the limit"
    assert copied(log, 0, len(first.data) * 2).last_index == 1
    assert copied(log, 0, len(first.data) * 3 - 1).last_index == 1
    fill(log, 30, term=2)
    end = copied(log, 0).end_position
    assert end <= 4096
    assert log.read(log.last_index + 1, 1000) is None


def test_entries_held_already_are_skipped(entry_log: LogOpener) -> None:
    leader, follower = entry_log("leader"), entry_log("follower")
    fill(leader, 8)
    follower.append_span(copied(leader, 0, 1000))
    held = follower.last_index
    follower.append_span(copied(leader, 0))
    assert follower.last_index == 7 > held
    follower.append_span(copied(leader, 2))
    assert follower.last_index == 7
    assert bodies_of(follower) == bodies_of(leader)


def test_a_span_that_does_not_join_is_refused_and_nothing_changes(entry_log: LogOpener) -> None:
    leader, follower = entry_log("leader"), entry_log("follower")
    fill(leader, 8)
    with pytest.raises(EntryFormatError, match="do not join"):
        follower.append_span(copied(leader, 3))
    other = entry_log("other", file_size=8192)
    fill(other, 20)
    replicate(leader, follower)
    with pytest.raises(EntryFormatError, match="do not join"):
        follower.append_span(copied(other, 12))
    assert follower.last_index == 7


def test_a_flush_report_counts_what_was_written_when_it_was_asked(entry_log: LogOpener) -> None:
    log = entry_log()
    flusher = ManualFlusher()
    log.attach(flusher)
    reports: list[tuple[int, int]] = []
    fill(log, 4)
    log.request_flush(lambda index, generation: reports.append((index, generation)))
    fill(log, 4)
    assert log.durable_index == -1
    flusher.finish()
    assert reports == [(3, 0)]
    assert log.durable_index == 3


def test_a_cut_lowers_what_is_durable_and_is_a_new_generation(entry_log: LogOpener) -> None:
    log = entry_log()
    flusher = ManualFlusher()
    log.attach(flusher)
    fill(log, 8)
    log.request_flush(lambda index, generation: None)
    flusher.finish()
    log.truncate_after(4)
    assert (log.last_index, log.durable_index, log.generation) == (4, 4, 1)
    fill(log, 4, term=3)
    assert bodies_of(log)[6:] == [b"00001", b"00002", b"00003"]
    assert log.term_runs == (TermRun(1, 0), TermRun(3, 5))
    log.truncate_after(-1)
    assert (log.last_index, list(log.term_runs), log.max_position) == (-1, [], 0)


def test_a_batch_larger_than_the_buffer_is_written_whole(entry_log: LogOpener) -> None:
    log = entry_log(file_size=4 << 20)
    drafts = [make_draft(bytes([i]) * 300_000) for i in range(9)]
    log.append_drafts(drafts, 1, 1)
    for draft in drafts:
        assert decode_record(log.data.slice(draft.physical_offset, draft.size)).body == draft.body


def test_a_record_that_fits_into_no_file_is_refused(entry_log: LogOpener) -> None:
    log = entry_log()
    fits = make_draft(b"")
    room = 4096 - 8 - HEADER_SIZE - fits.size
    log.append_drafts([make_draft(bytes(room))], 1, 1)
    with pytest.raises(RecordTooLargeError):
        log.append_drafts([make_draft(b"ok"), make_draft(bytes(room + 1))], 1, 1)
    assert log.last_index == 0


def test_a_batch_that_cannot_be_encoded_leaves_no_trace(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 8)
    end = log.max_position
    bad = make_draft(b"bad")
    bad.queue_id = 2**40
    with pytest.raises(Exception, match="format"):
        log.append_drafts([make_draft(bytes(2000)), make_draft(bytes(2000)), bad], 1, 1)
    assert (log.last_index, log.max_position) == (7, end)
    fill(log, 4)
    assert len(bodies_of(log)) == 12


def test_no_room_on_the_disk_changes_nothing(entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = entry_log("leader"), entry_log("follower")
    fill(leader, 20)
    replicate(leader, follower)

    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(DiskFullError):
            fill(leader, 40, batch=40)
        assert leader.last_index == 19
    fill(leader, 20)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(DiskFullError):
            replicate(leader, follower)
        held = follower.last_index
    replicate(leader, follower)
    assert follower.last_index == 39 > held
    assert bodies_of(follower) == bodies_of(leader)


def test_a_write_error_is_the_disk_s_failure(entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = entry_log()
    fill(log, 4)

    def broken(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.pwrite", broken)
    with pytest.raises(DiskFailedError, match="Input/output error"):
        fill(log, 4)
    assert log.last_index == 3


def test_a_truncation_is_on_disk_when_it_returns_or_is_the_disk_s_failure(
    entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = entry_log()
    fill(log, 4)
    synced: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", synced.append)
        log.truncate_after(2)
    assert synced == [log.data.files[-1].fd]

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", broken)
        with pytest.raises(DiskFailedError, match="truncation"):
            log.truncate_after(1)


def delete_before(log: EntryLog, position: int) -> list[str]:
    """Drop old files and delete them; their names."""
    taken = log.take_before(position)
    if taken is None:
        return []
    log.data.remove(taken.data)
    log.units.files.remove(taken.index)
    return [file.path.name for file in taken.data]


def test_deleting_moves_the_start_and_survives_a_restart(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 20, term=1)
    fill(log, 20, term=2)
    assert delete_before(log, 4095) == []
    assert delete_before(log, 2 * 4096 + 5) == [f"{0:020d}", f"{4096:020d}"]
    first = log.first_index
    assert log.first_position == 8192
    assert log.prev_term == log.term_at(first - 1) == 1
    assert log.term_runs[0] == TermRun(1, first)
    kept = bodies_of(log)
    log.close()
    again = entry_log()
    assert (again.first_index, again.first_position, again.prev_term) == (first, 8192, 1)
    assert (again.last_index, bodies_of(again)) == (39, kept)
    assert again.term_runs == log.term_runs


def test_on_a_full_disk_old_files_go_although_the_new_start_is_not_written(
    entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = entry_log()
    fill(log, 40)

    def full(directory: Path, _: object) -> None:
        raise DiskFullError(directory, 100)

    with monkeypatch.context() as patch:
        patch.setattr("dledger.log.entry_log.save_start", full)
        assert delete_before(log, 2 * 4096) == [f"{0:020d}", f"{4096:020d}"]
    first, kept = log.first_index, bodies_of(log)
    log.close()
    again = entry_log()
    assert (again.first_index, again.first_position, bodies_of(again)) == (first, 8192, kept)


def test_a_deletion_cut_short_is_finished(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 40)
    log.take_before(2 * 4096)
    first = log.first_index
    log.close()
    again = entry_log()
    assert (again.first_index, again.first_position) == (first, 8192)
    assert again.data.min_offset == 8192


def test_an_install_starts_anew_and_survives_a_restart(entry_log: LogOpener) -> None:
    source, target = entry_log("source"), entry_log("target")
    fill(source, 40)
    delete_before(source, 2 * 4096)
    fill(target, 3, term=1)
    target.begin_install(source.first_index, source.first_position, source.prev_term)
    target.finish_install()
    assert (target.last_index, target.generation) == (source.first_index - 1, 1)
    target.close()
    target = entry_log("target")
    assert (target.first_index, target.last_index, target.prev_term) == (source.first_index, source.first_index - 1, 1)
    replicate(source, target)
    target.close()
    target = entry_log("target")
    assert (target.first_index, target.last_index) == (source.first_index, 39)
    assert bodies_of(target) == bodies_of(source)


@pytest.mark.parametrize("is_finished", [True, False])
def test_an_install_that_keeps_entries_drops_those_before_and_a_damage_among_them(
    entry_log: LogOpener, tmp_path: Path, is_finished: bool
) -> None:
    source, log = entry_log("source"), entry_log("target")
    fill(source, 40)
    delete_before(source, 2 * 4096)
    fill(log, 40)
    position = log.units[3][0]
    save_checkpoint(tmp_path / "target", CommitCheckpoint(30, 40, 0))
    log.close()
    path = tmp_path / "target" / "data" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[position + 200] ^= 1
    path.write_bytes(content)
    log = entry_log("target")
    assert (log.damaged_index, log.durable_index) == (3, 2)
    log.begin_install(source.first_index, source.first_position, source.prev_term, keep=True)
    assert (log.damaged_index, log.durable_index, log.data.min_offset) == (None, 39, source.first_position)
    if is_finished:
        log.finish_install()
    log.close()
    log = entry_log("target")
    assert (log.first_index, log.last_index) == ((source.first_index, 39) if is_finished else (0, -1))
    assert bodies_of(log) == (bodies_of(source) if is_finished else [])


@pytest.mark.parametrize("at", ["reset_to", "roll"])
def test_an_unfinished_install_leaves_an_empty_log(
    entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    log = entry_log()
    fill(log, 40)

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"store.files.mapped_file_queue.MappedFileQueue.{at}", crash)
        log.begin_install(1000, 5 * 4096 + 100, 4)
    again = entry_log()
    assert (again.first_index, again.last_index, again.first_position, again.prev_term) == (0, -1, 0, -1)
    assert again.data.files == []


@pytest.mark.parametrize("intact", [True, False])
def test_a_torn_tail_is_cut_wherever_it_is_torn(entry_log: LogOpener, tmp_path: Path, intact: bool) -> None:
    log = entry_log("whole")
    fill(log, 9)
    before, size, _ = log.units[8]
    log.close()
    whole = {folder: files_of(tmp_path / "whole", folder) for folder in ("data", "index")}
    name = f"{before - before % 4096:020d}"
    for kept in [0, 1, 3, 4, 7, 8, 40, 47, 48, 49, 100, size - 3]:
        torn = tmp_path / f"torn{kept}"
        for folder, files in whole.items():
            (torn / folder).mkdir(parents=True)
            for file, data in files.items():
                (torn / folder / file).write_bytes(data)
        raw = bytearray(whole["data"][name])
        start = before % 4096
        raw[start + kept : start + size] = bytes(size - kept)
        (torn / "data" / name).write_bytes(raw)
        again = entry_log(torn.name, intact=intact)
        assert again.last_index == 7, kept
        assert not again.integrity.damages
        fill(again, 4, term=2)
        assert len(bodies_of(again)) == 12
        again.close()


def test_the_scan_starts_at_the_checkpoint_and_older_rot_is_found_when_read(
    entry_log: LogOpener, tmp_path: Path
) -> None:
    log = entry_log()
    fill(log, 40)
    position, _, _ = log.units[3]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(30, 39, log.max_position))
    log.close()
    path = tmp_path / "log" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[position + 200] ^= 1
    path.write_bytes(raw)
    again = entry_log()
    assert not again.integrity.damages
    assert again.durable_index == 39
    span = again.read(0, 100_000)
    assert span is not None and span.last_index == 2
    assert again.read(3, 100) is None
    (damage,) = again.integrity.damages
    assert (damage.index, damage.file, damage.file_offset) == (3, path, position)
    assert again.durable_index == 39, "it was served and counted long ago"


def test_the_scrub_finds_rot_and_a_copy_repairs_it(entry_log: LogOpener, tmp_path: Path) -> None:
    log, twin = entry_log(), entry_log("twin")
    fill(log, 40)
    replicate(log, twin)
    position, _, _ = log.units[5]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(39, 39, log.max_position))
    log.close()
    path = tmp_path / "log" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[position + HEADER_SIZE + 3] ^= 1
    path.write_bytes(raw)
    again = entry_log()
    found: list[int] = []
    again.integrity.on_damage = lambda damage: found.append(damage.index)
    steps = 0
    while not again.integrity.scrub(0, 2000):
        steps += 1
    assert found == [5] and steps > 3
    copy = copied(twin, 5, 1)
    bad = bytearray(copy.data)
    bad[-1] ^= 1
    with pytest.raises(EntryFormatError, match="cannot be used"):
        again.integrity.write_copy(5, 1, memoryview(bad))
    with pytest.raises(EntryFormatError, match="cannot be a copy of entry 5"):
        again.integrity.write_copy(5, 2, memoryview(copy.data))
    again.integrity.write_copy(5, 1, memoryview(copy.data))
    again.integrity.clear(5)
    assert not again.integrity.damages
    assert bodies_of(again) == bodies_of(twin)


def test_a_bad_committed_entry_blocks_what_follows_it_until_it_is_repaired(
    entry_log: LogOpener, tmp_path: Path
) -> None:
    log, twin = entry_log(), entry_log("twin")
    fill(log, 12)
    replicate(log, twin)
    position, size, _ = log.units[5]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(8, 11, -1))
    log.close()
    path = tmp_path / "log" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[position : position + size] = bytes(size)
    path.write_bytes(raw)
    again = entry_log(intact=False)
    assert [damage.index for damage in again.integrity.damages] == [5]
    assert (again.last_index, again.durable_index, again.integrity.first_blocking) == (11, 4, 5)
    again.integrity.write_copy(5, 1, memoryview(copied(twin, 5, 1).data))
    again.integrity.clear(5)
    assert (again.durable_index, again.integrity.first_blocking) == (11, None)


@pytest.mark.parametrize("index", [0, 5])
def test_a_committed_entry_whose_term_rose_by_a_changed_bit_does_not_end_the_log(
    entry_log: LogOpener, tmp_path: Path, index: int
) -> None:
    """No CRC covers the term, and all later entries look older than it (whole 123 of the simulation)."""
    log = entry_log()
    fill(log, 12)
    position, size, term = log.units[index]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(8, 11, -1))
    log.close()
    path = tmp_path / "log" / "data" / f"{position - position % 4096:020d}"
    raw = bytearray(path.read_bytes())
    raw[position % 4096 + 17] ^= 4  # the term's second byte
    path.write_bytes(raw)
    again = entry_log(intact=False, term_max=term)
    assert [(damage.index, damage.term, damage.size_bytes) for damage in again.integrity.damages] == [
        (index, term, size)
    ]
    assert again.last_index == 11


@pytest.mark.parametrize(
    ("index", "change", "committed"),
    [(0, 1, 0), (0, 1, 8), (5, 1, 5), (5, 1, 8), (8, 1, 8), (5, 2, 8), (6, 4, 6), (9, 2, 9)],
)
@pytest.mark.parametrize("rotten", ["entry", "unit"])
def test_a_changed_term_within_the_terms_of_the_node_is_told_from_a_changed_index_unit(
    entry_log: LogOpener, tmp_path: Path, index: int, change: int, committed: int, rotten: str
) -> None:
    log = entry_log()
    for at in range(12):
        term = 1 if at < 5 else 3 if at < 8 else 5
        draft = term_start_draft(term, "n1", STORE_HOST, at) if at in (0, 5, 8) else make_draft(b"message %d" % at)
        log.append_drafts([draft], term, at)
    position, size, term = log.units[index]
    runs = log.term_runs
    save_checkpoint(tmp_path / "log", CommitCheckpoint(committed, 11, -1 if committed > index else log.max_position))
    log.close()
    name, place = ("data", position + 23) if rotten == "entry" else ("index", index * INDEX_UNIT_SIZE + 31)
    paths = sorted((tmp_path / "log" / name).iterdir())
    number, offset = divmod(place, paths[0].stat().st_size)
    raw = bytearray(paths[number].read_bytes())
    raw[offset] ^= change
    paths[number].write_bytes(raw)
    again = entry_log(intact=False, term_max=8)
    expected = [(index, term, size)] if rotten == "entry" else []
    assert [(damage.index, damage.term, damage.size_bytes) for damage in again.integrity.damages] == expected
    assert (again.last_index, again.term_runs) == (11, runs)
    assert again.units[index] == (position, size, term)


@pytest.mark.parametrize("index", [0, 5])
def test_a_damaged_committed_entry_that_waits_for_a_copy_is_kept_after_a_power_cut(
    entry_log: LogOpener, tmp_path: Path, index: int
) -> None:
    """The checkpoint written meanwhile must go on calling it committed (whole 566 of the simulation)."""
    log = entry_log()
    fill(log, 12)
    position, size, _ = log.units[index]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(index, 11, log.max_position))
    log.close()
    path = tmp_path / "log" / "data" / f"{position - position % 4096:020d}"
    raw = bytearray(path.read_bytes())
    raw[position % 4096 + 1] ^= 2  # the magic's second byte
    path.write_bytes(raw)
    for intact, commit_index in [(True, index), (False, 8), (False, 11)]:
        again = entry_log(intact=intact)
        assert [damage.index for damage in again.integrity.damages] == [index]
        assert (again.last_index, again.durable_index, again.end_position(index)) == (11, index - 1, position + size)
        checkpointer = Checkpointer(tmp_path / "log", again, partial(int, commit_index), lambda error: None)
        save_checkpoint(tmp_path / "log", checkpointer.picture())
        again.close()


@pytest.mark.parametrize("place", [3, 9, 11, 15, 23, 31], ids=["magic", "position", "far", "size", "index", "term"])
@pytest.mark.parametrize("is_entry_damaged", [False, True])
@pytest.mark.parametrize("index", [3, 5, 8])
def test_a_wrong_index_unit_of_an_entry_that_a_start_did_not_scan_is_mended_and_a_damaged_entry_is_too(
    entry_log: LogOpener, tmp_path: Path, index: int, is_entry_damaged: bool, place: int
) -> None:
    log, twin = entry_log(), entry_log("twin")
    fill(log, 12)
    replicate(log, twin)
    expected = log.units[index]
    position, size, term = expected
    save_checkpoint(tmp_path / "log", CommitCheckpoint(11, 11, log.max_position))
    log.close()
    changes = [("index", index * INDEX_UNIT_SIZE + place)]
    changes += [("data", position + size - 1)] if is_entry_damaged else []
    for name, at in changes:
        paths = sorted((tmp_path / "log" / name).iterdir())
        number, offset = divmod(at, paths[0].stat().st_size)
        raw = bytearray(paths[number].read_bytes())
        raw[offset] ^= 4
        paths[number].write_bytes(raw)
    again = entry_log()
    assert is_sound(again, position + HEADER_SIZE) != is_entry_damaged
    if is_entry_damaged:
        (damage,) = again.integrity.damages
        assert (damage.index, damage.term, damage.position, damage.size_bytes) == (index, term, position, size)
        again.integrity.write_copy(index, term, memoryview(copied(twin, index, term).data))
        again.integrity.clear(index)
    assert again.units[index] == expected
    assert bodies_of(again) == bodies_of(twin)


def test_readers_mend_the_index_units_of_a_lost_sector(entry_log: LogOpener, tmp_path: Path) -> None:
    log = entry_log()
    fill(log, 12)
    expected = [log.units[index] for index in range(12)]
    save_checkpoint(tmp_path / "log", CommitCheckpoint(11, 11, log.max_position))
    log.close()
    again = entry_log()
    for index in (4, 5, 6):  # lost after the start, which would rebuild them
        file, at = again.units.slot(index)
        file.buffer[at : at + INDEX_UNIT_SIZE] = bytes(INDEX_UNIT_SIZE)
    assert all(is_sound(again, position + HEADER_SIZE) for position, _, _ in expected)
    assert [again.units[index] for index in range(12)] == expected
    assert not again.integrity.damages


def test_a_bad_entry_before_good_ones_is_kept_after_a_crash_of_the_process_and_cut_after_one_of_the_machine(
    entry_log: LogOpener, tmp_path: Path
) -> None:
    for intact, last, damaged in [(True, 11, [5]), (False, 4, [])]:
        log = entry_log(str(intact))
        fill(log, 12)
        position, _, _ = log.units[5]
        log.close()
        path = tmp_path / str(intact) / "data" / f"{position - position % 4096:020d}"
        raw = bytearray(path.read_bytes())
        raw[position % 4096 + 60] ^= 1
        path.write_bytes(raw)
        again = entry_log(str(intact), intact=intact)
        assert again.last_index == last
        assert [damage.index for damage in again.integrity.damages] == damaged


def test_a_walk_starts_at_a_record_s_start_or_end(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 12)
    all_of_them = list(walk_records(log.data, 0, log.max_position))
    offset, record = all_of_them[3]
    assert list(walk_records(log.data, offset, log.max_position)) == all_of_them[3:]
    assert list(walk_records(log.data, offset + len(record), log.max_position)) == all_of_them[4:]
    assert list(walk_records(log.data, 0, offset + len(record))) == all_of_them[:4]
    assert list(walk_records(log.data, 0, offset + len(record) - 1)) == all_of_them[:3]


def test_batches_hold_the_records_of_a_walk_wherever_it_begins_and_ends(entry_log: LogOpener) -> None:
    log = entry_log()
    fill(log, 24)
    batches = EntryBatches(log.data)
    places = [0, log.max_position]
    for offset, record in walk_records(log.data, 0, log.max_position):
        places += [offset, offset + len(record)]
    for start in places:
        for end in (place + shift for place in places for shift in (-1, 0, 1)):
            expected = [
                (offset, True, unit_fields(offset, record)) for offset, record in walk_records(log.data, start, end)
            ]
            assert list(batches.dispatches(start, end)) == expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=12),
    torn=st.integers(0, 20_000),
    garbage=st.binary(max_size=64),
    intact=st.booleans(),
)
def test_whatever_is_torn_the_log_recovers_to_a_prefix_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], torn: int, garbage: bytes, intact: bool
) -> None:
    root = tmp_path_factory.mktemp("torn")
    log = open_entry_log(root)
    for number, size in enumerate(sizes):
        log.append_drafts([make_draft(b"%05d" % number + b"x" * size)], 1, 1)
    ends = [log.end_position(index) for index in range(len(sizes))]
    torn = min(torn, log.max_position)
    changed = log.max_position  # the first byte that is another: a record may end with zeros, or as the garbage begins
    log.close()
    for path in sorted((root / "data").iterdir()):
        raw = path.read_bytes()
        start = min(max(torn - int(path.name), 0), len(raw))
        left = raw[:start] + garbage[: len(raw) - start].ljust(len(raw) - start, b"\0")
        path.write_bytes(left)
        garbage = b""
        differing = (int(path.name) + place for place in range(start, len(raw)) if raw[place] != left[place])
        changed = min(changed, next(differing, changed))
    again = open_entry_log(root, intact=intact)
    kept = sum(end <= changed for end in ends)
    assert again.last_index == kept - 1
    assert bodies_of(again)[:kept] == [b"%05d" % number for number in range(kept)]
    again.append_drafts([make_draft(b"after")], 2, 2)
    assert bodies_of(again)[-1] == b"after"
    again.close()
