"""A disk of its own for one node: an ext4 file system in a file, which can be full, dead, or without power.

Its mount belongs to the mount namespace of the process that made it (`own_mounts`), and ends with that process and its
children.

No power: the file system stops at once and does not write what was not synced (FS_IOC_SHUTDOWN of ext4); the next mount
recovers what was synced from the journal. A dead disk stops in the same way under a running node: each call that needs
it fails with EIO.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from node.errors import CommandError

INSTALL = "apt install e2fsprogs mount"
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
_FS_IOC_SHUTDOWN, _WITHOUT_THE_JOURNAL = 0x8004587D, 2
_COMMAND_LIMIT_S = 60.0
_FREE_LIMIT_S = 10.0
_POLL_S = 0.05
_FILLING, _UNSYNCED = "filling", "unsynced"
_PIECES_BYTES = (1 << 24, 1 << 20, 1 << 16, 1 << 12)


def own_mounts() -> None:
    """Give this process a mount namespace of its own; call it before the process has threads.

    Raises:
        CommandError: it is not permitted, or a program is missing; the text says what helps.
    """
    for command in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(command) is None:
            raise CommandError(f"disks of their own need {command}: {INSTALL}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        reason = os.strerror(ctypes.get_errno())
        raise CommandError(f"disks of their own need the rights of root to mount them: run it by sudo ({reason})")


class Disk:
    """The disk of one node. The calls block.

    Args:
        image: the file with the file system; an existing one is used again.
        directory: where it is mounted.
        size_bytes: size of a new one.
    """

    def __init__(self, image: Path, directory: Path, size_bytes: int) -> None:
        self._image = image
        self.directory = directory
        self._size_bytes = size_bytes
        self._has_power = True

    def attach(self) -> None:
        """Mount it, and create it first if it does not exist.

        Raises:
            CommandError: a command fails.
        """
        self.directory.mkdir(exist_ok=True)
        if not self._image.exists():
            with self._image.open("wb") as file:
                file.truncate(self._size_bytes)
            run_command("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        run_command("mount", "-o", "loop", str(self._image), str(self.directory))
        self._has_power = True

    def fill(self) -> str:
        """Fill the disk; return the proof.

        Raises:
            CommandError: there is still room.
        """
        with self._path(_FILLING).open("ab") as file:
            for piece in _PIECES_BYTES:
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
        try:
            self._path("one more").write_bytes(bytes(_PIECES_BYTES[-1]))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return f"{_free_bytes(self.directory):,} bytes are free, and one more file meets {error.strerror!r}"
        finally:
            self._path("one more").unlink(missing_ok=True)
        raise CommandError(f"{self.directory} takes another file though it was filled")

    def fail(self) -> str:
        """Let each call that needs the disk fail from now on; return the proof.

        Raises:
            CommandError: it still works.
        """
        self.stop()
        try:
            self._path("one more").write_bytes(b"")
        except OSError as error:
            return f"a new file meets {error.strerror!r}"
        raise CommandError(f"{self.directory} still works")

    def stop(self) -> None:
        """Cut the power: what is not synced is lost. An unsynced file is left behind for the proof."""
        self._path(_UNSYNCED).write_bytes(bytes(_PIECES_BYTES[-1]))
        self._has_power = False
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, struct.pack("I", _WITHOUT_THE_JOURNAL))
        finally:
            os.close(descriptor)

    def restart(self) -> str:
        """Mount it again after `stop`, while no process uses it; return the proof that unsynced bytes are lost.

        Raises:
            CommandError: they are not, or a command fails.
        """
        self.detach()
        self.attach()
        left = self._path(_UNSYNCED)
        if left.exists() and left.stat().st_size:
            left.unlink()
            raise CommandError(f"{left} was not synced, and is there after the power cut")
        return "what was written and not synced is lost"

    def replace(self) -> str:
        """Replace it by an empty disk, while no process uses it; return the proof."""
        self.detach()
        self._image.unlink()
        self.attach()
        return "an empty disk is mounted"

    def heal(self) -> None:
        """Free the room that `fill` took."""
        if self._has_power:
            self._path(_FILLING).unlink(missing_ok=True)

    @property
    def has_power(self) -> bool:
        """Whether it works."""
        return self._has_power

    def free_bytes(self) -> int:
        """Return the free room."""
        return _free_bytes(self.directory)

    def close(self) -> None:
        """Unmount it if no process uses it; otherwise the mount ends with the last process of its namespace."""
        with contextlib.suppress(CommandError):
            run_command("umount", str(self.directory))

    def detach(self) -> None:
        """Unmount it.

        Raises:
            CommandError: a process uses it.
        """
        deadline = time.monotonic() + _FREE_LIMIT_S
        while True:
            try:
                return run_command("umount", str(self.directory))
            except CommandError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _path(self, name: str) -> Path:
        return self.directory / name


def _free_bytes(directory: Path) -> int:
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def run_command(*words: str) -> None:
    """Run a program of the system to its end.

    Raises:
        CommandError: it fails; the text has its output.
    """
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S)
    if done.returncode != 0:
        raise CommandError(f"{' '.join(words)}: {done.stderr.strip() or f'exit {done.returncode}'}")
