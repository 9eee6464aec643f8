"""The replicated log of a Raft broker: the seam `store.replicated_log` on a `RaftNode`, its files and its connections.

    append --`Proposer`--> encoded, one write --> end of turn: proposed --> spans to peers, flush
    peers' answers, flush reports --> node --`LogEvents`--> listeners, then `done` of the batches, oldest first
    a peer's span --`PeerInbox`--> node --> copied into the mapping --> flushed --> answered

To open it call `open_files` (in a thread), the constructor and `start`; the store may be opened between the last two.
Everything but `open_files` runs on the loop's thread.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dledger.background import Checkpointer, CopyFetcher
from dledger.config import RaftConfig
from dledger.core.errors import ImplausibleMessageError, RaftError
from dledger.core.messages import BusyNotice
from dledger.log.entry import HEADER_SIZE
from dledger.log.entry_batches import EntryBatches
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import HardStateFile
from dledger.log.identity import directory_of
from dledger.log.membership import members_text
from dledger.log.raft_files import RaftFiles
from dledger.log.reader import is_sound, walk_records
from dledger.log.recovery import DamagedEntry
from dledger.log.store_clock import StoreClock
from dledger.log.term_start import term_start_draft
from dledger.log_events import LogEvents
from dledger.node import RaftNode
from dledger.node_status import NodeStatus, metrics_of
from dledger.node_timers import TICK_S, NodeTimers, now_ms
from dledger.peers.busy_notices import BusyNotices
from dledger.peers.hello import PROTOCOL_VERSION, Hello
from dledger.peers.inbox import PeerInbox
from dledger.peers.peer_book import PeerBook
from dledger.peers.transport import TcpTransport
from dledger.proposer import Proposer
from dledger.refusals import no_quorum
from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.errors import DiskReadError, RecordUnavailableError, StoreError
from store.files.deferred_removal import FileRemoval
from store.files.log_span import LogSpan, Read
from store.log.flusher import Flusher, FlushMode
from store.replicated_log import (
    DiskBacklog,
    Done,
    Generation,
    LogListener,
    LogState,
    Readiness,
    Replica,
    StateMachine,
)
from telemetry.families import Family

_DRAIN_S = 1.0
_LEVEL_ENTRIES = 20_000
"""Committed entries that a member may lack and still serve consumers: it gets them within about half a second."""

_RETRY_AFTER_MS = 200

_log = logging.getLogger(__name__)


class RaftLog:
    """A `ReplicatedLog` whose appends complete when a quorum holds them.

    Args:
        config: configuration of this node.
        files: result of `open_files(config)`; `close` closes them.
        loop: the event loop on which everything runs.
        machine: the state that the broker's state records build; sent to a follower that needs an install.
        clock: store time in ms.
        on_flushed: called with the flushed offset and the seconds of each sync; for metrics.

    Raises:
        StoreFormatError, DiskFullError, DiskFailedError: term and vote cannot be read or written.
    """

    def __init__(
        self,
        config: RaftConfig,
        files: RaftFiles,
        loop: asyncio.AbstractEventLoop,
        *,
        machine: StateMachine,
        clock: Callable[[], int] = wall_clock_ms,
        on_flushed: Callable[[int, float], None] | None = None,
    ) -> None:
        self.config = config
        self._files = files
        self._loop = loop
        self._store_clock = StoreClock(clock)
        self._report_flush = on_flushed
        self._peers = PeerBook(files.known_peers, config.own_hint)
        self._removal = FileRemoval(loop)

        directory = directory_of(config.store_dir, config.self_id)
        log = self._entries = EntryLog(
            directory, files.opened, store_host=config.store_host, term_start=self._term_start
        )
        self._events = LogEvents(config, log, self._peers, self._note_failure)
        self._flusher = Flusher(log.data, loop, on_failed=self._on_disk_failed, on_flushed=self._on_flushed)
        log.attach(self._flusher)
        self._hard_states = HardStateFile(directory, loop=loop, on_failed=self._on_disk_failed)
        inbox = PeerInbox(log, self._peers, self._events, self._on_disk_failed)
        others = {peer.node_id: peer for peer in config.peers if peer.node_id != config.self_id}
        hello, queue_limit_bytes = _hello(config, files), 4 * config.peer_window_bytes
        self._transport = TcpTransport(hello, others, inbox, queue_limit_bytes, config.peer_secrets)
        self._node = RaftNode(
            config.settings,
            log=log,
            hard_states=self._hard_states,
            transport=self._transport,
            machine=machine,
            listener=self._events,
            jitter=random.randrange,
            now_ms=now_ms(loop),
            commit_index=files.checkpoint.committed_index,
        )
        self._events.attach(self._node)
        self._proposer = Proposer(config, loop, self._store_clock, log, self._events, self._node, self._peers)
        self._notices = BusyNotices(config.settings, self._transport.links, self._on_notice)
        self._copies = CopyFetcher(log, self._transport.send, self._on_repaired, self._on_disk_failed)
        self._checkpointer = Checkpointer(directory, log, lambda: self._node.commit_index, self._on_disk_failed)
        self._timers = NodeTimers(
            config,
            node=self._node,
            log=log,
            flusher=self._flusher,
            batches=self._events.batches,
            peers=self._peers,
            copies=self._copies,
            checkpointer=self._checkpointer,
            notices=self._notices,
            no_quorum=self._no_quorum,
        )
        inbox.attach(self._node, self._copies, self._timers)
        log.integrity.on_damage = self._on_damage

    def _on_notice(self, peer_id: str, notice: BusyNotice) -> None:
        with contextlib.suppress(ImplausibleMessageError):
            self._node.on_message(peer_id, notice)

    async def start(self) -> None:
        """Listen for peers, connect to them and take part in the group.

        Raises:
            ListenError: this node's address in `peers` is taken or not an address of this machine.
        """
        config = self.config
        host, port = config.listen_host or config.listen_address.host, config.listen_address.port
        await self._transport.start(host, port)
        await self._notices.start(host, port)
        if config.flush_mode is FlushMode.ASYNC:
            self._flusher.flush_every(config.flush_interval_ms / 1000)
        self._events.begin()
        self._timers.start()

    async def close(self) -> None:
        """Wait for batches to be committed, hand leadership over, refuse the rest, flush and close."""
        events = self._events
        is_clean = events.refusal is None or events.refusal.cause is Cause.RECOVERING
        events.refusal = Refusal(Cause.SHUTTING_DOWN, f"{self.config.self_id} is shutting down")
        events.tell_role()
        if self._timers.is_running:
            await self._drain()
            self._timers.stop()
            self._node.step_down()
            await asyncio.sleep(0)  # the message to the successor is sent at the end of this turn
        events.refuse_all(events.refusal)
        await self._transport.close()
        await self._timers.finish()
        await self._flusher.close()
        await self._removal.finish()
        await self._loop.run_in_executor(None, self._hard_states.close)
        is_clean = is_clean and self._flusher.failed is None
        if is_clean:
            await self._checkpointer.write()
        await self._loop.run_in_executor(None, lambda: self._files.close(is_clean=is_clean))

    # ---- the replicated log

    @property
    def state(self) -> LogState:
        """Writable while this node leads, nothing before its term is undecided and no entry to be served is damaged."""
        return self._events.state

    @property
    def directory(self) -> Path:
        """The node's Raft directory."""
        return directory_of(self.config.store_dir, self.config.self_id)

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest kept entry."""
        return self._entries.first_position

    @property
    def max_offset(self) -> int:
        """End of the last entry."""
        return self._entries.max_position

    @property
    def confirm_offset(self) -> int:
        """End of the last committed entry, or the start of the first damaged entry before it."""
        return self._events.confirm_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable on this node, committed or not."""
        return self._entries.data.flushed_offset

    def add_listener(self, listener: LogListener) -> None:
        """Add a listener; listeners are called in the order in which they were added."""
        self._events.listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. `struct.error` for a draft that cannot be encoded; nothing is placed then."""
        self._proposer.append(drafts, done)

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`; the CRC of bytes that this process did not write is checked first."""
        log, confirmed = self._entries, self._events.confirm_offset
        is_served = log.first_position <= physical_offset and physical_offset + size_bytes <= confirmed
        if is_served and physical_offset < log.integrity.verified_position and not is_sound(log, physical_offset):
            damage = log.integrity.damage_at(physical_offset - HEADER_SIZE)
            if damage is not None:  # readers must wait for the copy, and not pass over it
                raise DiskReadError(damage.file, damage.file_offset, damage.detail)
            is_served = False
        if not is_served:
            raise RecordUnavailableError(physical_offset, size_bytes, log.first_position, confirmed)
        return log.data.slice(physical_offset, size_bytes)

    def reader(self) -> Read:
        """See `ReplicatedLog.reader`; only bytes that this process wrote are read without a check."""
        log = self._entries
        start = max(log.first_position, log.integrity.verified_position)
        return log.data.reader(start, self._events.confirm_offset, self.read)

    def span(self, physical_offset: int) -> LogSpan | None:
        """See `ReplicatedLog.span`; None for bytes that this process did not write."""
        log = self._entries
        start = max(log.first_position, log.integrity.verified_position)
        return log.data.span(physical_offset, start, self._events.confirm_offset)

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """See `ReplicatedLog.walk`; headers are checked, bodies are not."""
        return walk_records(self._entries.data, start_offset, end_offset)

    def batches(self) -> EntryBatches:
        """Return what `walk` returns in batches of thousands, for recovery."""
        log = self._entries
        return EntryBatches(log.data, log.integrity.verified_position, self._examine_from)

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """See `ReplicatedLog.sealed_files`."""
        limit = min(self._events.confirm_offset, self.flushed_offset)
        return [(file.path, file.end_offset) for file in self._entries.data.files[:-1] if file.end_offset <= limit]

    def trim(self, before: int) -> int:
        """See `ReplicatedLog.trim`. A leader keeps entries that a connected member has not received yet."""
        log = self._entries
        limit = min(before, self._events.confirm_offset, self.flushed_offset)
        needed = self._node.needed_index()
        if needed is not None:
            limit = min(limit, log.end_position(needed - 1))
        taken = log.take_before(limit)
        if taken is not None:
            self._node.on_trimmed()
            self._removal.start(log.data, taken.data)
            self._removal.start(log.units.files, taken.index)
        return self.min_offset

    def transfer(self, target: str | None) -> str:
        """See `ReplicatedLog.transfer` and `RaftNode.transfer`."""
        try:
            return self._node.transfer(target)
        except RaftError as error:
            raise Refusal(Cause.BUSY, str(error), retry_after_ms=_RETRY_AFTER_MS) from error

    def watch_room(self, why_full: Callable[[], str | None]) -> None:
        """Hand over when this node leads and `why_full` says, for two seconds, why there is no room for messages."""
        self._timers.why_full = why_full

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """See `ReplicatedLog.set_reads_ahead`; refused, since a write into a fresh page would wait for the read."""
        if reads_ahead:
            raise Refusal(Cause.NOT_SUPPORTED, "read-ahead cannot be switched on for the files of a Raft log")

    def backlog(self) -> DiskBacklog:
        """See `ReplicatedLog.backlog`."""
        return DiskBacklog(0, self.max_offset - self.flushed_offset, None)

    def readiness(self) -> Readiness:
        """Return whether the node knows its role and can serve the log, with the text for operators."""
        soft = self._events.soft
        if self._events.refusal is not None:
            return Readiness(False, self._events.refusal.remark, is_level=False)
        if self._timers.is_stalled:
            why = f"the disk has not answered for {self.config.disk_stall_ms} ms"
            return Readiness(False, why, is_level=False)
        if soft.recovering:
            return Readiness(False, "recovering: waits for a leader to bring this node up", is_level=False)
        status = self._node.status()
        is_level = status.leader_commit - status.commit_index <= _LEVEL_ENTRIES
        if soft.leader_id is None:
            missing = ", ".join(status.waits_for) or "votes"
            return Readiness(False, f"no leader is known in term {soft.term}; waits for {missing}", is_level)
        return Readiness(True, f"{soft.role.value} in term {soft.term}, leader {soft.leader_id}", is_level)

    def generations(self) -> Sequence[Generation]:
        """See `ReplicatedLog.generations`: every term of which an entry is kept."""
        log = self._entries
        runs = (run for run in log.term_runs if run.first_index <= log.last_index)
        return [Generation(run.term, log.units[run.first_index][0]) for run in runs]

    def replicas(self) -> Sequence[Replica]:
        """See `ReplicatedLog.replicas`; a recovering member does not count towards a majority."""
        end, address_of, status = self._entries.end_position, self._peers.address, self._node.status()
        return [
            Replica(
                peer.peer_id,
                end(peer.received_index),
                end(peer.durable_index),
                not peer.recovering,
                address_of(peer.peer_id),
                self.config.broker_id_of(peer.peer_id),
                peer.is_heard and not peer.recovering and status.commit_index - peer.received_index <= _LEVEL_ENTRIES,
            )
            for peer in status.peers
        ]

    def metrics(self) -> Iterator[Family]:
        """See `ReplicatedLog.metrics`."""
        yield from metrics_of(self._node.status())
        explanation = "Connections at the Raft port refused (secret, cluster, group, ...) or closed for an error."
        yield Family("ledgermq_refused_peers_total", "counter", explanation, [((), self._transport.refused_count)])

    # ---- for tests and the timers of the node

    @property
    def flush_pending_since(self) -> float | None:
        """`time.monotonic()` at which the running sync began; None while none runs."""
        return self._flusher.pending_since

    @property
    def damages(self) -> list[DamagedEntry]:
        """Damaged entries that wait for a copy from a peer."""
        return self._entries.integrity.damages

    @property
    def port(self) -> int:
        """The port at which this node listens for peers."""
        return self._transport.port

    def status(self) -> NodeStatus:
        """See `RaftNode.status`."""
        return self._node.status()

    def allow_missing(self) -> None:
        """See `RaftNode.allow_missing`."""
        self._node.allow_missing()

    # ---- internals

    async def _drain(self) -> None:
        deadline = self._loop.time() + _DRAIN_S
        while self._events.batches and self._loop.time() < deadline:
            await asyncio.sleep(TICK_S)

    def _on_flushed(self, flushed_offset: int, seconds: float) -> None:
        self._entries.note_flushed(flushed_offset)
        if self._report_flush is not None:
            self._report_flush(flushed_offset, seconds)

    def _on_disk_failed(self, error: StoreError) -> None:
        self._node.on_disk_failed(error)

    def _note_failure(self) -> None:
        self._loop.run_in_executor(None, self._files.marker.note_disk_failure)

    def _on_damage(self, damage: DamagedEntry) -> None:
        _log.error("a damaged entry waits for a copy from a peer: %s", damage)

    def _on_repaired(self) -> None:
        self._node.on_flushed(self._entries.durable_index, self._entries.generation)
        self._events.confirm()
        self._events.tell_role()

    def _examine_from(self, position: int) -> int:
        """See `LogIntegrity.examine_from`; before `start`, when nobody has asked for the confirm offset yet."""
        log = self._entries
        found = log.integrity.examine_from(log.first_index, position)
        self._node.on_damage_found()
        self._events.on_damage_found()
        return found

    def _no_quorum(self, waiting: int) -> Refusal:
        received, durable = self._node.copies(self._entries.last_index)
        return no_quorum(self.config, self._events.soft.term, received, durable, waiting)

    def _term_start(self, term: int) -> RecordDraft:
        self._store_clock.go_past(self._entries)
        return term_start_draft(term, self.config.self_id, self.config.store_host, self._store_clock.now_ms())


def _hello(config: RaftConfig, files: RaftFiles) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        cluster=config.cluster,
        group=config.group,
        members=members_text(peer.node_id for peer in config.peers),
        node_id=config.self_id,
        to="",
        nonce="",
        incarnation=files.identity.incarnation,
        session=secrets.token_hex(8),
        client_address=config.client_address,
        inside_address=config.inside_address,
        data_file_size=config.data_file_size_bytes,
    )
