"""The file of the queues' ends while the store is open, and queues that a start does not look at because of it."""

import errno
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from store.queues import queue_files
from store.queues.queue_ends import EndsFile, QueueEnds, changed_at, read_ends
from store.queues.queue_table import QueueTable
from tests.store.support import queue_table

ENDS = QueueEnds(0, 100, 1, 10, (("T", 0, 0, 1, 5, b""),))


def test_a_removal_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EIO, "lost", str(path))

    file = EndsFile(tmp_path)
    file.write(ENDS, file.lineage, has_all=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(OSError, match="lost"):
            file.invalidate()
    assert len(read_ends(tmp_path)) == 1
    file.invalidate()
    assert read_ends(tmp_path) == []


def test_a_log_that_starts_anew_leaves_no_file_of_queues_that_the_start_did_not_look_at(tmp_path: Path) -> None:
    """Else the old file and the new one have a gap between them, behind which files are deleted."""
    killed = queue_table(tmp_path)
    for topic in ("Goes on", "Goes"):
        killed.get(topic, 0).put(0, 100, 7, 0)
    killed.close()
    table = queue_table(tmp_path)
    assert table.load_known(QueueEnds(0, 0, 0, 10, (), boot="this one"))
    table.restart({"Goes on": {0: 25}})
    table.get("Goes on", 0).put(5000, 100, 7, 25)
    table.take_changed()
    ends = replace(table.ends(5100), boot="this one")
    table.close()
    again = queue_table(tmp_path)
    assert again.load_known(ends)
    assert again.get("Goes on", 0).unit(25) == (5000, 100, 7)
    assert [path.parts[-3:] for path in (tmp_path / "consumequeue").glob("*/*/*")] == [
        ("Goes on", "0", "00000000000000000400")
    ]
    again.close()


def test_only_folders_of_queues_with_a_file_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of queues may hold all their units in memory, so that none of them has a folder."""
    look = mock.Mock(wraps=changed_at)
    monkeypatch.setattr(queue_files, "changed_at", look)
    table = QueueTable(tmp_path / "consumequeue", hold_from=0)
    queue = table.get("T", 0)
    queue.put(0, 100, 7, 0)
    table.take_changed()
    assert table.ends(100).queues == (("T", 0, 0, 1, 0, b""),)
    look.assert_not_called()
    queue.write_held()
    table.close()
    ((_, _, _, _, changed, _),) = table.ends(100).queues
    assert changed == (tmp_path / "consumequeue" / "T" / "0").stat().st_mtime_ns
    look.assert_called_once()
