"""What may be a store's directory: refused with a reason and untouched when it may not."""

import os
from pathlib import Path

import pytest

from store.directory.ownership import ensure_store
from store.directory.store_directory import StoreDirectory
from store.errors import DiskFailedError, StoreFormatError
from tests.store.files.conftest import mounted


@pytest.mark.parametrize("names", [[], ["lost+found", "logs", "broker.conf", ".snapshot"], ["commitlog", "photos"]])
def test_an_empty_folder_and_a_store_s_are_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    ensure_store(tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("b", "a", "d", "c"):
        (tmp_path / name).touch()
    with pytest.raises(StoreFormatError, match=r"is not a store: it holds a, b, c, \.\.\.; name an empty folder"):
        StoreDirectory(tmp_path, "classic")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "d"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailedError, match="cannot be made"):
        StoreDirectory(tmp_path / "file", "classic")


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    StoreDirectory(tmp_path, "classic").close(clean=True)
    with (
        mounted(["--bind", "-o", "ro", str(tmp_path)], tmp_path.parent / "view"),
        pytest.raises(DiskFailedError, match="is read-only for this process"),
    ):
        StoreDirectory(tmp_path.parent / "view", "classic")


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(DiskFailedError, match="is read-only for this process"):
        StoreDirectory(tmp_path, "classic")
