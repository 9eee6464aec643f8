"""The controllers' agreement for the event loop: submits commands, and tells who leads.

    loop    submit(command) ---bytes---> queue of PySyncObj            status <--- after each tick
    thread                               doTick: journal, votes, commit, Machine.apply -> outcome -> loop

PySyncObj runs in a thread of its own, so that neither a slow disk nor a name that does not resolve holds the loop. The
state machine is changed there, and read anywhere. Whatever fails in that thread ends the quorum in this process.
"""

import asyncio
import functools
import itertools
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated

from ha.controller.core.commands import FIRST_RULES, StateCommand
from ha.controller.core.machine import ControllerMachine, encode_command
from ha.controller.core.model import DamagedStateError
from ha.controller.core.outcome import CommandOutcome
from ha.controller.errors import QuorumError, QuorumFailedError, QuorumFileError, QuorumListenError
from ha.controller.quorum.journal import QuorumJournal
from ha.controller.quorum.snapshot_file import Entry, Snapshot, encode_snapshot, read_snapshot
from ha.controller.quorum.transport import QuorumTransport
from ledgermq.durable_files import replace_durably, sync
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.lock_file import LockFile
from store.files.folders import open_folder

SNAPSHOT: Final = "snapshot"
SUBMIT_S: Final = 5.0
_TICK_S: Final = 0.05
_HEARTBEAT_S: Final = 0.1
_RETRY_S: Final = 0.05
_QUEUE_MAX: Final = 1024
_ENTRIES_MAX: Final = 2000
_DNS_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """The settings of one member.

    Attributes:
        members: `host:port` at which the members reach each other, by id.
        self_id: which of them this one is.
        bind_host: address of this machine at which it listens.
        folder: for journal, vote and snapshot.
        secrets: of the cluster; the first one encrypts, each decrypts.
        election_timeout_s: silence of the leader after which a member stands for election, twice as long at most.
        entries_max: of the journal, before a snapshot replaces the older ones.
    """

    members: Mapping[str, str]
    self_id: str
    bind_host: str
    folder: Path
    secrets: Secrets = field(repr=False)
    election_timeout_s: float = 0.7
    entries_max: int = _ENTRIES_MAX


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """The agreement as this member knows it. Times are those of `time.monotonic`.

    Attributes:
        leader_id: id of the leader, if one is known.
        answered_s: when this member, as the leader, sent the newest message that a majority has answered.
        ticked_s: when the quorum's thread last ran.
        applied: index of the last command in the state.
        entries: number of entries in the journal.
        rules: newest version of the rules that all members know, while this one leads.
    """

    is_leader: bool = False
    leader_id: str | None = None
    term: int = 0
    answered_s: float = -math.inf
    ticked_s: float = -math.inf
    applied: int = 0
    entries: int = 0
    is_sound: bool = False
    rules: int = FIRST_RULES


class _Replicated(SyncObjConsumer):  # type: ignore[misc]  # PySyncObj has no types
    """The object that PySyncObj replicates. The name of its one method is part of the log's format."""

    def __init__(self, machine: ControllerMachine) -> None:
        super().__init__()
        self._machine = machine

    @replicated  # type: ignore[untyped-decorator]
    def apply(self, command: bytes) -> CommandOutcome:
        """Apply one command; called in the log's order on every member."""
        return self._machine.apply(command)


def not_leading() -> Refusal:
    """Return how a controller that does not lead refuses a request."""
    return Refusal(Cause.CONTROLLER_NOT_LEADER, "The controller is not in leader state")


class Quorum:
    """One member, from `start` to `stop`.

    Args:
        settings: this member's settings.
        machine: the state machine to which commands are applied.
        on_change: called on the loop when the leader or the term has changed, and when the quorum has failed.
    """

    def __init__(self, settings: QuorumSettings, machine: ControllerMachine, on_change: Callable[[], None]) -> None:
        self._settings = settings
        self._machine = machine
        self._on_change = on_change
        self._replicated = _Replicated(machine)
        self._ids = {address: member for member, address in settings.members.items()}
        self._submitter = f"{settings.self_id}-{secrets.token_hex(8)}"
        self._numbers = itertools.count()
        self._waiting: set[asyncio.Future[tuple[CommandOutcome | None, int]]] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: LockFile | None = None
        self.status = QuorumStatus()
        self.failure: QuorumError | None = None

    # ---- on the loop

    def start(self) -> None:
        """Open the folder, listen, take part; returns before a leader is known.

        Raises:
            QuorumFileError: a file of the folder is damaged.
            QuorumListenError: the port cannot be opened.
            StoreError: another process has the folder, or the disk fails.
            OSError: the disk.
        """
        self._loop = asyncio.get_running_loop()
        folder = self._settings.folder
        open_folder(folder)
        lock = LockFile(folder)
        try:
            self._check_port()
            self._journal = QuorumJournal(folder, self._restore())
            self._sync = self._make_sync()
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        self._thread = threading.Thread(target=self._run, name="quorum", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Leave the quorum; commands that wait are refused. Does nothing if not started."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._refuse_waiting()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def submit(self, command: StateCommand, limit_s: float = SUBMIT_S) -> CommandOutcome:
        """Submit a command; return its outcome once it is applied, and so durable on a majority.

        It is applied by the rules of the state, or by newer ones if it names them. It is submitted again while its
        outcome is not known and this member leads in the same term; its key makes sure that it counts once.

        Raises:
            Refusal: CONTROLLER_NOT_LEADER when this member does not lead, or leads no more: the command may have been
                applied or not; BUSY; SYSTEM_ERROR when no majority confirmed it in time, likewise.
        """
        command = replace(command, rules=max(command.rules, self._machine.rules))
        data = encode_command((self._submitter, next(self._numbers)), command)
        deadline_s, term = self._loop.time() + limit_s, self.status.term
        while self._leads_in(term) and not self._stopping.is_set() and self.failure is None:
            outcome, reason = await self._submit_once(data, deadline_s)
            if reason == FAIL_REASON.QUEUE_FULL:
                raise Refusal(Cause.BUSY, f"{_QUEUE_MAX} commands wait for the other controllers")
            if outcome is not None:
                return outcome
            if self._loop.time() + _RETRY_S >= deadline_s:
                remark = f"no majority of the controllers confirmed it within {limit_s:g} s"
                raise Refusal(Cause.SYSTEM_ERROR, f"{remark}: it may take effect or not")
            await asyncio.sleep(_RETRY_S)
        raise not_leading()

    def _leads_in(self, term: int) -> bool:
        return self.status.is_leader and self.status.term == term

    async def _submit_once(self, data: bytes, deadline_s: float) -> tuple[CommandOutcome | None, int]:
        answered: asyncio.Future[tuple[CommandOutcome | None, int]] = self._loop.create_future()
        self._waiting.add(answered)
        try:
            self._replicated.apply(data, callback=functools.partial(self._applied, answered))
            async with asyncio.timeout_at(deadline_s):
                return await answered
        except TimeoutError:
            return None, FAIL_REASON.UNKNOWN_OUTCOME
        finally:
            self._waiting.discard(answered)

    def _changed(self) -> None:
        if not self.status.is_leader or self.failure is not None:
            self._refuse_waiting()
        self._on_change()

    def _refuse_waiting(self) -> None:
        for answered in tuple(self._waiting):
            _settle(answered, None, FAIL_REASON.NOT_LEADER)

    # ---- in the thread

    def _applied(
        self, answered: "asyncio.Future[tuple[CommandOutcome | None, int]]", outcome: Any, reason: int
    ) -> None:
        self._on_loop(functools.partial(_settle, answered, outcome, reason))

    def _on_loop(self, call: Callable[[], None]) -> None:
        if not self._stopping.is_set():
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._sync.doTick(_TICK_S)
                self._publish()
        except Exception as error:  # this member must stop after any error
            _log.critical("the quorum of the controllers failed in this process", exc_info=True)
            self._fail(error)
        finally:
            self._sync.destroy()

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error if isinstance(error, QuorumError) else QuorumFailedError(f"quorum failed: {error}")
        self.status = QuorumStatus(ticked_s=time.monotonic())
        self._on_loop(self._changed)

    def _publish(self) -> None:
        if self.failure is not None:
            raise self.failure
        sync, now_s = self._sync, time.monotonic()
        is_leader, leader = sync._isLeader(), sync._getLeader()
        before = self.status
        self.status = QuorumStatus(
            is_leader=is_leader,
            leader_id=None if leader is None else self._ids.get(leader.id),
            term=sync.raftCurrentTerm,
            answered_s=self._transport.answered_s(now_s) if is_leader else -math.inf,
            ticked_s=now_s,
            applied=sync.raftLastApplied,
            entries=len(self._journal),
            is_sound=self._journal.is_sound,
            rules=self._transport.rules if is_leader else FIRST_RULES,
        )
        # an entry of the leader's own term is committed, so all earlier commits are here, too
        is_current = leader is not None and self._journal.term_of(sync.raftLastApplied) == sync.raftCurrentTerm
        if is_current and not self._journal.is_sound:
            self._journal.become_sound()
        if (before.is_leader, before.leader_id, before.term) != (is_leader, self.status.leader_id, self.status.term):
            self._on_loop(self._changed)

    # ---- what PySyncObj is made of

    def _check_port(self) -> None:
        """Check that the port can be listened at; PySyncObj would not report why it cannot."""
        host = self._settings.bind_host
        port = int(self._settings.members[self._settings.self_id].rsplit(":", 1)[1])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                remark = f"{host}:{port}, for the other controllers, cannot be listened at: {error.strerror}"
                raise QuorumListenError(remark) from error

    def _make_sync(self) -> Any:
        settings = self._settings
        own = settings.members[settings.self_id]
        others = [address for member, address in settings.members.items() if member != settings.self_id]
        timeout_s = settings.election_timeout_s
        silence_s = max(1.0, 2 * timeout_s)
        conf = SyncObjConf(
            password=settings.secrets,
            autoTick=False,
            commandsQueueSize=_QUEUE_MAX,
            commandsWaitLeader=False,
            raftMinTimeout=timeout_s,
            raftMaxTimeout=2 * timeout_s,
            appendEntriesPeriod=_HEARTBEAT_S,
            appendEntriesUseBatch=False,
            connectionTimeout=silence_s,
            connectionRetryTime=0.3,
            leaderFallbackTimeout=silence_s,
            bindAddress=f"{settings.bind_host}:{own.rsplit(':', 1)[1]}",
            maxBindRetries=1,
            dnsCacheTime=_DNS_S,
            dnsFailCacheTime=_DNS_S,
            journalFile=self._journal,
            fullDumpFile=str(settings.folder / SNAPSHOT),
            logCompactionMinEntries=settings.entries_max,
            logCompactionMinTime=365 * 86400,
            serializer=self._write_snapshot,
            deserializer=self._load_snapshot,
            useFork=False,
        )
        make = functools.partial(self._make_transport, silence_s)
        return SyncObj(own, others, conf, consumers=[self._replicated], transportClass=make)

    def _make_transport(self, silence_s: float, *arguments: Any) -> QuorumTransport:
        self._transport = QuorumTransport(self._journal, silence_s, self._machine.known_rules, *arguments)
        return self._transport

    def _restore(self) -> Snapshot | None:
        path = self._settings.folder / SNAPSHOT
        snapshot = read_snapshot(path)
        if snapshot is not None:
            try:
                self._machine.restore(snapshot.state)
            except DamagedStateError as error:
                raise QuorumFileError(path, f"cannot be used: {error}") from error
        return snapshot

    def _write_snapshot(self, path: str, entries: tuple[Entry, Entry, Any]) -> None:
        """Write a snapshot to the temporary file of PySyncObj, which renames it when this returns."""
        try:
            replace_durably(Path(path), encode_snapshot(Snapshot(self._machine.snapshot(), entries[1], entries[0])))
        except OSError as error:  # PySyncObj would only log it and try again
            self.failure = QuorumFailedError(f"{path} cannot be written: {error.strerror}")
            raise

    def _load_snapshot(self, path: str) -> tuple[Entry, Entry, tuple[()]]:
        """Load the snapshot, at the start, and after a leader sent one, which is not durable yet."""
        try:
            with Path(path).open("rb") as file:
                os.fsync(file.fileno())
            sync(Path(path).parent)
            snapshot = self._restore()
            if snapshot is None:
                raise QuorumFileError(Path(path), "is gone")
        except (OSError, QuorumError) as error:  # PySyncObj would only log it and continue without
            self.failure = error if isinstance(error, QuorumError) else QuorumFailedError(str(error))
            raise
        return snapshot.last, snapshot.previous, ()


def _settle(
    answered: "asyncio.Future[tuple[CommandOutcome | None, int]]", outcome: CommandOutcome | None, reason: int
) -> None:
    if not answered.done():
        answered.set_result((outcome, reason))
