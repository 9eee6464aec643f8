"""The thread that makes files ahead: a full disk is said once and asked again, a slow one is not waited for forever."""

import os
import threading
from pathlib import Path

import pytest

from store.errors import AllocationPendingError, DiskFullError
from store.files.allocator import FULL_RETRY_S, FileAllocator
from store.files.mapped_file import MappedFile, file_name
from tests.limits import WAIT_S
from tests.store.test_mapped_file import refuse_allocation

SIZE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / file_name(0)


def test_a_file_is_made_in_another_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    make = MappedFile.__init__

    def noting(self: MappedFile, *arguments: object) -> None:
        threads.append(threading.current_thread().name)
        make(self, *arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(MappedFile, "__init__", noting)
    allocator = FileAllocator()
    assert allocator.take(path, 0, SIZE).path == path
    allocator.close()
    assert threads == ["ledgermq-allocator_0"]


def test_a_full_disk_is_the_same_answer_for_a_while_and_then_asked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    allocator = FileAllocator(clock=lambda: now)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        with pytest.raises(DiskFullError, match="no room on the disk for 4096 bytes"):
            allocator.take(path, 0, SIZE)
    with pytest.raises(DiskFullError):
        allocator.take(path, 0, SIZE)
    now += FULL_RETRY_S
    assert allocator.take(path, 0, SIZE).size_bytes == SIZE
    allocator.close()


def test_a_file_that_could_not_be_made_ahead_is_tried_again_when_it_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = FileAllocator()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        allocator.request(path, 0, SIZE)
        allocator._executor.submit(lambda: None).result()
    assert allocator.take(path, 0, SIZE).size_bytes == SIZE
    allocator.close()


def test_a_disk_that_is_too_slow_is_a_typed_error_and_the_file_is_there_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    allocate = os.posix_fallocate

    def slow(descriptor: int, start: int, size: int) -> None:
        gate.wait(WAIT_S)
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", slow)
    allocator = FileAllocator(wait_s=0.01)
    with pytest.raises(AllocationPendingError) as caught:
        allocator.take(path, 0, SIZE)
    assert caught.value.file == path
    gate.set()
    allocator._executor.submit(lambda: None).result()
    assert allocator.take(path, 0, SIZE).size_bytes == SIZE
    allocator.close()
