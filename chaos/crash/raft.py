"""The Raft log under crash images: entries, index, term and vote, start, checkpoint and marker of one node.

Steps of a workload: batches (with or without a sync under way), a new term, a truncated tail, trimming, an install,
checkpoints, a kill, a clean stop and start.
"""

import asyncio
import json
import struct
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from chaos.crash.errors import DisagreeError, ImageRefusedError, InventedError, LostError
from chaos.crash.ledger import (
    Appended,
    Cut,
    Cutting,
    Durable,
    Installed,
    Installing,
    Item,
    Ledger,
    Replaced,
    Replacing,
    Trimming,
)
from chaos.crash.recorder import Recorder
from dledger.background import Checkpointer
from dledger.config import PeerAddress, RaftConfig
from dledger.core.messages import HardState, Span
from dledger.errors import DLedgerError
from dledger.log.entry import FILLER_SIZE, encode_entry
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import read_hard_state, write_hard_state
from dledger.log.raft_files import RaftFiles, open_files
from dledger.log.small_file import write_durably
from dledger.log.term_start import term_start_draft
from ledgermq.message.draft import RecordDraft
from store.errors import StoreError
from store.log.flusher import Flusher

_HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
_TERM_FILE = "currterm"
_STATE_FILE = "state"
_START_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftCrashSettings:
    """Sizes of files, and the number of steps."""

    data_file_size_bytes: int = 8192
    index_file_size_bytes: int = 512
    body_size_max: int = 900
    batch_max: int = 5
    steps: int = 14


def _config(root: Path, settings: RaftCrashSettings) -> RaftConfig:
    return RaftConfig(
        cluster="crash",
        group="crash",
        self_id="n0",
        peers=(PeerAddress("n0", "127.0.0.1", 1),),
        store_dir=root,
        client_address="127.0.0.1:1",
        store_host=_HOST,
        data_file_size_bytes=settings.data_file_size_bytes,
        index_file_size_bytes=settings.index_file_size_bytes,
    )


def open_small_raft(root: Path, settings: RaftCrashSettings, boot: str) -> RaftFiles:
    """Open a node's files, with small sizes, on a machine in the boot `boot`.

    Raises:
        DLedgerError, StoreError: as `open_files`.
    """
    return open_files(_config(root, settings), boot)


class RaftRun:
    """One run of the workload below `recorder.root`; `number` is that of the first message, `boot` the machine's."""

    def __init__(
        self, recorder: Recorder, settings: RaftCrashSettings, dice: Random, number: int = 0, boot: str = "a boot"
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._dice = dice
        self._number = number
        self._boot = boot
        self._directory = recorder.root / "dledger-n0"
        self._committed = -1
        self._term = 0
        self._waiting = 0
        self._files: RaftFiles
        self._log: EntryLog
        self._flusher: Flusher

    async def run(self) -> None:
        """Open the files, run the steps, stop cleanly."""
        await self._open()
        steps = (self._append, self._append, self._append_while_syncing, self._checkpoint, self._new_term)
        rare = (self._truncate, self._truncate, self._trim, self._install, self._restart, self._kill)
        for _ in range(self._settings.steps):
            await self._dice.choice(steps if self._dice.random() < 0.75 else rare)()
        await self._close()

    async def _open(self) -> None:
        self._files = open_small_raft(self._recorder.root, self._settings, self._boot)
        opened = self._files.opened
        self._log = _entry_log(self._files, self._directory)
        self._flusher = Flusher(opened.data, asyncio.get_running_loop(), on_failed=_fail)
        self._log.attach(self._flusher)
        known = max(self._files.checkpoint.committed_index, self._log.first_index - 1)
        self._committed = min(known, self._log.last_index)
        found = read_hard_state(self._directory)
        if found is not None and found.recovering:  # this run began on an image of an unfinished install
            self._recorder.note(Replaced(_TERM_FILE, _as_bytes(found)))
            self._install_at(max(known, 0) + 1)
        self._recorder.note(Cut(opened.found.end_position))
        self._recorder.note(Durable(opened.found.end_position))
        self._term = max(found.term if found else 0, self._log.term_at(self._log.last_index))
        if found is None or found.recovering or self._log.term_at(self._log.last_index) != self._term:
            await self._new_term()

    async def _close(self) -> None:
        await self._settle()
        self._recorder.gate.open()
        await self._flusher.close()
        self._recorder.note(Durable(self._log.end_position(self._log.last_index)))
        self._files.close(is_clean=True)

    async def _restart(self) -> None:
        await self._checkpoint()
        await self._close()
        await self._open()

    async def _kill(self) -> None:
        """End the process as SIGKILL does while entries wait for their sync; the page cache keeps them."""
        await self._settle()
        self._place(is_synced=False)
        self._flusher.abandon()
        self._files.close(is_clean=False)
        await self._open()

    async def _append(self) -> None:
        self._place()
        await self._settle()

    async def _append_while_syncing(self) -> None:
        gate = self._recorder.gate
        gate.is_closed = True
        self._place()
        while self._waiting and not gate.waiting:
            await asyncio.sleep(0)
        self._place()
        self._committed = self._dice.randint(self._committed, self._log.last_index)  # others have these durably
        await self._write_checkpoint()
        await self._settle()
        gate.open()

    async def _new_term(self) -> None:
        await self._settle()
        self._term += 1
        state = HardState(term=self._term, voted_for="n0", recovering=False)
        content = _as_bytes(state)
        self._recorder.note(Replacing(_TERM_FILE, content))
        write_hard_state(self._directory, state)
        self._recorder.note(Replaced(_TERM_FILE, content))
        first = self._log.last_index + 1
        self._log.append_term_start(first, self._term)
        self._note_appended(first)
        await self._settle()

    async def _checkpoint(self) -> None:
        await self._settle()
        self._committed = self._dice.randint(self._committed, max(self._log.durable_index, self._committed))
        await self._write_checkpoint()

    async def _write_checkpoint(self) -> None:
        await Checkpointer(self._directory, self._log, lambda: self._committed, _fail).write()

    async def _truncate(self) -> None:
        """Cut uncommitted entries, as for a leader that has others in their place."""
        await self._settle()
        last = self._dice.randint(max(self._committed, self._log.first_index - 1), self._log.last_index)
        end = self._log.end_position(last)
        self._recorder.note(Cutting(end))
        self._log.truncate_after(last)
        self._recorder.note(Cut(end))
        if self._log.term_at(last) != self._term:  # no leader continues in a term whose first entry is cut
            await self._new_term()

    async def _trim(self) -> None:
        await self._settle()
        before = self._log.end_position(self._committed)
        self._recorder.note(Trimming(before))
        taken = self._log.take_before(before)
        if taken is not None:
            self._log.data.remove(taken.data)
            self._log.units.files.remove(taken.index)

    async def _install(self) -> None:
        """Begin anew at a file of the leader, as if the leader had dropped entries that this node needs."""
        await self._settle()
        if self._dice.random() >= 0.7:
            self._install_at(self._log.last_index + self._dice.randint(1, 50))

    def _install_at(self, first: int) -> None:
        log = self._log
        start = (log.max_position // self._settings.data_file_size_bytes + 1) * self._settings.data_file_size_bytes
        self._recorder.note(Installing(start))
        log.begin_install(first, start, self._term)
        self._recorder.note(Cut(0))
        write_durably(self._recorder.root / _STATE_FILE, b"%d" % start)
        log.finish_install()
        self._recorder.note(Installed())
        self._committed = first - 1

    def _place(self, *, is_synced: bool = True) -> None:
        drafts = [self._draft() for _ in range(self._dice.randint(1, self._settings.batch_max))]
        first = self._log.last_index + 1
        self._log.append_drafts(drafts, max(self._term, 1), _START_MS)
        self._note_appended(first, is_synced=is_synced)

    def _note_appended(self, first: int, *, is_synced: bool = True) -> None:
        log = self._log
        items = []
        for index in range(first, log.last_index + 1):
            position, size, term = log.units[index]
            items.append(Item(position, bytes(log.data.slice(position, size)), (index, term)))
        self._recorder.note(Appended(tuple(items)))
        if is_synced:
            self._waiting += 1
            self._log.request_flush(self._flushed)

    def _flushed(self, durable_index: int, _generation: int) -> None:
        self._waiting -= 1
        self._recorder.note(Durable(self._log.end_position(durable_index)))

    def _draft(self) -> RecordDraft:
        dice = self._dice
        queue_id, body = dice.randrange(2), b"%d " % self._number
        body += dice.randbytes(dice.randrange(self._settings.body_size_max))
        draft = RecordDraft().fill(b"T", queue_id, body, born=(_START_MS, _HOST))
        draft.queue_offset = self._number
        self._number += 1
        return draft

    async def _settle(self) -> None:
        while self._waiting:
            self._recorder.gate.let_through()
            await asyncio.sleep(0)


def _fail(error: Exception) -> None:
    raise error


def _as_bytes(state: HardState) -> bytes:
    return json.dumps([state.term, state.voted_for, state.recovering]).encode()


@dataclass(slots=True)
class RaftWorkload:
    """A `StoreWorkload` on one node's Raft files. Each run has a boot of its own."""

    settings: RaftCrashSettings
    _boot: str = ""

    async def run(self, recorder: Recorder, dice: Random, number: int) -> None:
        self._boot = f"boot {number}"
        await RaftRun(recorder, self.settings, dice, number, self._boot).run()

    async def judge(self, root: Path, ledger: Ledger, *, killed: bool, again: bool) -> None:
        found = self._judge_once(root, ledger, self._boot if killed else "another boot")
        if again and self._judge_once(root, ledger, "another boot") != found:
            raise DisagreeError("a second start finds other entries than the first one")

    def _judge_once(self, root: Path, ledger: Ledger, boot: str) -> list[Item]:
        try:
            files = open_small_raft(root, self.settings, boot)
        except (StoreError, DLedgerError, OSError, ValueError) as error:
            raise ImageRefusedError(f"not opened: {error!r}") from error
        try:
            found = entries_of(files)
            is_recovering = _judge_term(root, ledger)
            if is_recovering:
                if found:
                    raise InventedError(f"{found[0].key} and more are left of an unfinished install")
            else:
                _judge_entries(files, found, ledger)
                _judge_install(root, files, ledger)
            _judge_following(_entry_log(files, files_directory(root)))
        finally:
            files.close(is_clean=False)
        return found


def _judge_following(log: EntryLog) -> None:
    """Check that entries of another leader are accepted after those found, in the same file and in the next one."""
    last, end = log.last_index, log.end_position(log.last_index)
    term = log.term_at(last) + 1
    size = log.data.file_size
    next_file = (end // size + 1) * size
    for position in (end, next_file):
        entry = encode_entry(last + 1, term, position, b"of another leader")
        if position < next_file <= position + len(entry) + FILLER_SIZE:
            continue  # it would not fit before the file's end
        try:
            log.append_span(Span(term, last + 1, last + 1, position, position + len(entry), entry))
            log.truncate_after(last)
        except (StoreError, DLedgerError) as error:
            raise ImageRefusedError(f"an entry at {position}, behind {last} that ends at {end}: {error}") from error


def _entry_log(files: RaftFiles, directory: Path) -> EntryLog:
    starter = partial(term_start_draft, node_id="n0", store_host=_HOST, now_ms=_START_MS)
    return EntryLog(directory, files.opened, store_host=_HOST, term_start=starter)


def files_directory(root: Path) -> Path:
    """Return the folder of the node's files."""
    return root / "dledger-n0"


def _judge_term(root: Path, ledger: Ledger) -> bool:
    """Check term and vote; return whether the node is recovering because of an unfinished install."""
    found = read_hard_state(files_directory(root))
    allowed = ledger.small.get(_TERM_FILE, [None])
    if found is None:
        raise DisagreeError("there is no term")
    is_recovering = found.recovering and ledger.is_installing
    states = [found, replace(found, recovering=False)] if is_recovering else [found]
    is_first = found == HardState(recovering=True, forgot_votes=True) and None in allowed
    if not is_first and all(_as_bytes(state) not in allowed for state in states):
        raise DisagreeError(f"term and vote are {found}, they may be {allowed}")
    return is_recovering


def _judge_install(root: Path, files: RaftFiles, ledger: Ledger) -> None:
    """Check that a log that begins where an install put it has the state of that install, or of a later one."""
    path = root / _STATE_FILE
    state = int(path.read_bytes()) if path.exists() else 0
    for start in ledger.installs:
        if state < start <= files.opened.start.start_position:
            raise LostError(f"the log begins at {files.opened.start.start_position}, the state is that of {state}")


def entries_of(files: RaftFiles, first: int = 0) -> list[Item]:
    """Return the entries of an opened log from `first` on; the key of each is its index and term.

    Raises:
        DisagreeError: the index lacks one.
    """
    opened = files.opened
    items = []
    for index in range(max(opened.start.first_index, first), opened.found.last_index + 1):
        unit = opened.units.find(index)
        if unit is None:
            raise DisagreeError(f"entry {index} has no index unit, the log ends with {opened.found.last_index}")
        position, size, term = unit
        items.append(Item(position, bytes(opened.data.slice(position, size)), (index, term)))
    return items


def _judge_entries(files: RaftFiles, found: list[Item], ledger: Ledger) -> None:
    opened = files.opened
    if opened.found.lost is not None or opened.found.damages or files.doubt is not None:
        raise LostError(f"lost {opened.found.lost}, damaged {opened.found.damages}, {files.doubt}")
    if opened.start.start_position > ledger.start:
        raise LostError(f"the log begins at {opened.start.start_position}, it was trimmed to {ledger.start} at most")
    allowed = [item for item in ledger.items if item.start >= opened.start.start_position]
    for item, wanted in zip(found, allowed, strict=False):
        if item != wanted:
            raise InventedError(f"entry {item.key} at {item.start}, expected {wanted.key} at {wanted.start}")
    if len(found) > len(allowed):
        raise InventedError(f"entries from {found[len(allowed)].key} on were never written")
    if len(found) < len(allowed) and allowed[len(found)].end <= ledger.floor:
        raise LostError(f"entry {allowed[len(found)].key} was synced up to {ledger.floor}")
