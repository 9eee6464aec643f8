"""The replicated log of a Raft broker: the seam `store.replicated_log` over a `RaftNode`, its files and its links.

    append --> encoded in the mapping --> end of turn: proposed --> spans to peers, flush
    peers' answers, flush reports --> node --> on_commit --> listeners, then `done` of the batches, from the left
    a peer's span --> CRC, chain of headers --> node --> copied into the mapping --> flushed --> answered

Open it in this order: `open_files` (in a thread), construct, `start`; the store may be opened between the last two.
Everything but `open_files` happens on the loop's thread.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dledger.background import Checkpointer, CopyFetcher, Scrubber
from dledger.batches import WaitingBatches
from dledger.config import RaftConfig
from dledger.core.errors import NotLeaderError, TransferRefusedError
from dledger.core.messages import AppendRequest
from dledger.core.roles import Role, SoftState
from dledger.core.settings import RaftSettings
from dledger.entry_log import EntryLog
from dledger.errors import EntryFormatError, PeerProtocolError
from dledger.hard_state import HardStateFile
from dledger.hello import PROTOCOL_VERSION, Hello
from dledger.identity import directory_of
from dledger.log_reader import is_sound, walk_records
from dledger.log_recovery import Damage
from dledger.node import NodeStatus, RaftNode
from dledger.ports import StateMachine
from dledger.raft_files import RaftFiles
from dledger.refusals import leader_changed, not_leader, refusal_of
from dledger.term_start import term_start_draft
from dledger.transport import Transport
from dledger.wire import CopyRequest, CopyResponse, PeerMessage
from ledgermq.message.draft import RecordDraft
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.errors import RecordUnavailableError, StoreError
from store.flusher import Flusher, FlushMode
from store.replicated_log import AppendReceipt, Done, LogListener, LogState

TICK_S = 0.02
_DRAIN_S = 1.0
_HAND_OVER_S = 2.0

_log = logging.getLogger(__name__)


class RaftLog:
    """A `ReplicatedLog` whose appends complete when a quorum holds them.

    Args:
        config: who this node is.
        files: what `open_files(config)` found; closed by `close`.
        loop: on which everything happens.
        machine: what the broker's state records built; given to a follower that starts anew.
        clock: store time in ms.
        on_flushed: flushed offset and seconds of each sync; for metrics.

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
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_flushed: Callable[[int, float], None] | None = None,
    ) -> None:
        self.config = config
        self._files = files
        self._loop = loop
        self._clock = clock
        self._report_flush = on_flushed
        self._listeners: list[LogListener] = []
        self._batches = WaitingBatches()
        self._addresses = {config.self_id: config.client_address}
        self._joined: set[str] = set()
        self._refusal: Refusal | None = Refusal(Cause.RECOVERING, "the Raft log is not started yet", retry_after_ms=100)
        self._is_turn_open = False
        self._is_stalled = False
        self._ticker: asyncio.TimerHandle | None = None
        self._slow_tick_at = 0.0
        self._blocked_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_timestamp = 0
        self._saving_peers = asyncio.Lock()

        directory = directory_of(config.store_dir, config.self_id)
        log = self._entries = EntryLog(
            directory, files.opened, store_host=config.store_host, term_start=self._term_start
        )
        self._flusher = Flusher(log.data, loop, on_failed=self._on_disk_failed, on_flushed=self._on_flushed)
        log.attach(self._flusher)
        self._hard_states = HardStateFile(
            directory,
            last_term=log.term_runs[-1].term if log.term_runs else 0,
            doubt=files.doubt,
            loop=loop,
            on_failed=self._on_disk_failed,
        )
        others = {peer.node_id: peer for peer in config.peers if peer.node_id != config.self_id}
        self._transport = Transport(_hello(config, files), others, self, 4 * config.peer_window_bytes)
        self._node = RaftNode(
            _settings(config),
            log=log,
            hard_states=self._hard_states,
            transport=self._transport,
            machine=machine,
            listener=self,
            jitter=random.randrange,
            now_ms=self._now_ms(),
            commit_index=files.checkpoint.committed_index,
        )
        self._soft = self._node.soft_state
        self._copies = CopyFetcher(log, self._transport.send, self._on_repaired, self._on_disk_failed)
        self._scrubber = Scrubber(log)
        self._checkpointer = Checkpointer(directory, log, lambda: self._node.commit_index, self._on_disk_failed)
        log.care.on_damage = self._on_damage
        self._confirm_offset = self._confirmable()
        self._told = self.state

    async def start(self) -> None:
        """Listen, dial the peers, take part.

        Raises:
            ListenError: this node's address in `peers` is taken or not its own.
        """
        config = self.config
        await self._transport.start(config.listen_host or config.listen_address.host, config.listen_address.port)
        if config.flush_mode is FlushMode.ASYNC:
            self._flusher.flush_every(config.flush_interval_ms / 1000)
        self._refusal = None
        self._tick()

    async def close(self) -> None:
        """Let what waits be committed, hand over, refuse the rest, flush, close."""
        shutting_down = Refusal(Cause.SHUTTING_DOWN, f"{self.config.self_id} is shutting down")
        is_clean = self._refusal is None or self._refusal.cause is Cause.RECOVERING
        if self._ticker is not None:
            self._refusal = shutting_down
            self._tell_role()
            await self._drain()
            self._ticker.cancel()
            self._node.step_down()
            await asyncio.sleep(0)  # the successor's message leaves with the end of this turn
        self._refusal = shutting_down
        self._batches.refuse_after(-1, lambda: shutting_down)
        await self._transport.close()
        await asyncio.gather(*self._tasks, self._copies.close())
        await self._flusher.close()
        await self._loop.run_in_executor(None, self._hard_states.close)
        is_clean = is_clean and self._flusher.failed is None
        if is_clean:
            await self._checkpointer.write()
        await self._loop.run_in_executor(None, lambda: self._files.close(is_clean=is_clean))

    # ---- the replicated log

    @property
    def state(self) -> LogState:
        """Writable while this node leads, its term is committed, and nothing it must serve is damaged."""
        soft = self._soft
        is_writable = soft.writable and self._refusal is None and self._entries.care.first_blocking is None
        return LogState(is_writable, soft.term, self._leader_hint(soft.leader_id))

    @property
    def min_offset(self) -> int:
        """Where the oldest kept entry starts."""
        return self._entries.first_position

    @property
    def max_offset(self) -> int:
        """End of the last entry."""
        return self._entries.max_position

    @property
    def confirm_offset(self) -> int:
        """End of the last committed entry, short of damaged ones."""
        return self._confirm_offset

    def add_listener(self, listener: LogListener) -> None:
        """Listeners are called in the order in which they were added."""
        self._listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. A draft that cannot be encoded raises `struct.error`, and nothing is placed."""
        if self._refusal is not None or not self._soft.writable or self._entries.care.first_blocking is not None:
            raise self._why_not()
        log, node = self._entries, self._node
        if log.max_position - self._confirm_offset > self.config.pending_limit_bytes:
            raise self._too_much()
        if not drafts:
            self._loop.call_soon(done, self._receipt())
            return
        self._last_timestamp = now_ms = max(self._clock(), self._last_timestamp)
        try:
            first_index, term = node.propose(len(drafts))
        except NotLeaderError as error:
            raise not_leader(self.config.self_id, error.term, self._leader_hint(error.leader_id)) from error
        try:
            log.append_drafts(drafts, term, now_ms)
        except StoreError as error:
            node.withdraw(first_index)
            raise refusal_of(error) from error
        except BaseException:
            node.withdraw(first_index)
            raise
        self._batches.add(log.last_index, self._loop.time() + self.config.append_timeout_ms / 1000, done)
        if not self._is_turn_open:
            self._is_turn_open = True
            self._loop.call_soon(self._end_turn)

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`; what this process did not write passes its CRC first."""
        log = self._entries
        is_served = log.first_position <= physical_offset and physical_offset + size_bytes <= self._confirm_offset
        if not is_served or (physical_offset < log.care.verified_position and not is_sound(log, physical_offset)):
            raise RecordUnavailableError(physical_offset, size_bytes, log.first_position, self._confirm_offset)
        return log.data.slice(physical_offset, size_bytes)

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """See `ReplicatedLog.walk`; frames are checked, bodies are not."""
        return walk_records(self._entries.data, start_offset, end_offset)

    # ---- for operators and metrics

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable here."""
        return self._entries.data.flushed_offset

    @property
    def flush_pending_since(self) -> float | None:
        """`time.monotonic()` at which the running sync began; None when there is none."""
        return self._flusher.pending_since

    @property
    def damages(self) -> list[Damage]:
        """Entries that wait for a peer's copy."""
        return self._entries.care.damages

    @property
    def port(self) -> int:
        """Where peers are listened to."""
        return self._transport.port

    def status(self) -> NodeStatus:
        """A picture of the node."""
        return self._node.status()

    def readiness(self) -> tuple[bool, str]:
        """Whether the role is known and the log may be served, and what to say of it."""
        soft = self._soft
        if self._refusal is not None:
            return False, self._refusal.remark
        if self._is_stalled:
            return False, f"the disk has not answered for {self.config.disk_stall_ms} ms"
        if soft.recovering:
            return False, "recovering: waits for a leader to bring this node up"
        if soft.leader_id is None:
            return (
                False,
                f"no leader is known in term {soft.term}; waits for {', '.join(self._node.status().waits_for)}",
            )
        return True, f"{soft.role.value} in term {soft.term}, leader {soft.leader_id}"

    def transfer(self, target: str | None = None) -> str:
        """Hand leadership to `target`, or to who holds most: see `RaftNode.transfer`."""
        return self._node.transfer(target)

    def allow_missing(self) -> None:
        """See `RaftNode.allow_missing`."""
        self._node.allow_missing()

    def delete_before(self, physical_offset: int) -> list[Path]:
        """Drop data files that end at or before `physical_offset` and are confirmed here; answer which."""
        deleted = self._entries.delete_before(min(physical_offset, self._confirm_offset))
        if deleted:
            self._node.on_trimmed()
        return deleted

    # ---- what peers and the node say

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        """A peer's message, whole; a span is checked before the core hears of it.

        Raises:
            PeerProtocolError: the span is no chain of entries.
        """
        if isinstance(message, CopyRequest):
            self._copies.on_request(peer_id, message)
        elif isinstance(message, CopyResponse):
            self._copies.on_response(peer_id, message)
        else:
            if type(message) is AppendRequest and message.span is not None:
                try:
                    self._entries.check(message.span)
                except EntryFormatError as error:
                    raise PeerProtocolError(f"{peer_id} sent a bad span: {error}") from error
            try:
                self._node.on_message(peer_id, message)
            except EntryFormatError as error:  # the log and the core disagree: neither is to be believed
                self._node.on_disk_failed(error)

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        """Connections stand both ways."""
        self._joined.add(peer_id)
        self._addresses[peer_id] = hello.client_address
        known = self._files.known_peers
        if known.incarnations.get(peer_id) != hello.incarnation:
            if known.learn(peer_id, hello.incarnation):
                _log.warning("%s came back with another disk (incarnation %s)", peer_id, hello.incarnation)
            self._spawn(self._save_peers())
        self._copies.ask(peer_id)
        self._node.on_peer_joined(peer_id)
        self._tell_role()

    def on_peer_lost(self, peer_id: str) -> None:
        """A connection broke."""
        self._joined.discard(peer_id)
        self._node.on_peer_lost(peer_id)

    def on_commit(self, commit_index: int) -> None:
        """Show what is committed, then complete the batches it covers."""
        self._confirm()
        self._batches.complete(commit_index, self._receipt)

    def on_role(self, state: SoftState) -> None:
        """Batches of a leader that is one no more are refused; they may survive all the same."""
        self._soft = state
        if state.role is not Role.LEADER:
            hint = self._leader_hint(state.leader_id)
            self._batches.refuse_after(-1, lambda: leader_changed(self.config.self_id, state.term, hint))
        elif state.may_miss_after is not None:
            _log.error(
                "salvaged in term %d: acknowledged entries after %d may be missing", state.term, state.may_miss_after
            )
        self._tell_role()

    def on_truncated(self, last_index: int) -> None:
        """Entries of a deposed leader are gone."""
        self._batches.refuse_after(last_index, lambda: leader_changed(self.config.self_id, self._soft.term, None))
        for listener in self._listeners:
            listener.on_truncated(self._entries.max_position)

    def on_reset(self, first_index: int, start_position: int) -> None:
        """The log starts anew, behind everything that was confirmed here."""
        _log.warning("behind the leader's oldest file: starting anew with entry %d at %d", first_index, start_position)
        self._confirm()

    def on_failed(self, error: Exception) -> None:
        """The node left the group for good."""
        _log.error("this node takes no part any more: %s", error)
        self._refusal = Refusal(Cause.DISK_FAILED, str(error))
        self._batches.refuse_after(-1, lambda: Refusal(Cause.DISK_FAILED, str(error)))
        self._tell_role()

    # ---- turns and ticks

    def _end_turn(self) -> None:
        self._is_turn_open = False
        self._node.proposed()

    def _tick(self) -> None:
        now = self._loop.time()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._watch_disk()
        self._node.on_tick(self._now_ms())
        self._batches.refuse_late(now, self._no_quorum)
        self._scrubber.step()
        if now >= self._slow_tick_at:
            self._slow_tick_at = now + self.config.checkpoint_interval_ms / 1000
            self._slow_tick(now)

    def _slow_tick(self, now: float) -> None:
        self._spawn(self._checkpointer.write())
        if not self._entries.care.damages:
            return
        for peer_id in sorted(self._joined):
            self._copies.ask(peer_id)
        if self._entries.care.first_blocking is None or self._soft.role is not Role.LEADER:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > _HAND_OVER_S:
            self._hand_over()

    def _hand_over(self) -> None:
        """A leader that cannot serve what it must, for want of a copy, lets another lead."""
        try:
            _log.warning("handing over to %s: %s", self._node.transfer(), self.damages[0])
        except TransferRefusedError as error:
            _log.warning("cannot hand over: %s", error)

    def _watch_disk(self) -> None:
        since = self._flusher.pending_since
        is_stalled = since is not None and time.monotonic() - since > self.config.disk_stall_ms / 1000
        if is_stalled != self._is_stalled:
            self._is_stalled = is_stalled
            _log.error(
                "the disk %s", f"has not answered for {self.config.disk_stall_ms} ms" if is_stalled else "answers again"
            )
            self._node.on_disk_stalled(is_stalled=is_stalled)

    async def _drain(self) -> None:
        deadline = self._loop.time() + _DRAIN_S
        while self._batches and self._loop.time() < deadline:
            await asyncio.sleep(TICK_S)

    # ---- the disk's reports

    def _on_flushed(self, flushed_offset: int, seconds: float) -> None:
        self._entries.note_flushed(flushed_offset)
        if self._report_flush is not None:
            self._report_flush(flushed_offset, seconds)

    def _on_disk_failed(self, error: StoreError) -> None:
        self._node.on_disk_failed(error)

    def _on_damage(self, damage: Damage) -> None:
        _log.error("damaged, waits for a peer's copy: %s", damage)

    def _on_repaired(self, damage: Damage) -> None:
        del damage
        self._node.on_flushed(self._entries.durable_index, self._entries.generation)
        self._confirm()
        self._tell_role()

    # ---- telling

    def _confirmable(self) -> int:
        log, index = self._entries, self._node.commit_index
        blocking = log.care.first_blocking
        return log.end_position(index if blocking is None else min(index, blocking - 1))

    def _confirm(self) -> None:
        confirm_offset = self._confirmable()
        if confirm_offset > self._confirm_offset:
            self._confirm_offset = confirm_offset
            for listener in self._listeners:
                listener.on_confirmed(confirm_offset)

    def _tell_role(self) -> None:
        state = self.state
        if state != self._told:
            self._told = state
            for listener in self._listeners:
                listener.on_role_change(state)

    def _receipt(self) -> AppendReceipt:
        received, durable = self._node.copies(self._node.commit_index)
        return AppendReceipt(self._soft.term, received, durable)

    def _leader_hint(self, leader_id: str | None) -> LeaderHint | None:
        address = None if leader_id is None else self._addresses.get(leader_id)
        return None if leader_id is None or address is None else LeaderHint(leader_id, address)

    # ---- refusing

    def _why_not(self) -> Refusal:
        soft = self._soft
        if self._refusal is not None:
            return self._refusal
        if soft.role is not Role.LEADER:
            return not_leader(self.config.self_id, soft.term, self._leader_hint(soft.leader_id))
        if self._entries.care.first_blocking is not None:
            remark = f"waits for a peer's copy of {self.damages[0]}"
        else:
            remark = f"{self.config.self_id} leads term {soft.term}, whose first entry is not committed yet"
        return Refusal(Cause.RECOVERING, remark, retry_after_ms=100)

    def _too_much(self) -> Refusal:
        waiting = self._entries.max_position - self._confirm_offset
        remark = f"{waiting} bytes wait for a quorum, the limit is {self.config.pending_limit_bytes}"
        return Refusal(Cause.BUSY, remark, retry_after_ms=100)

    def _no_quorum(self, waiting: int) -> Refusal:
        limit_ms = self.config.append_timeout_ms
        received, durable = self._node.copies(self._entries.last_index)
        return Refusal(
            Cause.NO_QUORUM,
            f"no quorum within {limit_ms} ms in term {self._soft.term}: of {len(self.config.peers)} members {received} "
            f"hold the last entry, {durable} durably; {waiting} batches wait, and may still be committed",
            retry_after_ms=limit_ms,
        )

    # ---- small

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _term_start(self, term: int) -> RecordDraft:
        """A new leader's clock may be behind: store times never go back."""
        log = self._entries
        if log.last_index >= log.first_index:
            position, size, _ = log.units[log.last_index]
            last = dispatch_fields(log.data.slice(position, size), 48)[5]
            self._last_timestamp = max(self._last_timestamp, last)
        self._last_timestamp = max(self._clock(), self._last_timestamp)
        return term_start_draft(term, self.config.self_id, self.config.store_host, self._last_timestamp)

    async def _save_peers(self) -> None:
        async with self._saving_peers:
            try:
                known = self._files.known_peers
                await self._loop.run_in_executor(None, known.save, known.picture())
            except StoreError as error:
                self._on_disk_failed(error)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settings(config: RaftConfig) -> RaftSettings:
    return RaftSettings(
        node_id=config.self_id,
        peers=tuple(peer.node_id for peer in config.peers),
        priorities={} if config.preferred_leader is None else {config.preferred_leader: 1},
        durable_quorum=config.flush_mode is FlushMode.SYNC,
        heartbeat_ms=config.heartbeat_ms,
        election_min_ms=config.election_min_ms,
        election_max_ms=config.election_max_ms,
        span_limit_bytes=config.span_limit_bytes,
        window_bytes=config.peer_window_bytes,
    )


def _hello(config: RaftConfig, files: RaftFiles) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        cluster=config.cluster,
        group=config.group,
        node_id=config.self_id,
        to="",
        incarnation=files.identity.incarnation,
        session=secrets.token_hex(8),
        client_address=config.client_address,
        data_file_size=config.data_file_size_bytes,
    )
