"""The part of a slave: it copies its master's log, serves confirmed records, and refuses appends.

    Receiver --take--> CommitLog: files, sync --settle()--> confirmed: whole records, at most what the master confirmed

If the log has records that the master's log does not have, it is cut back to what is confirmed here, but not below the
end that this process found at its start: records below may have been reported by the process before, and acknowledged
by the master. If the logs still differ, the slave stops copying and reports why.
"""

import asyncio
import dataclasses
import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from ha.config import LEVEL_BYTES, SlaveConfig
from ha.core.auto_switch import AUTO_SWITCH, MasterAnswer
from ha.core.epochs import Epochs, common_end, from_text
from ha.core.handshake import MasterWelcome, Tail
from ha.core.stream import CLASSIC, OURS, Dialect, Header, Report
from ha.errors import DivergedLogError, HaError, HaProtocolError
from ha.log_ends import tail_of, whole_records_end
from ha.receiver import Receiver
from ledgermq.message.errors import CorruptRecordError
from ledgermq.remoting.proof import make_nonce
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.errors import StateUnknownError
from store.files.mapped_file_queue import MappedFileQueue
from store.log.commit_log import CommitLog
from store.log.part import Settlement, appointed
from store.replicated_log import AppendReceipt, Generation, LogRole, LogState, Readiness, Replica, StateMachine
from telemetry.families import Family

_MARKS_MAX: Final = 1 << 16
_ALONE_S: Final = 1.0
"""Silence in s after which a slave that is out of the in-sync set takes its master to go on without it."""
_NOT_ASKED: Final = AppendReceipt(generation=0, copies=1, durable_copies=0)

_log = logging.getLogger(__name__)


class History(Protocol):
    """The epochs of a log, kept on disk: which master wrote which part."""

    @property
    def epochs(self) -> Epochs:
        """Epochs of the log."""

    def take_over(self, epochs: Epochs) -> None:
        """Replace the epochs by the master's; durable on return. Raises `StoreError`, `OSError`."""


class Slave:
    """`store.log.part.Part` of a node that copies. `attach` its log, then `start`.

    Args:
        machine: the broker's state, which a master's snapshot replaces.
        history: the epochs of the log, where masters are elected; None where they are appointed.

    Attributes:
        limit_s: None, since no batch waits at a slave.
        epoch: of the elected master that this slave follows; 0 of an appointed one.
        dialect: the dialect of the master that is followed.
        tables_at: `host:port` of a master of RocketMQ's, which has to be asked for topics, groups and offsets because
            they are not in its log; empty for our master, or none.
        is_learner: whether RocketMQ's elected master is told not to count this slave.
        is_in_sync: whether the controllers count this slave in the in-sync set; an appointed slave always is.
        receiver: the stream.
        trouble: why this slave does not copy; None while it does, and before the first try.
    """

    def __init__(
        self,
        config: SlaveConfig,
        loop: asyncio.AbstractEventLoop,
        machine: StateMachine,
        history: History | None = None,
    ) -> None:
        self.config = config
        self.epoch = 0
        self.dialect: Dialect = CLASSIC if config.speaks_plainly else OURS
        self.tables_at = ""
        self.is_learner = False
        self.is_in_sync = True
        self._history = history
        self.limit_s: float | None = None
        self.receiver = Receiver(self, loop)
        self.trouble: str | None = None
        self._loop = loop
        self._machine = machine
        self._log: CommitLog | None = None
        self._hint: LeaderHint | None = None
        self._has_reached = False  # whether the process has had contact with a master
        self._record_end = 0
        self._found_end = 0  # end found by recovery, or start of a log that began anew
        self._damaged_at: int | None = None  # offset of the first damaged record that may not have been synced
        self._master_confirmed = 0
        self._is_streaming = False
        self._has_heard = False  # the master's confirm offset on this stream
        self._heard_s = -math.inf  # when a master was last heard, or a new one named, or this node was master
        self._has_diverged = False
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MARKS_MAX)  # ends of frames, and of the records in them
        self._durable = 0
        self._lacks_state = False  # whether the log began anew and the master's snapshot is not restored yet
        self._wants_durable = False
        self._own_nonce = make_nonce()
        self._logged = ""

    def attach(self, log: CommitLog) -> None:
        """Set the log whose part this is."""
        self._log = log

    def start(self) -> None:
        """Begin to copy."""
        self.receiver.start()

    def follow(self, address: str, client_address: str) -> bool:
        """Take over the master's addresses from a nameserver; a configured address has priority.

        Args:
            address: `host:port` for slaves; empty: not known there.
            client_address: `host:port` for clients; empty: not known there.

        Returns:
            Whether this slave now has all addresses that it needs.
        """
        if address and not self.config.master_address:
            self.receiver.address = address
        if client_address and self.config.speaks_plainly:
            self._hint = LeaderHint(f"{self.config.group.name}/0", client_address)
            self.tables_at = client_address
        return True

    def follow_elected(self, epoch: int, ha_address: str, hint: LeaderHint | None, dialect: Dialect = OURS) -> None:
        """Copy the log of the master that the controllers have named, or of none.

        Args:
            epoch: of the master.
            ha_address: where it listens to slaves; empty: it is not known yet, or there is none.
            hint: the master for clients; None: there is none.
            dialect: what it speaks.
        """
        if epoch != self.epoch:
            self.receiver.address = ""
            self._hint = None
            if self._silent_s <= self._silent_max_s:  # no slave is in the set of a new master before it has reached it
                self._heard_s = self._loop.time()
        if hint is None or self._hint is None:
            self._hint = hint
        else:
            self._hint = dataclasses.replace(hint, inside_address=self._hint.inside_address)
        if dialect is not self.dialect:
            self.receiver.dial_again()
        self.epoch, self.dialect = epoch, dialect
        self.tables_at = hint.address if hint is not None and dialect is not OURS else ""
        self.receiver.address = ha_address

    def learn_only(self, is_learner: bool) -> None:
        """Set whether RocketMQ's elected master is told that this slave never counts."""
        self.is_learner = is_learner
        if self.dialect is AUTO_SWITCH:
            self.receiver.dial_again()

    def stop_following(self) -> None:
        """Stop copying; drop a record that has not arrived whole.

        Raises:
            DiskFailedError: the disk refused to drop it.
        """
        self.receiver.address = self.tables_at = ""
        self._is_streaming = False
        self._cut_incomplete_record()

    def resume(self) -> None:
        """Begin as slave after having been master: the log ends with a whole record."""
        self._found_end = self._queue.max_offset
        self._ends_at(self._found_end)
        self._master_confirmed = self._attached.confirm_offset
        self._damaged_at = None
        self.trouble, self._has_diverged = None, False
        self._heard_s = self._loop.time()

    @property
    def is_streaming(self) -> bool:
        """Whether this slave is connected to its master and copies."""
        return self._is_streaming

    @property
    def heard(self) -> int | None:
        """Confirm offset of the master that is copied now; None before it was received."""
        return self._master_confirmed if self._is_streaming and self._has_heard else None

    @property
    def lacks_state(self) -> bool:
        """Whether the log began anew and the master's snapshot is not restored yet: this node must not be master."""
        return self._lacks_state

    @property
    def is_level(self) -> bool:
        """See `Readiness.is_level`; not if nothing was heard of a master for the time of two of its heartbeats.

        A master that goes on alone has had this slave removed from the in-sync set: then a second is enough. A new
        master has a second, too, in which this slave can reach it. A learner is never in that set.
        """
        silent_max_s = self._silent_max_s
        if not (self.is_in_sync or self.is_learner):
            silent_max_s = min(silent_max_s, _ALONE_S)
        is_copy = not (self._has_diverged or self._lacks_state or self._silent_s > silent_max_s)
        return is_copy and self._master_confirmed - self._attached.confirm_offset <= LEVEL_BYTES

    @property
    def _silent_s(self) -> float:
        return self._loop.time() - self._heard_s

    @property
    def _silent_max_s(self) -> float:
        return 2 * self.config.group.heartbeat_s

    # ---- the part of the log

    def state(self, refusal: Refusal | None) -> LogState:
        """See `Part`: never writable."""
        if refusal is None:
            where = "its master" if self._hint is None else f"its master at {self._hint.address}"
            refusal = Refusal(Cause.NOT_LEADER, f"this broker is a slave: send to {where}", leader_hint=self._hint)
        return LogState(LogRole.SLAVE, self.epoch, self._hint, refusal)

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """See `Part`: dispatched records are confirmed; later ones are once the master confirms them.

        RocketMQ's master does not tell what it confirmed, so every whole record counts. A power cut may damage records
        after the dispatched ones and leave later ones whole; they are dropped once a master can send them again.
        """
        self._found_end = end
        self._ends_at(end)
        dispatched = 0 if checkpoint.progress is None else checkpoint.progress.dispatched_offset
        self._damaged_at = min((offset for offset in damaged if offset >= dispatched), default=None)
        if self.config.speaks_plainly or checkpoint.progress is None:
            confirmed = end if self._damaged_at is None else self._damaged_at
        else:
            confirmed = min(end, dispatched)
        self._master_confirmed = confirmed
        return confirmed

    def check(self) -> None:
        """Refuse: a slave's records come from the master only.

        Raises:
            Refusal: always.
        """
        refusal = self.state(None).refusal
        assert refusal is not None
        raise refusal

    def on_placed(self) -> None:
        """Do nothing: the next report tells the master."""

    def settle(self, local: int, flushed: int) -> Settlement:
        """See `Part`: whole records that the master has confirmed and that are in the file here."""
        confirmed = min(self._record_end, self._master_confirmed, local)
        return Settlement(confirmed, confirmed, _NOT_ASKED)

    def late(self) -> Refusal:
        """See `Part`; not called, since no batch waits at a slave."""
        raise AssertionError("a batch waits at a slave")

    def needed_offset(self) -> int | None:
        """See `Part`: None, since no other node copies from a slave."""
        return None

    def readiness(self) -> Readiness:
        """See `Part`: ready once it has reached the master, also while that is away, unless the logs differ."""
        if self._has_diverged or self._lacks_state or not (self._has_reached or self._hint):
            return Readiness(False, self.trouble or "a slave that has not reached its master yet", is_level=False)
        state = "copies" if self._is_streaming else f"has lost ({self.trouble})"
        where = self.receiver.address if self._hint is None else self._hint.address
        return Readiness(True, f"slave, {state} its master at {where}", self.is_level)

    def generations(self) -> Sequence[Generation]:
        """See `Part`: none, since there are no elections."""
        return ()

    def replicas(self) -> Sequence[Replica]:
        """See `Part`: none, since no other node copies from a slave."""
        return ()

    def metrics(self) -> Iterator[Family]:
        """See `Part`: whether it copies, and how far it is behind the last known confirm offset of the master."""
        yield Family("ledgermq_slave_connected", "gauge", "1 while this slave copies.", [((), int(self._is_streaming))])
        behind = max(self._master_confirmed - self._queue.max_offset, 0)
        explanation = "Of what the master has confirmed and this slave has not."
        yield Family("ledgermq_slave_behind_bytes", "gauge", explanation, [((), behind)])

    def transfer(self, target: str | None) -> str:
        """See `Part`: always refused."""
        raise appointed()

    async def drain(self) -> None:
        """See `Part`: stop copying."""
        await self.receiver.close()

    async def close(self) -> None:
        """Do nothing."""

    # ---- for the receiver

    def hello(self, nonce: bytes) -> bytes:
        """See `CopiedLog`. Until a snapshot is restored, the hello says that the log is empty, to get it again.

        After a kill in that state the log has no files, so that the next process says the same. A record that has not
        arrived whole is dropped before, so that the tail ends with a record.

        Raises:
            DiskFailedError: the disk refused to drop it.
        """
        self._own_nonce = nonce
        queue = self._queue
        if self._lacks_state:
            return self.config.group.hello(nonce, 0, Tail(start=0, end=0, crc=0), self.epoch).encode()
        self._drop_damaged()
        self._cut_incomplete_record()
        epochs = () if self._history is None else self._history.epochs
        hello = self.config.group.hello(nonce, queue.min_offset, tail_of(queue), self.epoch, epochs)
        return hello.encode()

    def agree(self, answer: MasterAnswer) -> None:
        """See `CopiedLog`: RocketMQ's elected master sends nothing but its epochs to compare the logs."""
        assert self._history is not None, "only elected masters have epochs"
        self._drop_damaged()
        self._cut_incomplete_record()
        queue, newest = self._queue, answer.epochs[-1].number if answer.epochs else 0
        if newest > self.epoch:
            raise HaError(f"the master there has epoch {newest}, the one to follow has {self.epoch}")
        if self._lacks_state:
            raise DivergedLogError("no state", "the log begins anew, and RocketMQ's master sends no tables for it")
        if queue.max_offset > queue.min_offset:
            agreed = common_end(self._history.epochs, queue.max_offset, answer.epochs, answer.end)
            if agreed is None or agreed < queue.min_offset:
                raise DivergedLogError("other bytes", f"the logs have no epoch in common from {queue.min_offset} on")
            if agreed < queue.max_offset:
                self._cut_back(agreed)
        self._history.take_over(answer.epochs)

    def check_welcome(self, welcome: MasterWelcome) -> None:
        """See `CopiedLog`."""
        self.config.group.welcome(self._own_nonce, 0, 0, wants_durable=False).check(welcome)
        if welcome.epoch != self.epoch:
            raise HaError(f"the master there has epoch {welcome.epoch}, the one to follow has {self.epoch}")

    def begin(self, welcome: MasterWelcome | None, snapshot: bytes) -> None:
        """See `CopiedLog`."""
        queue, log = self._queue, self._attached
        self._drop_damaged()
        if welcome is not None:
            if self._history is not None:
                self._cut_what_differs(welcome, begins_anew=bool(snapshot))
            if snapshot or welcome.start != queue.max_offset:
                _log.warning("begins anew at %d; had %d to %d", welcome.start, queue.min_offset, queue.max_offset)
                self._lacks_state = bool(snapshot)
                log.restart(welcome.start)
                self._found_end = self._master_confirmed = welcome.start
                self._ends_at(welcome.start)
                if snapshot:
                    self._machine.restore(snapshot)
            self._lacks_state = False
            if self._history is not None:
                self._history.take_over(_epochs_of(welcome))
            self._wants_durable = welcome.wants_durable
            if self._wants_durable:
                # bytes of an earlier stream for which no flush was requested
                log.local.sync(queue.max_offset, self._on_durable)
            if self._history is None:
                self._hint = LeaderHint(f"{welcome.name}/0", welcome.client_address, welcome.inside_address)
            elif self._hint is not None:  # the controllers know only the address for clients
                self._hint = dataclasses.replace(self._hint, inside_address=welcome.inside_address)
        self._has_reached = True
        self._heard_s = self._loop.time()
        self._is_streaming, self._has_diverged, self._has_heard = True, False, False
        self.trouble, self._logged = None, ""
        _log.info("copies the log of the master at %s from %d on", self.receiver.address, queue.max_offset)
        log.tell_role()

    def take(self, header: Header, data: memoryview) -> None:
        """See `CopiedLog`."""
        queue, log = self._queue, self._attached
        end = queue.max_offset
        if header.size and header.offset != end:
            if end or self.dialect is OURS:
                raise HaProtocolError(f"the master sends from {header.offset}, the log here ends at {end}")
            log.restart(header.offset)  # RocketMQ's master chooses where an empty slave begins
            self._found_end = self._master_confirmed = header.offset
            self._ends_at(header.offset)
        if header.size:
            end = log.receive(data)
            self._find_record_end(end)
            self._marks.append((end, self._record_end))
        self._master_confirmed = end if header.confirm_offset is None else header.confirm_offset
        self._has_heard = True
        self._heard_s = self._loop.time()
        if header.size and self._wants_durable and not log.local.is_sync:
            log.local.sync(end, self._on_durable)
        if not header.size:
            self._loop.call_soon(log.settle)  # reported together with what has arrived after this frame

    def report(self) -> Report:
        """See `CopiedLog`. To RocketMQ's master, and where masters are elected, with SYNC_FLUSH only what is durable.

        To our master both are ends of records, since it confirms up to them, and other slaves may end there. A
        master with ASYNC_FLUSH acknowledges what was received, and an elected replica with SYNC_FLUSH must not lose it.
        """
        if self.dialect is not CLASSIC:
            durable = self._durable_end()
            is_safe = self._history is not None and self._attached.local.is_sync
            return Report(durable if is_safe else self._record_end, durable)
        queue = self._queue
        received = queue.max_offset
        durable = min(queue.flushed_offset, received)
        return Report(durable if self._attached.local.is_sync else received, durable)

    def resolve(self, error: DivergedLogError) -> bool:
        """See `CopiedLog`."""
        log = self._attached
        keep = max(log.confirm_offset, self._found_end)
        if log.max_offset > keep:
            _log.warning("%s; cut back from %d to %d, below which it may be confirmed", error, log.max_offset, keep)
            log.cut(keep)
            self._ends_at(keep)
            return True
        self._has_diverged = True
        return False

    def lost(self, error: Exception | None) -> None:
        """See `CopiedLog`."""
        self._is_streaming = False
        self.trouble = "the master has closed the connection" if error is None else str(error) or repr(error)
        if self._has_diverged:
            self.trouble = f"the log here is not a copy of the master's: {self.trouble}"
        if self.trouble != self._logged:
            self._logged = self.trouble
            level = logging.ERROR if self._has_diverged else logging.WARNING
            _log.log(level, "does not copy the log of %s: %s", self.receiver.address, self.trouble)

    def on_flushed(self) -> None:
        """Report that more is durable here."""
        self.receiver.report()

    # ---- internals

    def _cut_what_differs(self, welcome: MasterWelcome, *, begins_anew: bool) -> None:
        """Cut records that the elected master does not have; the old epochs stay and show that the logs differ.

        Raises:
            HaError: the log was cut; dial again, so that its new end is compared.
            DivergedLogError: the tables that belong to the cut are not known here, and the master sends none.
            StoreError: the disk refused.
        """
        queue = self._queue
        start = welcome.start
        if self._lacks_state and not begins_anew:
            raise DivergedLogError("no state", f"the log begins anew at {start}, and the master sends no tables for it")
        if begins_anew or not queue.min_offset <= start < queue.max_offset:
            return
        self._cut_back(start)

    def _drop_damaged(self) -> None:
        """Drop the records from the first one on that the last power cut damaged: this slave never had them durably.

        Raises:
            DiskFailedError: the disk refused.
        """
        start, self._damaged_at = self._damaged_at, None
        if start is not None and start < self._queue.max_offset:
            _log.warning("the record at %d is damaged: the log is cut there, and copied anew", start)
            self._attached.cut(start)
            self._found_end = start
            self._ends_at(start)

    def _cut_incomplete_record(self) -> None:
        """Drop a record of which the last stream brought only a part. Raises `DiskFailedError`: the disk refused."""
        if self._record_end < self._queue.max_offset:
            self._attached.cut(self._record_end)

    def _cut_back(self, start: int) -> None:
        """Cut records that the elected master does not have. Raises as `_cut_what_differs`, also on success."""
        end = self._queue.max_offset
        _log.warning("the log of the master of epoch %d differs from %d on; had %d", self.epoch, start, end)
        try:
            self._attached.cut_back(start)
        except StateUnknownError:
            self._lacks_state = True
            raise
        self._found_end = start
        self._ends_at(start)
        self._master_confirmed = min(self._master_confirmed, start)
        raise HaError(f"cut back from {end} to {start}, where the master's log differs")

    @property
    def _attached(self) -> CommitLog:
        assert self._log is not None, "attach() comes first"
        return self._log

    @property
    def _queue(self) -> MappedFileQueue:
        return self._attached.local.queue

    def _durable_end(self) -> int:
        """End of the last record that is durable here, as far as it is known."""
        flushed, marks = self._queue.flushed_offset, self._marks
        if flushed >= self._queue.max_offset:
            marks.clear()
            self._durable = self._record_end
        while marks and marks[0][0] <= flushed:
            self._durable = marks.popleft()[1]
        return min(self._durable, self._record_end)

    def _on_durable(self, _flushed_offset: int) -> None:
        self.receiver.report()

    def _ends_at(self, end: int) -> None:
        """Note the new end of a log that was cut or began anew; a whole record ends there."""
        self._record_end = end
        self._durable = min(self._durable, end)
        self._marks.clear()

    def _find_record_end(self, written: int) -> None:
        """Move on over the whole records that have arrived.

        Raises:
            HaProtocolError: what arrived is no record; it is cut off again.
        """
        try:
            self._record_end = whole_records_end(self._queue, self._record_end, written)
        except CorruptRecordError as error:
            self._attached.cut(self._record_end)
            text = f"the master sends what is no record, at {error.position}: {error.detail}"
            raise HaProtocolError(text) from error


def _epochs_of(welcome: MasterWelcome) -> Epochs:
    try:
        return from_text(welcome.epochs)
    except ValueError as error:
        raise HaProtocolError(f"the master tells of epochs {welcome.epochs[:80]!r}: {error}") from error
