"""The journal of a controller after a crash at any step, and when a file is damaged."""

import contextlib
import threading
import time
from pathlib import Path

import pytest

from ha.controller.errors import QuorumFileError
from ha.controller.quorum.journal import JOURNAL, VOTE, QuorumJournal
from ha.controller.quorum.snapshot_file import Entry, Snapshot, encode_snapshot, read_snapshot
from tests.descriptors import limited_descriptors


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [(b"command %d" % index, index, term) for index in range(first, last + 1)]


def filled(folder: Path, first: int = 1, last: int = 10) -> QuorumJournal:
    journal = QuorumJournal(folder, None)
    for entry in entries(first, last):
        journal.add(*entry)
    return journal


def reopened(folder: Path, journal: QuorumJournal, snapshot: Snapshot | None = None) -> QuorumJournal:
    journal._destroy()
    return QuorumJournal(folder, snapshot)


def test_entries_term_and_vote_are_there_again(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.setCurrentTerm(7, "127.0.0.1:1")
    journal.become_sound()
    again = reopened(tmp_path, journal)
    assert again[:] == entries(1, 10)
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.is_sound) == (7, "127.0.0.1:1", True)
    assert (again.term_of(10), again.term_of(11), again.term_of(0)) == (1, None, None)
    again._destroy()


def test_the_end_is_cut_and_written_again(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.deleteEntriesFrom(6)
    journal.add(b"other", 7, 2)
    again = reopened(tmp_path, journal)
    assert again[:] == [*entries(1, 6), (b"other", 7, 2)]
    again.clear()
    again.add(b"first", 40, 3)
    last = reopened(tmp_path, again, snapshot_at(41))
    assert len(last) == 1
    last.deleteEntriesFrom(0)
    assert len(last) == 0
    last._destroy()


def test_a_record_torn_anywhere_is_cut(tmp_path: Path) -> None:
    """The process or the machine died while the last entry was written: at each length of it."""
    filled(tmp_path)._destroy()
    whole = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / "shorter").mkdir()
    filled(tmp_path / "shorter", 1, 9)._destroy()
    begin = len((tmp_path / "shorter" / JOURNAL).read_bytes())
    for end in range(begin, len(whole)):
        (tmp_path / JOURNAL).write_bytes(whole[:end])
        journal = QuorumJournal(tmp_path, None)
        assert journal[:] == entries(1, 9)
        journal.add(*entries(10, 10)[0])
        journal._destroy()
        assert (tmp_path / JOURNAL).read_bytes() == whole
    (tmp_path / JOURNAL).write_bytes(whole[:-3] + bytes(3))  # the length is there, the last page is not
    journal = QuorumJournal(tmp_path, None)
    assert journal[:] == entries(1, 9)
    journal._destroy()


def test_a_record_damaged_in_the_middle_ends_the_start(tmp_path: Path) -> None:
    filled(tmp_path)._destroy()
    data = bytearray((tmp_path / JOURNAL).read_bytes())
    data[60] ^= 1
    (tmp_path / JOURNAL).write_bytes(data)
    with pytest.raises(QuorumFileError, match="is damaged at byte"):
        QuorumJournal(tmp_path, None)
    assert (tmp_path / JOURNAL).read_bytes() == data


def snapshot_at(index: int) -> Snapshot:
    """Of the state after that entry."""
    previous, last = entries(index - 1, index)
    return Snapshot(b"state", previous, last)


def test_a_crash_between_snapshot_and_trimming_loses_nothing(tmp_path: Path) -> None:
    """PySyncObj takes the snapshot for another history if the journal does not begin with it, and drops the journal."""
    journal = reopened(tmp_path, filled(tmp_path), snapshot_at(6))
    assert journal[:] == entries(5, 10)
    again = reopened(tmp_path, journal, snapshot_at(6))
    assert again[:] == entries(5, 10)
    again._destroy()


def test_trimming_is_done_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(tmp_path)
    monkeypatch.setattr(Path, "replace", _crash)
    with pytest.raises(OSError, match="crash"):
        journal.deleteEntriesTo(4)
    monkeypatch.undo()
    again = reopened(tmp_path, journal)
    assert again[:] == entries(1, 10)
    again.deleteEntriesTo(4)
    trimmed = reopened(tmp_path, again, snapshot_at(6))
    assert trimmed[:] == entries(5, 10)
    trimmed.add(*entries(11, 11)[0])
    last = reopened(tmp_path, trimmed, snapshot_at(6))
    assert last[:] == entries(5, 11)
    last._destroy()


def _crash(self: Path, target: Path) -> None:
    raise OSError("crash")


def test_a_journal_that_ends_before_the_snapshot_is_left_to_the_snapshot(tmp_path: Path) -> None:
    """The leader sent a snapshot, and this member died before it began its journal anew."""
    journal = reopened(tmp_path, filled(tmp_path), snapshot_at(40))
    assert journal[:] == entries(1, 10)
    journal._destroy()


@pytest.mark.parametrize("snapshot", [None, snapshot_at(3)])
def test_a_gap_between_snapshot_and_journal_ends_the_start(tmp_path: Path, snapshot: Snapshot | None) -> None:
    journal = filled(tmp_path)
    journal.deleteEntriesTo(4)
    journal._destroy()
    with pytest.raises(QuorumFileError, match="begins at entry 5, and"):
        QuorumJournal(tmp_path, snapshot)


def test_a_vote_is_never_forgotten_in_silence(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.become_sound()
    journal._destroy()
    vote = (tmp_path / VOTE).read_bytes()
    (tmp_path / VOTE).write_bytes(vote[:-4])
    with pytest.raises(QuorumFileError, match="vote is damaged"):
        QuorumJournal(tmp_path, None)
    (tmp_path / VOTE).unlink()
    with pytest.raises(QuorumFileError, match="a vote may be forgotten"):
        QuorumJournal(tmp_path, None)
    (tmp_path / VOTE).write_bytes(vote)
    (tmp_path / JOURNAL).unlink()
    with pytest.raises(QuorumFileError, match="journal is not there, but vote is"):
        QuorumJournal(tmp_path, None)


def test_an_entry_is_on_the_disk_before_it_is_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(tmp_path, 1, 3)
    monkeypatch.setattr("os.fdatasync", _fail)
    with pytest.raises(OSError, match="disk"):
        journal.add(b"x", 4, 1)
    assert len(journal) == 3
    journal._destroy()


def _fail(descriptor: int) -> None:
    raise OSError("disk")


def test_a_snapshot_comes_back_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    assert read_snapshot(path) is None
    data = encode_snapshot(snapshot_at(6))
    path.write_bytes(data)
    assert read_snapshot(path) == snapshot_at(6)
    for at in range(len(data)):
        path.write_bytes(data[:at])
        with pytest.raises(QuorumFileError):
            read_snapshot(path)


def test_a_vote_waits_for_a_descriptor_and_the_controller_does_not_end(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    with contextlib.ExitStack() as limits:
        limits.enter_context(limited_descriptors())
        began = time.monotonic()
        threading.Timer(0.2, limits.close).start()
        journal.setCurrentTerm(7, "127.0.0.1:1")
        assert time.monotonic() - began >= 0.2
    again = reopened(tmp_path, journal)
    assert again.getCurrentTerm() == 7
    again._destroy()
