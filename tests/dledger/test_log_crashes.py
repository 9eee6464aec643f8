"""The entry log after a crash at a bad moment: between two writes, or behind a sync that failed."""

import os
from pathlib import Path

import pytest

from dledger.log.commit_checkpoint import CommitCheckpoint, save_checkpoint
from dledger.log.entry import FILLER, FILLER_MAGIC, FILLER_SIZE, encode_entry
from dledger.log.entry_log import EntryLog
from store.errors import DiskFullError
from store.files.mapped_file import MappedFile
from tests.dledger.conftest import STORE_HOST, LogOpener, make_draft
from tests.dledger.test_log import bodies_of, copied, fill, replicate
from tests.page_cache import PageCache

FILE_SIZE = 4096


def fill_one_file(log: EntryLog) -> int:
    """Entries until the first file takes no further one of this size; where they end."""
    while log.max_position + 900 < FILE_SIZE:
        log.append_drafts([make_draft(b"%05d" % (log.last_index + 1) + b"x" * 300)], 1, 1000)
    return log.max_position


def test_a_filler_without_an_entry_behind_it_does_not_count(entry_log: LogOpener, tmp_path: Path) -> None:
    crashed, leader = entry_log("crashed"), entry_log("leader")
    end = fill_one_file(crashed)
    replicate(crashed, leader)
    last = crashed.last_index
    crashed.append_drafts([make_draft(bytes(FILE_SIZE - end))], 1, 1000)  # fits into the next file only
    assert crashed.max_position > FILE_SIZE
    crashed.close()
    data = tmp_path / "crashed" / "data"
    (data / f"{FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))  # the filler reached the disk, what follows did not
    assert (data / f"{0:020d}").read_bytes()[end : end + FILLER_SIZE] == FILLER.pack(FILLER_MAGIC, FILE_SIZE - end)

    fill(leader, 1, term=2, size=0)  # another leader goes on in the first file
    again = entry_log("crashed", intact=False)
    assert (again.last_index, again.max_position) == (last, end)
    again.append_span(copied(leader, last + 1))
    leader.append_drafts([make_draft(bytes(FILE_SIZE - end))], 2, 2000)
    again.append_span(copied(leader, last + 2))
    again.close()
    assert bodies_of(entry_log("crashed", intact=False)) == bodies_of(leader)


def test_a_span_that_the_next_file_refuses_leaves_no_filler(
    entry_log: LogOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = entry_log("leader"), entry_log("follower")
    end = fill_one_file(leader)
    replicate(leader, follower)
    last = leader.last_index
    leader.append_drafts([make_draft(bytes(FILE_SIZE - end))], 1, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "write", _no_room)
        with pytest.raises(DiskFullError):
            follower.append_span(copied(leader, last + 1))
    assert follower.max_position == end
    leader.truncate_after(last)
    leader.append_drafts([make_draft(b"small")], 2, 2000)
    follower.append_span(copied(leader, last + 1))
    assert bodies_of(follower) == bodies_of(leader)


@pytest.mark.parametrize(("has_checkpoint", "file_size"), [(False, 1 << 16), (False, 4096), (True, 4096)])
def test_what_a_failed_sync_lost_is_written_again_at_the_next_start(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool, file_size: int
) -> None:
    cache = PageCache(tmp_path, monkeypatch)
    log = entry_log(file_size=file_size)
    fill(log, 20)
    if has_checkpoint:
        for file in log.data.files:
            file.sync()
        save_checkpoint(tmp_path / "log", CommitCheckpoint(10, log.last_index, log.max_position))
    fill(log, 20)
    cache.is_failing = True
    for file in log.data.files:
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    log.close()
    cache.is_failing = False
    assert any(cache.lost[name] for name in cache.lost if name.startswith("log/data"))
    again = entry_log(file_size=file_size)
    assert again.durable_index == again.last_index == 39  # counts as durable
    assert {name: len(lost) for name, lost in cache.lost.items() if lost and name.startswith("log/data")} == {}


def test_what_a_failed_sync_lost_behind_a_truncation_is_written_again(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PageCache(tmp_path, monkeypatch)
    log = entry_log(file_size=1 << 16)
    fill(log, 40)
    for file in log.data.files:
        file.sync()
    save_checkpoint(tmp_path / "log", CommitCheckpoint(10, log.last_index, log.max_position))
    log.truncate_after(15)
    fill(log, 10, term=2)  # where the checkpoint says that all is durable
    cache.is_failing = True
    for file in log.data.files:
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    log.close()
    cache.is_failing = False
    assert any(cache.lost[name] for name in cache.lost if name.startswith("log/data"))
    again = entry_log(file_size=1 << 16)
    assert again.durable_index == again.last_index == 25
    assert {name: len(lost) for name, lost in cache.lost.items() if lost and name.startswith("log/data")} == {}


@pytest.mark.parametrize("committed", [-1, 3])
def test_units_of_entries_dropped_behind_the_checkpoint_are_not_believed(
    entry_log: LogOpener, tmp_path: Path, committed: int
) -> None:
    log = entry_log()
    fill(log, 40)
    save_checkpoint(tmp_path / "log", CommitCheckpoint(committed, log.last_index, log.max_position))
    index = next((tmp_path / "log" / "index").iterdir())
    durable_units = index.read_bytes()
    log.truncate_after(3)
    while log.max_position < 4 * FILE_SIZE:
        fill(log, 1, term=2, size=200)
    expected = bodies_of(log)
    log.close()
    index.write_bytes(durable_units)  # the data was synced since, the index was not
    again = entry_log(intact=False)
    assert bodies_of(again) == expected
    assert [again.term_at(index) for index in (3, 4, 5)] == [1, 2, 2]


def _no_room(file: MappedFile, data: memoryview) -> None:
    raise DiskFullError(file.path, len(data))


def test_recovery_cuts_where_the_term_falls(entry_log: LogOpener, tmp_path: Path) -> None:
    """What a term-5 leader overwrote must not count again behind its entries, however well it fits."""
    log = entry_log()
    fill(log, 3, term=5, batch=1)
    end, last = log.max_position, log.last_index
    log.close()
    record = bytes(log_record(b"older"))
    stale = encode_entry(last + 1, 3, end, record)
    path = tmp_path / "log" / "data" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(end)
        file.write(stale)
    again = entry_log(intact=False)
    assert (again.last_index, again.max_position) == (last, end)


def log_record(body: bytes) -> bytes:
    draft = make_draft(body)
    draft.store_timestamp, draft.physical_offset = 1000, 0
    return b"".join(draft.pieces(STORE_HOST))


def test_what_a_start_finds_is_durable_when_it_returns(
    entry_log: LogOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = entry_log()
    fill(log, 40)  # never synced: the process is killed
    names = {file.path.name for file in log.data.files}
    log.close()
    synced: set[str] = set()
    original = os.fdatasync

    def sync(descriptor: int) -> None:
        original(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr("os.fdatasync", sync)
    again = entry_log()
    assert again.durable_index == again.last_index == 39
    assert names <= synced
