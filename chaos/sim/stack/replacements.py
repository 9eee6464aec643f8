"""Replaces time, randomness, threads and file calls for shipping code while a simulation runs.

    os, Path.open      -> as they are, but each call is reported to the disk of its process, which may refuse it
    time, random       -> of the process, of the seed          threads, executors -> `chaos.sim.stack.threads`
    TcpTransport, RaftNode, EntryLog of a Raft log -> ours, which report to the simulation

One process runs at a time: `Replacements.current`. Calls are not replaced while none runs, nor before `begin` and after
`end`.
"""

import contextlib
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from broker.delay import timer_files
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.threads import SimEvent, SimFuture, SimThread, SimWorker, ThreadHost
from dledger.log import hard_state
from store.files import allocator, deleted_files, disk, trash
from store.log import flusher
from store.queues.queue_file import QueueFile
from store.timer.placing import TimerIndexConfig

EPOCH_NS = 1_700_000_000 * 10**9
_WHEEL_SLOTS = 1 << 14
"""Slots for two hours on either side instead of a week, since a power cut reads and writes the whole wheel."""


class SimulatedProcess(ThreadHost, Protocol):
    """The running process, whose calls are replaced."""

    name: str
    files: StoreDisk
    lanes: dict[Any, SimThread]

    def now_us(self) -> int:
        """Return the process's monotonic time in us."""


class Replacements:
    """The replacements, and the process that they serve.

    Attributes:
        current: the running process; None between two events.
        classes: replacements of further names, by dotted name; set before `begin`.
    """

    def __init__(self, rng: Random, now_us: Callable[[], int], wall_ahead_us: Callable[[str], int]) -> None:
        self._rng = rng
        self._now_us = now_us
        self._wall_ahead_us = wall_ahead_us
        self._patches = contextlib.ExitStack()
        self.current: SimulatedProcess | None = None
        self.classes: dict[str, Any] = {}

    @contextlib.contextmanager
    def running(self, process: Any) -> Iterator[None]:
        """Serve the calls within the block for this process."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    def begin(self) -> None:
        """Install the replacements."""
        put = self._put
        for name in ("pwrite", "ftruncate", "posix_fallocate"):
            put(os, name, self._of_descriptor(name, getattr(os, name)))
        for name in ("unlink", "remove", "mkdir", "rmdir"):
            put(os, name, self._of_name(name, getattr(os, name)))
        for name in ("rename", "replace", "link"):
            put(os, name, self._of_two_names(name, getattr(os, name)))
        for name in ("fsync", "fdatasync"):
            put(os, name, self._sync(getattr(os, name)))
        put(os, "open", self._open(os.open))
        put(os, "close", self._close(os.close))
        put(Path, "open", self._path_open(Path.open))
        put(QueueFile, "clear_from", self._clear_from(QueueFile.clear_from))
        put(disk, "sync_file_system", self._sync_file_system)
        put(disk, "_device", lambda _: id(self.current))
        put(disk, "free_bytes", lambda _: 0 if self.current is not None and self.current.files.is_full else 1 << 40)
        put(timer_files, "TimerIndexConfig", partial(TimerIndexConfig, slot_count=_WHEEL_SLOTS))
        self._replace_time_and_chance()
        self._replace_threads()
        for name, replacement in self.classes.items():
            self._patches.enter_context(mock.patch(name, replacement))

    def end(self) -> None:
        """Restore what was replaced."""
        self._patches.close()
        disk._full.clear()

    def _put(self, owner: Any, name: str, replacement: Any) -> None:
        self._patches.enter_context(mock.patch.object(owner, name, replacement))

    def _replace_time_and_chance(self) -> None:
        def seconds() -> float:
            return (self.current.now_us() if self.current is not None else self._now_us()) / 1e6

        def wall_us() -> int:
            ahead_us = 0 if self.current is None else self._wall_ahead_us(self.current.name)
            return self._now_us() + ahead_us

        put, rng, apart = self._put, self._rng, Random()
        apart.setstate(rng.getstate())
        put(time, "monotonic", seconds)
        put(time, "monotonic_ns", lambda: int(1e9 * seconds()))
        put(time, "perf_counter", seconds)
        put(time, "thread_time", lambda: 0.0)  # work takes no simulated time
        put(time, "time_ns", lambda: EPOCH_NS + wall_us() * 1000)
        put(time, "time", lambda: EPOCH_NS / 1e9 + wall_us() / 1e6)
        for function in (allocator.FileAllocator.__init__, deleted_files.DeletedFiles.__init__):
            named = function.__kwdefaults__ or {}
            self._patches.enter_context(mock.patch.dict(named, {"clock": seconds} if "clock" in named else {}))
        put(random, "random", apart.random)
        put(random, "getrandbits", apart.getrandbits)
        put(random, "randrange", lambda limit: int(rng.random() * limit))
        put(random, "uniform", lambda low, high: low + (high - low) * rng.random())
        put(random, "Random", lambda seed=None: Random(rng.random() if seed is None else seed))
        put(secrets, "token_hex", lambda size: f"{int(rng.random() * 2**48):0{2 * size}x}")
        put(uuid, "uuid4", lambda: SimpleNamespace(hex=f"{int(rng.random() * 2**48):032x}"))

    def _replace_threads(self) -> None:
        world = self

        def submit(executor: Any, work: Callable[..., Any], *arguments: Any, **named: Any) -> SimFuture:
            return world.lane(executor).submit(lambda: work(*arguments, **named))

        def make(name: str, work: Callable[[list[Any]], None]) -> SimWorker:
            assert world.current is not None, name
            return SimWorker(world.current, work)

        def thread(target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> Any:
            return SimpleNamespace(start=lambda: world.lane(target).submit(lambda: target(*args)))

        self._put(ThreadPoolExecutor, "submit", submit)
        for user in (flusher, hard_state):
            self._put(user, "Worker", make)
        self._put(trash, "threading", SimpleNamespace(Thread=thread, Lock=threading.Lock))
        self._patches.enter_context(mock.patch.object(hard_state, "threading", SimpleNamespace(Event=SimEvent)))

    def lane(self, executor: Any) -> SimThread:
        """Return the thread of an executor of the current process."""
        assert self.current is not None, "work for a thread outside of any process"
        lanes = self.current.lanes
        if executor not in lanes:  # keeps the executor alive, so that its id is not used again
            lanes[executor] = SimThread(self.current)
        return lanes[executor]

    # -- file calls

    def _of_descriptor(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            if self.current is None:
                return original(descriptor, *arguments)
            files = self.current.files
            if name == "posix_fallocate" or (files.is_full and _grows(name, descriptor, arguments)):
                files.needs_room()
            files.step()
            result = original(descriptor, *arguments)
            if name == "pwrite":
                files.shadow.written(descriptor, arguments[1], len(arguments[0]))
            return result

        return call

    def _of_name(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **named: Any) -> Any:
            if self.current is None:
                return original(path, *arguments, **named)
            files, folder_fd = self.current.files, named.get("dir_fd")
            if folder_fd is not None:  # the folder itself is already removed
                return files.set_aside(path, folder_fd)
            folder = os.path.dirname(path)  # noqa: PTH120 - of texts, too
            files.step()
            files.shadow.names_change(folder)
            if name == "mkdir" or (name == "rmdir" and os.listdir(path)):  # noqa: PTH208 - of texts, too
                original(path, *arguments, **named)
            else:
                files.set_aside(path)
            files.shadow.names_change(folder)
            return None

        return call

    def _of_two_names(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, **named: Any) -> Any:
            if self.current is None:
                return original(source, target, **named)
            files = self.current.files
            folders = {os.path.dirname(source): None, os.path.dirname(target): None}  # noqa: PTH120 - of texts, too
            files.step()
            for folder in folders:
                files.shadow.names_change(folder)
            if name != "link" and os.path.isfile(source) and os.path.isfile(target):  # noqa: PTH113 - of texts, too
                files.set_aside(target)
            result = original(source, target, **named)
            for folder in reversed(folders):
                files.shadow.names_change(folder)
            return result

        return call

    def _clear_from(self, original: Callable[[QueueFile, int], None]) -> Callable[[QueueFile, int], None]:
        """Replace `clear_from`: recovery may store the same units again, and so change nothing, behind a cut."""

        def call(file: QueueFile, position: int) -> None:
            original(file, position)
            if self.current is not None and position < file.size_bytes:
                self.current.files.shadow.written(file.path, position, file.size_bytes - position)

        return call

    def _sync(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: Any) -> None:
            if self.current is None:
                original(descriptor)
                return
            self.current.files.step()
            self.current.files.synced(descriptor)

        return call

    def _sync_file_system(self, _descriptor: int) -> None:
        assert self.current is not None
        self.current.files.step()
        self.current.files.all_synced()

    def _open(self, original: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            if self.current is None:
                return original(path, flags, *arguments, **named)
            if flags & os.O_CREAT:
                self.current.files.step()
            descriptor = original(path, flags, *arguments, **named)
            self.current.files.descriptors.add(descriptor)
            return descriptor

        return call

    def _close(self, original: Callable[[int], None]) -> Callable[[int], None]:
        """Replace `os.close`: a dead process's descriptors are closed already, and their numbers may be another's."""

        def call(descriptor: int) -> None:
            if self.current is None:
                original(descriptor)
                return
            if descriptor in self.current.files.descriptors:
                self.current.files.descriptors.discard(descriptor)
                original(descriptor)

        return call

    def _path_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if self.current is not None and "w" in mode:
                self.current.files.needs_room()
                self.current.files.step()
                file = original(path, mode, *arguments, **named)
                self.current.files.shadow.emptied(file.fileno())
                return file
            return original(path, mode, *arguments, **named)

        return call


def _grows(name: str, descriptor: int, arguments: tuple[Any, ...]) -> bool:
    return name == "pwrite" and arguments[1] + len(arguments[0]) > os.fstat(descriptor).st_size
