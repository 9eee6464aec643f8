"""RaftNode: carries out the decisions of the Raft core through the ports. The simulation runs this code, too.

    message, tick, proposal, flush report --> Raft --> Ready --> hard state, log, transport, listener
                                               ^                  |
                                               '--- persisted, proposed, durable

Only `_carry_out` acts on a `Ready`. Safety rests on the order of its steps: entries are written before answers that
acknowledge them are sent, answers are sent before listeners are called, and the core holds back every message that
depends on a term or vote that is not durable yet. The node uses no event loop, thread or clock: callers pass the time
and call on one thread.

An install that finds no room on the disk is tried again at each tick. Until it succeeds the node does nothing else and
ignores all messages: the old log is already dropped, and the new one does not count yet.

Under ASYNC_FLUSH (`durable_quorum` false) nothing waits for a flush, and none is requested: the log flushes at its own
interval, and the node reads its durable index at each tick.
"""

from collections.abc import Callable

from dledger.core.errors import InvariantError
from dledger.core.messages import NO_INDEX, HardState, Message
from dledger.core.raft import Raft
from dledger.core.ready import AppendSpan, ReadResult, Ready, ResetLog, TermStart, TruncateAfter, Write
from dledger.core.roles import SoftState
from dledger.core.settings import RaftSettings
from dledger.node_status import NodeStatus, status_of
from dledger.ports import EntryStore, HardStateStore, NodeListener, Transport
from store.errors import AllocationPendingError, DiskFullError, StoreError
from store.files.disk import NO_ROOM
from store.replicated_log import StateMachine

_INSTALL_RETRY_MS = 500

ReadDone = Callable[[int | None], None]


class RaftNode:
    """One running member of a Raft group.

    Args:
        settings: membership and timing.
        log, hard_states, transport, machine, listener: the ports.
        jitter: `jitter(n)` is a random integer in `[0, n)`.
        now_ms: the time of construction, on the clock of `on_tick`.
        commit_index: an index known to be committed from before a restart; `NO_INDEX` if none is.
    """

    def __init__(
        self,
        settings: RaftSettings,
        *,
        log: EntryStore,
        hard_states: HardStateStore,
        transport: Transport,
        machine: StateMachine,
        listener: NodeListener,
        jitter: Callable[[int], int],
        now_ms: int,
        commit_index: int = NO_INDEX,
    ) -> None:
        self._settings = settings
        self._log = log
        self._hard_states = hard_states
        self._transport = transport
        self._machine = machine
        self._listener = listener
        self.raft = Raft(settings, hard_states.load(), log, machine.snapshot, jitter, commit_index, now_ms)
        self._ticked_ms = now_ms
        self._is_busy = False
        self._is_due = False
        self._is_failed = False
        self._waiting: Ready | None = None  # a `Ready` that begins with an install for which there was no room
        self._retry_ms = 0
        self._flush_asked_index = log.durable_index
        self._flush_asked_generation = log.generation
        self._reads: dict[int, ReadDone] = {}
        self._read_count = 0

    # -- what others may ask

    @property
    def soft_state(self) -> SoftState:
        """Role, term and leader, as `NodeListener.on_role` reports them."""
        return self.raft.soft_state

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed; `NO_INDEX` when none is."""
        return self.raft.state.commit_index

    @property
    def ignored_count(self) -> int:
        """See `dledger.core.member.Member`."""
        return self.raft.member.ignored_count

    def copies(self, index: int) -> tuple[int, int]:
        """Return the number of members, this one included, that have the entry: (received, durable).

        (0, 0) while this node does not lead.
        """
        leader = self.raft.member.leader
        return leader.copies(index) if leader is not None else (0, 0)

    def status(self) -> NodeStatus:
        """Return a snapshot of the node's state for metrics and operators; too slow for the hot path."""
        return status_of(self.raft)

    # -- proposals

    def propose(self, count: int) -> tuple[int, int]:
        """Reserve the next `count` (1 or more) indexes; the caller writes those entries before it calls the node again.

        Returns:
            (index of the first, term). Call `proposed` once afterwards, also for several proposals in one turn of the
            loop; or `withdraw` when the entries could not be written.

        Raises:
            NotLeaderError: this node does not lead; nothing was changed.
        """
        return self.raft.propose(count), self.raft.state.term

    def proposed(self) -> None:
        """Replicate and flush the reserved entries: they are in the log."""
        self.raft.proposed()
        self._run()

    def withdraw(self, first_index: int) -> None:
        """Give back the reserved indexes from `first_index` on, which were not written.

        The log must be as it was before `propose`.
        """
        self.raft.withdraw(first_index)

    # -- events

    def on_tick(self, now_ms: int) -> None:
        """Advance the clock. Call every 10 to `tick_slack_ms` ms with a time that never falls.

        A late call is taken for a stall of this node.
        """
        if self._waiting is not None:
            self._retry(self._waiting, now_ms)
            return
        stall_ms = max(0, now_ms - self._ticked_ms - self._settings.tick_slack_ms)
        self._ticked_ms = now_ms
        if not self._settings.durable_quorum:
            self.raft.durable(self._log.durable_index)
        self.raft.tick(now_ms, stall_ms)
        self._run()

    def on_message(self, peer: str, message: Message) -> None:
        """Handle a message that arrived whole and is proved to come from the member `peer`.

        Raises:
            ImplausibleMessageError: its term is too far ahead; nothing was changed.
        """
        if self._waiting is not None:
            return
        try:
            self.raft.step(peer, message)
        except InvariantError as error:
            self._fail(error)
        self._run()

    def on_peer_lost(self, peer: str) -> None:
        """Handle the loss of the last connection to a member."""
        self.raft.peer_lost(peer)
        self._run()

    def on_peer_joined(self, peer: str) -> None:
        """Handle a new connection to a member, after the handshake."""
        self.raft.peer_joined(peer)
        self._run()

    def on_trimmed(self) -> None:
        """Handle the removal of the log's oldest entries. Call it right after the removal, before any other method."""
        self.raft.trimmed()

    def on_no_copy(self, peer: str, index: int) -> None:
        """Handle a member's answer that it has no sound copy of the entry `index`, which is damaged here."""
        self.raft.no_copy(peer, index)

    def needed_index(self) -> int | None:
        """Return the first entry that a reachable member still has to be sent; None while this node does not lead."""
        return self.raft.needed_index()

    def on_disk_stalled(self, *, is_stalled: bool) -> None:
        """Handle that a flush takes longer than the watchdog allows, or that the disk answers again."""
        self.raft.disk_stalled(is_stalled=is_stalled)
        self._run()

    def on_fitness(self, *, is_fit: bool) -> None:
        """Handle that this node should not take over leadership now, or may again: see `NodeState.is_unfit`."""
        self.raft.state.is_unfit = not is_fit

    def on_disk_failed(self, error: Exception) -> None:
        """Handle a disk error that is final."""
        self._fail(error)
        self._run()

    # -- requests of an operator

    def transfer(self, target: str | None = None) -> str:
        """Transfer leadership: see `Raft.transfer`."""
        chosen = self.raft.transfer(target)
        self._run()
        return chosen

    def step_down(self) -> None:
        """Stop leading at once and ask the best follower to campaign: before a planned stop, or on a full disk."""
        self.raft.step_down()
        self._run()

    def allow_missing(self) -> None:
        """See `Raft.allow_missing`: for a group in which a majority forgot its log and one member is lost for good."""
        self.raft.allow_missing()

    def read_index(self, done: ReadDone) -> None:
        """Call `done(index)` once it is sure that this node led at the time of the call.

        A state machine that has applied up to `index` contains everything that was acknowledged before the call.
        `done(None)` is called if the node stops leading.

        Raises:
            NotLeaderError: this node does not lead.
        """
        self._read_count += 1
        self.raft.read_index(self._read_count)
        self._reads[self._read_count] = done
        self._run()

    # -- carrying out

    def _run(self, left: Ready | None = None) -> None:
        """Carry out what the core has ready, after `left`, which could not be carried out before."""
        self._is_due = True
        if self._is_busy:
            return  # called from inside a listener: the running loop below continues
        self._is_busy = True
        try:
            if left is not None:
                self._write_and_tell(left)
            while self._is_due and self._waiting is None:
                self._is_due = False
                ready = self.raft.ready()
                if ready is not None:
                    self._carry_out(ready)
            self._ask_for_flush()
        finally:
            self._is_busy = False

    def _carry_out(self, ready: Ready) -> None:
        hard_state = ready.hard_state
        if hard_state is not None:
            self._hard_states.save(hard_state, lambda: self._on_saved(hard_state))
        self._write_and_tell(ready)

    def _write_and_tell(self, ready: Ready) -> None:
        if ready.writes and not self._write(ready):
            return  # the core must learn of the refusal first, and decides what is sent instead
        for peer, message in ready.messages:
            self._transport.send(peer, message)
        if ready.commit_index is not None:
            self._listener.on_commit(ready.commit_index)
            self._is_due |= self.raft.member.is_closed  # it may hand over now
        if ready.soft_state is not None:
            self._listener.on_role(ready.soft_state)
            self._is_due = True  # the state after it may be due, too
        for read in ready.reads:
            self._finish_read(read)

    def _write(self, ready: Ready) -> bool:
        """Carry out the writes of `ready`; return whether all are done. If not, the rest must not happen, or not yet.

        Writes that are done are removed from `ready`, so that it can be continued later.
        """
        try:
            while ready.writes:
                self._write_one(ready.writes[0])
                del ready.writes[0]
        except _InstallWaitsError:
            self._waiting = ready
            return False
        except (DiskFullError, AllocationPendingError):
            self._refuse(ready)
            self.raft.step_down()
        except (StoreError, OSError, ValueError) as error:
            self._refuse(ready)
            self._fail(error)
        else:
            return True
        self._is_due = True
        return False

    def _refuse(self, ready: Ready) -> None:
        """Drop the rest of `ready` except the results of reads, which do not depend on the writes."""
        self.raft.refused()
        for read in ready.reads:
            self._finish_read(read)

    def _write_one(self, write: Write) -> None:
        match write:
            case AppendSpan(span):
                self._log.append_span(span)
            case TermStart(index, term):
                self._log.append_term_start(index, term)
                self.raft.proposed()
                self._is_due = True
            case TruncateAfter(last_index):
                self._log.truncate_after(last_index)
                self._listener.on_truncated(last_index)
            case ResetLog():
                self._install(write)

    def _install(self, write: ResetLog) -> None:
        """Replace log and state machine by the leader's. A crash never leaves one of them replaced without the other.

        Raises:
            _InstallWaitsError: the disk has no room now.
        """
        try:
            self._log.begin_install(write.first_index, write.start_position, write.prev_term, keep=write.keep)
            self._machine.restore(write.state)
            self._log.finish_install()
        except (DiskFullError, AllocationPendingError) as error:
            raise _InstallWaitsError from error
        except OSError as error:
            if error.errno in NO_ROOM:
                raise _InstallWaitsError from error
            raise
        self.raft.durable(self._log.durable_index)
        self._is_due = True
        self._listener.on_reset(write.first_index, write.start_position)

    def _retry(self, ready: Ready, now_ms: int) -> None:
        """Try a waiting install again. For the core, the time since its last tick was a stall of this node."""
        if now_ms < self._retry_ms or self._is_failed:
            return
        self._retry_ms = now_ms + _INSTALL_RETRY_MS
        self._waiting = None
        self._run(ready)

    def _finish_read(self, read: ReadResult) -> None:
        self._reads.pop(read.token)(read.index)

    def _on_saved(self, hard_state: HardState) -> None:
        self.raft.persisted(hard_state)
        self._run()

    # -- flushing

    def _ask_for_flush(self) -> None:
        if not self._settings.durable_quorum or self._is_failed:
            return
        log = self._log
        last_index, generation = log.last_index, log.generation
        is_asked = last_index == self._flush_asked_index and generation == self._flush_asked_generation
        if not is_asked and log.durable_index < last_index:
            self._flush_asked_index, self._flush_asked_generation = last_index, generation
            log.request_flush(self.on_flushed)

    def on_flushed(self, durable_index: int, generation: int) -> None:
        """Handle a completed flush: the log of this `generation` is durable up to `durable_index`."""
        if generation == self._log.generation:
            self.raft.durable(durable_index)
        self._run()

    def on_damage_found(self) -> None:
        """Handle damage that is found before this node takes part: what is behind counts when it is repaired."""
        self.raft.state.durable_index = self._log.durable_index

    def _fail(self, error: Exception) -> None:
        if not self._is_failed:
            self._is_failed = True
            self.raft.halt()
            self._listener.on_failed(error)


class _InstallWaitsError(Exception):
    """The disk has no room for an install now."""
