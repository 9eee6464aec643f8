"""Recorder: watches the file operations of a program in one directory, where they leave Python.

    program --> os.pwrite, os.fdatasync, os.unlink ... --> look at the tree --> Moment

After each operation the whole tree is compared, so that stores through mappings, and operations that are not
intercepted, are noticed with the next one. A sync covers the content that the file had when the sync began.

So that runs are equal in spite of threads, executors run their work at once, on the caller's thread, and a sync in
another thread can be held at the gate until the workload releases it.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from chaos.crash.disk import DirectoryState, FileState, Moment, NameChange
from store.files import disk

_CHANGES = ("pwrite", "ftruncate", "posix_fallocate", "unlink", "remove", "rename", "replace", "mkdir", "rmdir")
_READ_BYTES = 1 << 26


class Gate:
    """While it is closed, it blocks all threads but the one that made it; `let_through` releases one call."""

    def __init__(self) -> None:
        self._owner = threading.current_thread()
        self._permits = threading.Semaphore(0)
        self.is_closed = False
        self.waiting = 0

    def enter(self) -> None:
        """Return at once, or, in another thread while the gate is closed, when the call is released."""
        if self.is_closed and threading.current_thread() is not self._owner:
            self.waiting += 1
            self._permits.acquire()

    def let_through(self) -> None:
        """Release one blocked call, if there is one."""
        if self.waiting:
            self.waiting -= 1
            self._permits.release()

    def open(self) -> None:
        """Release all blocked calls, and block no more."""
        self.is_closed = False
        self.let_through()


class _File:
    """The contents of a file since its last sync; `base` is the number of older ones that were dropped."""

    __slots__ = ("base", "versions")

    def __init__(self, content: bytes) -> None:
        self.base = 0
        self.versions: list[bytes] = [b"", content] if content else [b""]

    def seen(self, content: bytes) -> bool:
        if self.versions[-1] == content:
            return False
        self.versions.append(content)
        return True

    def mark(self) -> int:
        return self.base + len(self.versions) - 1

    def synced(self, mark: int) -> None:
        del self.versions[: max(mark - self.base, 0)]
        self.base = max(mark, self.base)


class _Directory:
    """Names now, names as of the last sync, and the changes between them."""

    __slots__ = ("base", "durable", "names", "steps")

    def __init__(self) -> None:
        self.base = 0
        self.names: dict[str, int] = {}
        self.durable: NameChange = {}
        self.steps: list[NameChange] = []

    def seen(self, names: dict[str, int]) -> bool:
        if names == self.names:
            return False
        step: NameChange = {name: node for name, node in names.items() if self.names.get(name) != node}
        step.update({name: None for name in self.names if name not in names})
        self.steps.append(step)
        self.names = names
        return True

    def mark(self) -> int:
        return self.base + len(self.steps)

    def synced(self, mark: int) -> None:
        count = max(mark - self.base, 0)
        for step in self.steps[:count]:
            self.durable.update(step)
        del self.steps[:count]
        self.base += count


class Recorder:
    """Records the changes below `root`; what exists at the start counts as synced.

    Attributes:
        moments: in order.
        notes: the workload's notes; a moment has their number at that time.
        gate: passed by syncs of other threads.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Moment] = []
        self.notes: list[object] = []
        self.gate = Gate()
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        self._nodes: dict[int, int] = {}  # by inode number, while the file has a name
        self._node_count = 0
        self._root_node = 0
        self._look("start", always=True)
        for node in (*self._files, *self._directories):
            state = self._state(node)
            state.synced(state.mark())
        self.moments.clear()

    def note(self, note: object) -> None:
        """Note something for the judge of later moments."""
        with self._lock:
            self.notes.append(note)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record all changes made within the block."""
        with contextlib.ExitStack() as patches:
            for name in _CHANGES:
                patches.enter_context(mock.patch.object(os, name, self._after(name, getattr(os, name))))
            for name in ("fsync", "fdatasync"):
                patches.enter_context(mock.patch.object(os, name, self._sync(name, getattr(os, name))))
            patches.enter_context(
                mock.patch.object(disk, "sync_file_system", self._sync_file_system(disk.sync_file_system))
            )
            yield
        self.gate.open()

    def _after(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(target: int | str | os.PathLike[str], *arguments: Any, **named: Any) -> Any:
            result = original(target, *arguments, **named)
            if self._is_mine(target):
                self._look(name)
            return result

        return changed

    def _is_mine(self, target: object) -> bool:
        return isinstance(target, int) or str(target).startswith(str(self.root))

    def _sync(self, name: str, original: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            inode = os.fstat(descriptor).st_ino
            with self._lock:
                self._look(f"before {name}")
                node = self._nodes.get(inode)
                state = None if node is None else self._state(node)
                mark = 0 if state is None else state.mark()
            self.gate.enter()
            original(descriptor)
            with self._lock:
                if state is not None:
                    state.synced(mark)
                self._look(name, always=True)

        return sync

    def _sync_file_system(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """Replace a sync of a whole file system, as `_sync` replaces that of a file."""

        def sync(descriptor: int) -> None:
            with self._lock:
                self._look("before syncfs")
                states = [self._state(node) for node in (*self._files, *self._directories)]
                marks = [(state, state.mark()) for state in states]
            self.gate.enter()
            original(descriptor)
            with self._lock:
                for state, mark in marks:
                    state.synced(mark)
                self._look("syncfs", always=True)

        return sync

    def _look(self, label: str, *, always: bool = False) -> None:
        """Compare the whole tree, and keep a moment if anything has changed."""
        with self._lock:
            nodes: dict[int, int] = {}
            root, is_changed = self._look_at_directory(str(self.root), self.root.stat().st_ino, nodes)
            self._root_node = root
            self._nodes = nodes
            if is_changed or always:
                self.moments.append(self._moment(label))

    def _look_at_directory(self, path: str, inode: int, nodes: dict[int, int]) -> tuple[int, bool]:
        node = self._node(inode, nodes)
        names: dict[str, int] = {}
        is_changed = False
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                try:
                    look = self._look_at_directory if entry.is_dir() else self._look_at_file
                    names[entry.name], is_new = look(entry.path, entry.inode(), nodes)
                except FileNotFoundError:
                    continue  # another thread has just removed it, which the next comparison notices
                is_changed |= is_new
        return node, self._directories.setdefault(node, _Directory()).seen(names) or is_changed

    def _look_at_file(self, path: str, inode: int, nodes: dict[int, int]) -> tuple[int, bool]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            content = os.read(descriptor, _READ_BYTES)
        finally:
            os.close(descriptor)
        node = self._node(inode, nodes)
        if node in self._files:
            return node, self._files[node].seen(content)
        self._files[node] = _File(content)
        return node, True

    def _state(self, node: int) -> "_File | _Directory":
        return self._files[node] if node in self._files else self._directories[node]

    def _node(self, inode: int, nodes: dict[int, int]) -> int:
        """Return the number of a file or directory; an inode that is used again after a removal gets a new one."""
        node = self._nodes.get(inode, nodes.get(inode))
        if node is None:
            self._node_count += 1
            node = self._node_count
        nodes[inode] = node
        return node

    def _moment(self, label: str) -> Moment:
        return Moment(
            label,
            len(self.notes),
            self._root_node,
            {node: FileState(tuple(file.versions)) for node, file in self._files.items()},
            {node: DirectoryState(dict(d.durable), tuple(d.steps)) for node, d in self._directories.items()},
        )


@contextlib.contextmanager
def inline_executors() -> Iterator[None]:
    """Let executors run their work at once, on the caller's thread, within the block."""

    def submit(_: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    with mock.patch.object(ThreadPoolExecutor, "submit", submit):
        yield
