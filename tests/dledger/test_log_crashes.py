"""The entry log after a crash at a bad moment: between two writes, or behind a sync that failed."""

from pathlib import Path

import pytest

from dledger.log.entry import FILLER, FILLER_MAGIC, FILLER_SIZE
from dledger.log.entry_log import EntryLog
from store.errors import DiskFullError
from store.files.mapped_file import MappedFile
from tests.dledger.conftest import LogOpener, make_draft
from tests.dledger.test_log import bodies_of, copied, replicate

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

    leader.append_drafts([make_draft(b"small")], 2, 2000)  # another leader goes on in the first file
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


def _no_room(file: MappedFile, data: memoryview) -> None:
    raise DiskFullError(file.path, len(data))
