"""Disks that really fail: file systems on loop devices, whose backing is taken away. For root; skipped elsewhere."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MEBIBYTE = 1 << 20


class Disk:
    """An ext4 file system of its own.

    Attributes:
        mount: where it is.
        image: the file that is the disk.
    """

    def __init__(self, mount: Path, image: Path) -> None:
        self.mount = mount
        self.image = image

    def lose_end_of(self, path: Path) -> int:
        """Cut the disk's image at its end, step by step, until a part of a file cannot be read; return its start."""
        os.sync()
        for size in range(self.image.stat().st_size, 0, -2 * MEBIBYTE):
            os.truncate(self.image, size)
            lost = first_unreadable(path)
            if lost is not None:
                return lost
        raise AssertionError(f"{path} is not on this disk")


def first_unreadable(path: Path) -> int | None:
    """Return the position of the first page that cannot be read from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # page by page: a longer read fails as a whole
        for position in range(0, os.fstat(descriptor).st_size, 4096):
            try:
                os.pread(descriptor, 4096, position)
            except OSError:
                return position
        return None
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run(*command: str | Path) -> str:
    """Output of a command.

    Raises:
        pytest.skip.Exception: the command does not work on this machine.
    """
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is not permitted here: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def mounted(options: list[str], mount: Path) -> Iterator[None]:
    mount.mkdir(exist_ok=True)
    run("mount", *options, mount)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Makes disks; with `room_bytes` one fails, rather than being full, once so many bytes are on it."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
        pytest.skip("needs root, losetup and mkfs.ext4 for a file system on a loop device")
    with contextlib.ExitStack() as stack:

        def make(size_bytes: int, *, room_bytes: int | None = None) -> Disk:
            backing = tmp_path / "backing"
            if room_bytes is None:
                backing.mkdir()
            else:
                stack.enter_context(mounted(["-t", "tmpfs", "-o", f"size={room_bytes}", "tmpfs"], backing))
            image = backing / "image"
            with image.open("wb") as file:
                file.truncate(size_bytes)
            run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", image)
            device = run("losetup", "--find", "--show", image)
            stack.callback(subprocess.run, ["losetup", "--detach", device], check=False)
            stack.enter_context(mounted([device], tmp_path / "disk"))
            return Disk(tmp_path / "disk", image)

        yield make
