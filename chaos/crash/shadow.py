"""Shadow: the durable state of a directory, kept beside the real files while a program writes into them.

    program --os.pwrite, mapped stores--> files in memory (tmpfs): what the page cache holds
            --os.fdatasync, os.fsync----> shadow: contents and names as of the last sync

`chaos.crash.recorder` keeps every state of a directory, for all images of one run. A shadow cheaply keeps only the last
synced state, for simulations with a power cut now and then. Both give a `Moment` to `chaos.crash.disk`.

A sync that fails marks the dirty pages clean, as Linux does: they stay in the page cache, and no later sync writes them
unless the program stores into the page again. A store into a mapping is noticed by its change of the content only: of
one that restores what was there the caller tells by `written`.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from chaos.crash.disk import DirectoryState, FileState, Moment, NameChange

PAGE = 4096
"""Size of a page, the unit of dirtiness in Linux's page cache."""


class _File:
    """`durable`: content on the disk. `lost`: by number, content of pages that count as clean but are not on disk."""

    __slots__ = ("durable", "lost")

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.lost: dict[int, bytes] = {}


class _Directory:
    __slots__ = ("durable", "names", "steps")

    def __init__(self) -> None:
        self.durable: NameChange = {}
        self.names: dict[str, int] = {}
        self.steps: list[NameChange] = []


class Shadow:
    """The durable state of everything below `root`; what exists at the start counts as synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root_inode = root.stat().st_ino
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        for folder, _, names in os.walk(root):
            self._directory_synced(folder)
            for name in names:
                path = Path(folder, name)
                self._files[path.stat().st_ino] = _File(path.read_bytes())

    # -- calls of the program

    def written(self, file_: int | Path, start: int, size: int) -> None:
        """Note that this range of a file, given by its descriptor or path, was written: its pages are dirty now."""
        file = self._files.get(os.stat(file_).st_ino)  # noqa: PTH116 - or a descriptor
        if file is not None and file.lost:
            for page in range(start // PAGE, -(-(start + size) // PAGE)):
                file.lost.pop(page, None)

    def emptied(self, descriptor: int) -> None:
        """Note that a file was opened with truncation: everything written next is dirty."""
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is not None:
            file.lost.clear()

    def synced(self, descriptor: int, began: Mapping[int, bytes], *, has_failed: bool = False) -> None:
        """Note that a sync of a file or directory returns, or fails.

        Args:
            descriptor: of the file or directory.
            has_failed: the disk refused.
            began: by inode, the content of files when the syncs that return now began; only that is covered.
        """
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            content = began.get(status.st_ino)
            if content is None:
                content = content_of(descriptor)
            self._file_synced(status.st_ino, content, has_failed=has_failed)
        elif not has_failed:
            self._directory_synced(descriptor)

    def all_synced(self, *, has_failed: bool = False) -> None:
        """Note that a sync of the whole file system returns, or fails."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                self._file_synced(path.stat().st_ino, path.read_bytes(), has_failed=has_failed)
            if not has_failed:
                self._directory_synced(folder)

    def names_change(self, folder: Path | str) -> None:
        """Note the names of a directory, before and after they change."""
        if os.path.isdir(folder):  # noqa: PTH112 - on the way of every file call
            self._look(folder)

    def _file_synced(self, inode: int, content: bytes, *, has_failed: bool) -> None:
        file = self._files.get(inode)
        if file is None:
            file = self._files[inode] = _File(b"")
        if has_failed:
            for page in range(-(-len(content) // PAGE)):
                now = content[page * PAGE : (page + 1) * PAGE]
                if now != file.durable[page * PAGE : (page + 1) * PAGE]:
                    file.lost[page] = now
            return
        if not file.lost:
            file.durable = content
            return
        durable = bytearray(content)
        for page, clean in list(file.lost.items()):
            start, end = page * PAGE, (page + 1) * PAGE
            if content[start:end] != clean:
                del file.lost[page]  # stored into again
            else:
                durable[start : start + len(clean)] = file.durable[start:end].ljust(len(clean), b"\0")
        file.durable = bytes(durable)

    def _directory_synced(self, folder: Path | str | int) -> None:
        directory = self._look(folder)
        directory.durable = dict(directory.names)
        directory.steps.clear()

    def _look(self, folder: Path | str | int) -> _Directory:
        directory = self._directories.setdefault(os.stat(folder).st_ino, _Directory())  # noqa: PTH116 - or a descriptor
        with os.scandir(folder) as found:
            entries = list(found)
        names = {entry.name: entry.inode() for entry in entries}
        before = directory.names
        if names != before:
            for entry in entries:
                inode = entry.inode()
                if before.get(entry.name) != inode and inode not in self._files and entry.is_dir():
                    self._directories.setdefault(inode, _Directory())
            step: NameChange = {name: node for name, node in names.items() if before.get(name) != node}
            step.update({name: None for name in before if name not in names})
            directory.steps.append(step)
            directory.names = names
        return directory

    # -- the durable state

    def durable_part(self, inode: int, start: int, end: int) -> bytes:
        """Return the durable bytes `[start, end)` of a file; fewer if it is shorter."""
        file = self._files.get(inode)
        return b"" if file is None else file.durable[start:end]

    def durable_file(self, path: str) -> bytes | None:
        """Return the durable content of the file with this durable path below the root; None without one."""
        node: int | None = self._root_inode
        for name in path.split("/"):
            directory = None if node is None else self._directories.get(node)
            node = None if directory is None else directory.durable.get(name)
        file = None if node is None else self._files.get(node)
        return None if file is None else file.durable

    def moment(self) -> Moment:
        """Return the states that a power cut now may leave, for `chaos.crash.disk.image_of`."""
        files: dict[int, FileState] = {}
        for folder, _, names in os.walk(self.root):
            self._look(folder)
            for name in names:
                path = Path(folder, name)
                inode = path.stat().st_ino
                files[inode] = self._file_state(inode, path.read_bytes())
        for directory in self._directories.values():
            for change in (directory.durable, *directory.steps):
                for node in change.values():
                    if node is not None and node not in files and node not in self._directories:
                        unlinked = self._files.get(node)  # its removal or replacement is not durable
                        files[node] = FileState((b"" if unlinked is None else unlinked.durable,))
        directories = {inode: DirectoryState(dict(d.durable), tuple(d.steps)) for inode, d in self._directories.items()}
        return Moment("", 0, self.root.stat().st_ino, files, directories)

    def _file_state(self, inode: int, content: bytes) -> FileState:
        file = self._files.get(inode)
        if file is None:
            return FileState((b"", content))
        if not file.lost:
            return FileState((file.durable,) if file.durable == content else (file.durable, content))
        written = bytearray(content)
        for page, clean in file.lost.items():  # these pages count as clean, so nothing writes them
            start = page * PAGE
            if content[start : start + PAGE] == clean:
                written[start : start + len(clean)] = file.durable[start : start + PAGE].ljust(len(clean), b"\0")
        return FileState((file.durable, bytes(written)))


def content_of(descriptor: int) -> bytes:
    """Return the bytes of an open file, even if it was opened for writing only."""
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:  # noqa: PTH123 - Path.open may be replaced by a recorder
        return file.read()
