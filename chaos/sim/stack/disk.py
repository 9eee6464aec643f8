"""StoreDisk: one node's directory of real files in memory, its faults, and what a crash leaves of it.

    shipping code --> files in /dev/shm (the page cache)     `chaos.crash.shadow`: what is durable of them
    kill          --> the files stay
    power cut     --> a new directory: durable sectors, and any of the others, written by `chaos.crash.disk`

A crash comes between two events, or in the middle of one: `dies_in` counts file calls down, and the process ends
before the one that it reaches.

Beside the files lies the log's image, in which the observer compares nodes. It gets each change from
`chaos.sim.stack.log`, and its durable end is read from the shadow, not from what the shipping code believes.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from chaos.crash.disk import Chooser, Moment, TornSectors, WholeFiles, image_of, write_image
from chaos.crash.shadow import Shadow, content_of
from chaos.sim.clock import SimClock
from chaos.sim.machine import Machine, Where
from chaos.sim.process import ProcessDiesError
from dledger.core.messages import HardState
from dledger.log.commit_checkpoint import FILE_NAME as CHECKPOINT
from dledger.log.entry import HEADER_SIZE
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import FILE_NAME, parse_hard_state
from ledgermq.message.java_properties import parse_properties
from store.directory import lock_file
from store.files.file_mapping import FileMapping
from store.files.mapped_file import MappedFile

_CLOSE, _RENAME = os.close, os.rename
_KNOWN = (
    "first_index", "prev_term", "prev_chain", "entries", "chains", "amnesiac", "boot", "reached_offset",
    "removed_to", "_durable_index", "rotten",
)  # fmt: skip


def entry_in(log: EntryLog, index: int) -> bytes:
    """Return an entry's bytes in the files of a log: header and record."""
    position, size, _ = log.units[index]
    return bytes(log.data.slice(position, size))


@dataclass(frozen=True, slots=True)
class DiskPast:
    """The disk of a node as it was at one moment.

    Attributes:
        files: what a power cut at that moment may leave of its directory.
        known: values of attributes of `StoreDisk` by name: the log's image, and what must still be there.
    """

    files: Moment
    known: dict[str, Any]


class StoreDisk(Machine[bytes]):
    """The part of a broker that outlives its processes.

    Args:
        base: where the node's directories are made, one for each power cut.
        before_change: called before each file call that changes something.

    Attributes:
        root: the present directory.
        boot: number of the machine's boot; a power cut begins another one.
        descriptors: open file descriptors of the running process.
        reached_offset: highest physical offset up to which a process may have dispatched, or has installed tables.
        removed_to: physical offset; queues of topics whose removal lies below it may be missing, since the member from
            which this one was installed had it.
        began: by inode, the content of the log's files that the present syncs cover.
        log: the entry log of the running process; None while none runs.
        in_process: makes a block whose calls count as the running process's.
        rotten: by index, the original bytes of each entry that was damaged on the disk and is not repaired.
    """

    def __init__(
        self, name: str, base: Path, clock: SimClock, rng: Random, flush_us: int, before_change: Callable[[], None]
    ) -> None:
        super().__init__(clock, rng, flush_us)
        self.name = name
        self._base = base
        self._before_change = before_change
        self.boot = self._directory_count = 0
        self.root = base / f"{name}-{clock.event_count}-0"
        self.root.mkdir()
        self._removed = base / f"{self.root.name}-removed"  # of this disk alone, which another one may replace
        self._removed.mkdir()
        self._removed_count = 0
        self.shadow = Shadow(self.root)
        self.is_dead = False
        self.descriptors: set[int] = set()
        self.log: EntryLog | None = None
        self.in_process: Callable[[], AbstractContextManager[None]] = nullcontext
        self.reached_offset = self.removed_to = 0
        self.began: dict[int, bytes] = {}
        self.rotten: dict[int, bytes] = {}
        self._durable_index = -1
        self._inodes: dict[FileMapping, int] = {}
        self._hard_state: tuple[bytes, HardState] | None = None

    # -- file calls of the process

    def step(self) -> None:
        """Allow a call that changes a file, or end the process before it.

        Raises:
            ProcessDiesError: the process ends here.
        """
        if self.dies_in is not None and not self.is_dead:
            self.dies_in -= 1
            self.is_dead = self.dies_in <= 0
        if self.is_dead:
            raise ProcessDiesError
        self._before_change()

    def needs_room(self) -> None:
        """Check that the disk has room for a call that takes blocks.

        Raises:
            OSError: there are none.
        """
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def set_aside(self, path: Path | str, folder: int | None = None) -> None:
        """Remove a name but keep its file: ext4 would give its inode at once to another file, which would pass for it.

        Args:
            path: the name.
            folder: descriptor of the folder to which the name is relative; None: the path is complete.

        Raises:
            OSError: there is nothing of that name.
        """
        self._removed_count += 1
        _RENAME(path, self._removed / str(self._removed_count), src_dir_fd=folder)

    def synced(self, descriptor: int) -> None:
        """Sync a file or directory.

        Raises:
            OSError: the sync fails; the dirty pages count as clean from now on.
        """
        self.shadow.synced(descriptor, self.began, has_failed=self.has_failed)
        self._refuse()

    def all_synced(self) -> None:
        """Sync everything; raises as `synced`."""
        self.shadow.all_synced(has_failed=self.has_failed)
        self._refuse()

    def contents_of_log(self) -> dict[int, bytes]:
        """Return, by inode, the content of those files of the log that a sync would cover now."""
        if self.is_dead:
            return {}
        files = [file for file in self.newest_files() if file.fd >= 0 and file.flush_position < file.write_position]
        return {os.fstat(file.fd).st_ino: content_of(file.fd) for file in files}

    def newest_files(self) -> Sequence[MappedFile]:
        """Return the last three files of the running process's log."""
        return [] if self.log is None else self.log.data.files[-3:]

    def _refuse(self) -> None:
        if self.has_failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # -- starts and ends of processes

    def begins(self) -> None:
        """Start a process."""
        self.is_dead = False

    def process_died(self) -> None:
        """End the process: close its descriptors and release its locks, as the system does."""
        self.is_dead = True
        self.dies_in, self.is_cut, self.log = None, False, None
        self._inodes.clear()
        for descriptor in self.descriptors:
            _CLOSE(descriptor)
        self.descriptors.clear()
        lock_file._held_here = {path for path in lock_file._held_here if self.root not in path.parents}

    def power_cut(self, *, forgets: bool) -> None:
        """Keep or lose what was not synced, by the sector or by the file, as the seed decides."""
        self.process_died()
        dice = Random(self.rng.random())
        self._begin_with(self.shadow.moment(), TornSectors(dice) if dice.random() < 0.8 else WholeFiles(dice))
        self.boot += 1
        self.amnesiac = self.amnesiac or forgets

    def place_to_rot(self, where: Where) -> tuple[int, int, int] | None:
        committed = self._checkpointed_index()
        if self.log is None or self.rotten:
            return None
        first, last = self.log.first_index, min(committed, self.log.last_index - 1)
        if where == "last committed":
            first = max(first, committed)
        elif where == "behind":
            first, last = max(first, committed + 1), self.durable_index
        if last < first:
            return None
        index = first + int(self.rng.random() * (last - first + 1))
        position, size, _ = self.log.units[index]
        if where == "last committed" and position >= self.log.data.files[-1].start_offset:
            return None
        return index, position, size

    def rot(self, place: tuple[int, int, int]) -> None:
        index, position, size = place
        self.rotten[index] = self.payload_at(index)
        folder = self.root / f"dledger-{self.name}" / "data"
        path = max(path for path in folder.iterdir() if int(path.name) <= position)
        with path.open("r+b") as content:
            part = HEADER_SIZE if self.rng.random() < 0.5 else size
            at = position - int(path.name) + int(self.rng.random() * part)
            content.seek(at)
            changed = content.read(1)[0] ^ 1 << int(self.rng.random() * 8)
            content.seek(at)
            content.write(bytes([changed]))
        if self.log is None:
            self.shadow = Shadow(self.root)  # a new shadow counts everything present as durable

    def forget_rotten_tail(self, last_index: int) -> None:
        """Forget damaged entries that a recovering node has cut from its log behind the checkpoint."""
        committed = self._checkpointed_index()
        for index in [index for index in self.rotten if index > max(last_index, committed)]:
            self._durable_index = min(self._durable_index, index - 1)
            del self.rotten[index]

    def _checkpointed_index(self) -> int:
        """Return the last entry that the durable checkpoint calls committed; -1 without one."""
        checkpoint = self.shadow.durable_file(f"dledger-{self.name}/{CHECKPOINT}") or b""
        return int(parse_properties(checkpoint.decode()).get("committedIndex", -1))

    def repaired(self) -> int:
        """Forget damaged entries that are deleted, or whole on the disk again; return the number of the latter."""
        log, whole = self.log, 0
        if log is None:
            return 0
        for index, payload in list(self.rotten.items()):
            is_gone = not log.first_index <= index <= log.last_index
            if is_gone or (not log.integrity.is_damaged(index) and entry_in(log, index) == payload):
                del self.rotten[index]
                whole += not is_gone
        return whole

    def past(self) -> DiskPast:
        """Return the disk as it is now."""
        return DiskPast(self.shadow.moment(), {name: copy(getattr(self, name)) for name in _KNOWN})

    def resume(self, past: DiskPast, chooser: Chooser, *, is_cut: bool) -> None:
        """Continue as a copy of an earlier disk of which `chooser` decides what is left; `is_cut`: in another boot."""
        for name, value in past.known.items():
            setattr(self, name, copy(value))
        self._begin_with(past.files, chooser)
        self.boot += is_cut

    def _begin_with(self, moment: Moment, chooser: Chooser) -> None:
        """Write what is left of a moment into a new directory."""
        old = self.root
        self._directory_count += 1
        self.root = self._base / f"{old.name.rsplit('-', 1)[0]}-{self._directory_count}"
        write_image(image_of(moment, chooser), self.root)
        for folder in (old, self._removed):
            shutil.rmtree(folder)
        self._removed.mkdir()
        self.shadow = Shadow(self.root)

    # -- the image, for the observer

    @property
    def durable_index(self) -> int:
        """Index of the newest entry that survives a power cut now, with all before it."""
        self.learn_durable_index()
        return self._durable_index

    def learn_durable_index(self) -> None:
        """Update the durable index while a running process's log tells where each entry lies."""
        log = self.log
        if log is None:
            return
        last = min(self.last_index, log.last_index)  # the process may die after the log is cut and before the image is
        self._durable_index = max(self._durable_index, self.first_index - 1)
        with self.in_process():  # may map a file and close another one
            while self._durable_index < last and self._is_durable(log, self._durable_index + 1):
                self._durable_index += 1

    def _is_durable(self, log: EntryLog, index: int) -> bool:
        if index in self.rotten:  # it was durable before it was damaged
            return True
        unit = log.units.find(index)  # None: the process died within a reset of the log
        file = log.data.file_at(unit[0]) if unit else None
        if unit is None or file is None:
            return False
        position = unit[0]
        payload = self.payload_at(index)
        start = position - file.start_offset
        inode = self._inodes.get(file)
        if inode is None:
            inode = self._inodes[file] = file.path.stat().st_ino
        return self.shadow.durable_part(inode, start, start + len(payload)) == payload

    def truncates_after(self, last_index: int) -> None:
        """Note that entries above `last_index` are about to be dropped and need not be durable any more."""
        self._durable_index = min(self._durable_index, last_index)

    def truncate_after(self, last_index: int) -> None:
        super().truncate_after(last_index)
        self._durable_index = min(self._durable_index, self.last_index)

    def reset(self, first_index: int, prev_term: int, prev_chain: int) -> None:
        super().reset(first_index, prev_term, prev_chain)
        self._durable_index = first_index - 1

    @property
    def hard_state(self) -> HardState | None:
        content = self.shadow.durable_file(f"dledger-{self.name}/{FILE_NAME}")
        if content is None:
            return None
        if self._hard_state is None or self._hard_state[0] != content:
            self._hard_state = content, parse_hard_state(parse_properties(content.decode()))
        return self._hard_state[1]

    @property
    def is_sound(self) -> bool:
        state = self.hard_state
        return state is not None and not state.recovering and not self.amnesiac and not self.rotten

    def why_tables_lack(self) -> str | None:
        """Return None: the process itself compares its tables with the committed log."""
        return None
