"""Folders whose makers were killed before the names were durable."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.log.identity import make_directory
from store.compaction.compaction_store import CompactionStore
from store.compaction.config import CompactionConfig
from store.compaction.segment_replacement import QueueFolders
from store.directory.store_directory import StoreDirectory
from store.errors import DiskFailedError, NoDescriptorError
from store.files.folders import make_folder, open_folder
from store.files.mapped_file_queue import MappedFileQueue
from store.queues.queue_table import QueueTable
from tests.descriptors import limited_descriptors


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are synced, in order; nothing is."""
    synced: list[Path] = []
    monkeypatch.setattr("store.files.folders.sync_directory", synced.append)
    return synced


def test_what_opens_a_store_makes_names_of_folders_durable_that_are_there(tmp_path: Path, synced: list[Path]) -> None:
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    StoreDirectory(root, "classic").close(clean=True)
    MappedFileQueue(root / "commitlog", 4096)
    assert synced == [tmp_path, root]


def open_compaction(folder: Path) -> None:
    CompactionStore(folder.parent, CompactionConfig(), lambda _: {}).load(clean=True)


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("consumequeue", lambda folder: QueueTable(folder, 400).close()),
        ("dledger-n0", lambda folder: make_directory(folder.parent, "n0")),
        ("compaction", open_compaction),
    ],
)
def test_what_opens_another_folder_makes_its_name_durable_that_is_there(
    tmp_path: Path, synced: list[Path], name: str, opening: Callable[[Path], object]
) -> None:
    (tmp_path / name).mkdir()
    opening(tmp_path / name)
    assert tmp_path in synced


@pytest.mark.parametrize(
    ("opening", "name"), [(open_folder, "there"), (open_folder, "missing"), (make_folder, "missing")]
)
def test_a_folder_whose_name_cannot_be_made_durable_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: Callable[[Path], None], name: str
) -> None:
    (tmp_path / "there").mkdir()

    def fail(_: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFailedError):
        opening(tmp_path / name)


def test_a_new_folder_in_one_that_may_not_be_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name cannot be made durable."""

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("store.files.folders.sync_directory", refuse)
    with pytest.raises(DiskFailedError):
        make_folder(tmp_path / "a")


def test_a_folder_that_another_process_makes_at_the_same_moment_is_used(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def look_too_early(path: Path) -> bool:
        was_there = is_dir(path)
        if not was_there:
            path.mkdir()
        return was_there

    monkeypatch.setattr(Path, "is_dir", look_too_early)
    make_folder(tmp_path / "a")
    assert synced == [tmp_path]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_waits_for_a_descriptor(tmp_path: Path, is_there: bool) -> None:
    with limited_descriptors(), pytest.raises(NoDescriptorError):
        open_folder(tmp_path if is_there else tmp_path / "a")


def test_a_folder_above_that_may_not_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("store.files.folders.sync_directory", refuse)
    open_folder(tmp_path)


def test_the_name_of_a_folder_above_one_that_is_missing_is_made_durable(tmp_path: Path, synced: list[Path]) -> None:
    """Its maker was killed between `mkdir a` and the sync of the folder above."""
    (tmp_path / "a").mkdir()
    open_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_the_folder_above_a_mount_is_left_alone(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies on another file system, which may sync no folders."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    open_folder(tmp_path)
    assert not synced


def test_names_of_folders_of_a_compacted_queue_are_made_durable_when_it_is_opened(
    tmp_path: Path, synced: list[Path]
) -> None:
    place = QueueFolders(tmp_path / "log" / "T" / "0", tmp_path / "units" / "T" / "0")
    place.make()
    synced.clear()
    place.make()
    assert {place.log.parent, place.units.parent} <= set(synced)
