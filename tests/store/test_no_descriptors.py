"""Where no file can be opened, nothing has changed and a later try may succeed: as on a full disk, and not for good."""

from pathlib import Path

import pytest

from dledger.log.small_file import write_durably
from store.errors import DiskFullError, NoDescriptorError
from store.files.disk import create_file, no_room
from tests.descriptors import limited_descriptors


def test_a_log_file_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    with limited_descriptors(), pytest.raises(NoDescriptorError, match="no file descriptor is left") as refused:
        create_file(tmp_path / "0", 4096)
    assert isinstance(refused.value, DiskFullError), "whoever waits for room waits for this, too"
    assert no_room(tmp_path) is None, "the disk is not full"
    assert list(tmp_path.iterdir()) == []


def test_a_term_that_cannot_be_saved_is_saved_later(tmp_path: Path) -> None:
    path = tmp_path / "currterm"
    write_durably(path, b"old")
    with limited_descriptors(), pytest.raises(DiskFullError):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
