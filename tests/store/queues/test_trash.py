"""Folders of topics that are deleted: gone at once, removed in a thread, and by the next start at the latest."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import DiskFailedError
from store.files.trash import Trash
from store.queues.queue_table import QueueTable
from tests.limits import WAIT_S


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


def test_a_topic_can_be_made_again_while_its_old_files_are_still_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = QueueTable(tmp_path / "consumequeue", 200)
    for queue_id in range(3):
        table.get("T", queue_id).put(0, 100, 0, 0)
    with monkeypatch.context() as patch:
        patch.setattr("store.files.trash.Trash._remove", lambda trash, folders: None)
        table.delete_topic("T")
    assert not (tmp_path / "consumequeue" / "T").exists()
    assert table.of_topic("T") == []
    again = table.get("T", 1)
    again.put(500, 100, 0, 0)
    assert again.unit(0) == (500, 100, 0)
    assert len(list((tmp_path / ".trash").iterdir())) == 1
    table.close()
    table = QueueTable(tmp_path / "consumequeue", 200)
    table.load()
    wait_for(lambda: not (tmp_path / ".trash").exists())
    assert [(queue.topic, queue.queue_id) for queue in table] == [("T", 1)]
    table.close()


def test_what_is_taken_is_removed(tmp_path: Path) -> None:
    trash = Trash(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(b"x")
        trash.take(tmp_path / name)
    trash.take(tmp_path / "missing")
    wait_for(lambda: not list(tmp_path.iterdir()))


def test_a_folder_that_cannot_be_moved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", fails)
        with pytest.raises(DiskFailedError, match="Input/output error"):
            Trash(tmp_path).take(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_folders_come_while_others_go(tmp_path: Path) -> None:
    # Each removal puts the empty trash away, between any two steps of the next taking.
    trash = Trash(tmp_path)
    for number in range(500):
        folder = tmp_path / str(number)
        folder.mkdir()
        trash.take(folder)
        assert not folder.exists()


def test_what_a_crash_left_is_not_in_the_way_of_a_process_with_the_same_number(tmp_path: Path) -> None:
    # In a container the broker has the same process id again and again.
    left = tmp_path / ".trash" / f"{os.getpid()}-0"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"x")
    (tmp_path / "a" / "deep").mkdir(parents=True)
    Trash(tmp_path).take(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("step", ["mkdir", "rename"])
def test_on_a_full_disk_a_folder_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    # Whoever deletes a topic of a full disk wants the room; and nothing is dispatched while it cannot be deleted.
    (tmp_path / "a" / "deep").mkdir(parents=True)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"pathlib.Path.{step}", fails)
        Trash(tmp_path).take(tmp_path / "a")
    assert not (tmp_path / "a").exists()
