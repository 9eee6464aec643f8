"""A leader: replicates entries, commits them, and knows whether it still leads.

Commit: an entry is committed when a quorum of sound members holds it (durable, under `durable_quorum`) and it is of the
leader's own term (Raft 3.6.2). All entries before it are committed with it.

Lease: heartbeats are numbered rounds. An answer to a round proves that the follower followed when the round began.
    check-quorum   no quorum answered a round begun within `election_max_ms`, an own stall forgiven: step down
    lease          a quorum of sound members answered a round begun within `election_min_ms`
    read index     a quorum of sound members answered a round begun after the read was asked for
"""

from collections import deque

from dledger.core.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    AppendResponse,
    InstallResponse,
    Span,
)
from dledger.core.progress import PeerProgress, ProgressState
from dledger.core.ready import ReadResult
from dledger.core.state import NodeState
from dledger.core.state_parts import StateOut

_REACH_ELECTIONS = 10
"""A follower that has received nothing new for this many times `election_max_ms` counts as out of reach."""

_SpanCache = dict[int, Span | None]


class Leader:
    """One term as the leader.

    Attributes:
        term_start_index: index of the entry that opened the term. Once it is committed, so are all entries of earlier
            terms, and reads may be answered.
        is_salvage: elected by members that may have forgotten entries; its own log counts as the truth from now on.
        may_miss_after: see `SoftState`.
        peers: progress of the other members.
        prefer_due_ms: when this leader next looks for a member of greater priority.
        declined: members that did not take over when asked, with the time (ms) until which this leader asks others.
    """

    __slots__ = (
        "_first_writable_index",
        "_heartbeat_due_ms",
        "_quorum_ms",
        "_reads",
        "_rounds",
        "_sequence",
        "_settle_index",
        "_state",
        "_state_count",
        "declined",
        "is_salvage",
        "may_miss_after",
        "peers",
        "prefer_due_ms",
        "term_start_index",
    )

    def __init__(self, state: NodeState, *, is_salvage: bool, may_miss_after: int | None) -> None:
        self._state = state
        self.is_salvage = is_salvage
        self.may_miss_after = may_miss_after
        last_index = state.terms.last_index
        self.term_start_index = last_index + 1
        is_all_committed = state.commit_index == last_index and not is_salvage
        self._first_writable_index = self._settle_index = last_index if is_all_committed else self.term_start_index
        self.peers = {peer: PeerProgress(self.term_start_index, state.now_ms) for peer in state.settings.others}
        self.prefer_due_ms = state.now_ms + state.settings.prefer_interval_ms
        self.declined: dict[str, int] = {}
        self._sequence = 1
        self._state_count = 0
        self._rounds = deque([(1, state.now_ms)])
        self._quorum_ms = state.now_ms
        self._heartbeat_due_ms = state.now_ms + state.settings.heartbeat_ms
        self._reads: deque[tuple[int, int]] = deque()

    @property
    def is_writable(self) -> bool:
        """Whether all entries are committed that were in the log at the election, or when proposals were last refused.

        Queue offsets are counted from the committed end of the log, so a leader that becomes writable (again) must not
        have an entry whose fate is open. The entry that opens its term is in no queue, but where others are open, only
        its commit decides them.
        """
        return self._state.commit_index >= self._settle_index

    @property
    def was_writable(self) -> bool:
        """Whether this leader was ever writable, so that it may have proposals."""
        return self._state.commit_index >= self._first_writable_index

    def settle(self) -> None:
        """Stop being writable until every entry that is in the log now is committed."""
        self._settle_index = self._state.terms.last_index

    # -- entries out

    def replicate(self) -> None:
        """Send each follower the entries that its window allows."""
        spans: _SpanCache = {}
        for peer, progress in self.peers.items():
            self._replicate_to(peer, progress, spans)

    def _replicate_to(self, peer: str, progress: PeerProgress, spans: _SpanCache) -> None:
        state = self._state
        terms, window_bytes = state.terms, state.settings.window_bytes
        while progress.may_send(window_bytes) and peer not in state.lost_links:
            first_index = progress.next_index
            if first_index < terms.first_index:
                self._begin_install(peer, progress)
                return
            is_news = first_index <= terms.last_index
            if not is_news and progress.state is ProgressState.REPLICATE:
                return
            span = self._span(first_index, spans) if is_news else None
            if is_news and span is None and progress.state is ProgressState.REPLICATE:
                return  # the entry is damaged here and waits for a copy; it is tried again with the next heartbeat
            self._send_append(peer, progress, first_index - 1, span)
            last_index, size_bytes = (span.last_index, len(span.data)) if span is not None else (first_index - 1, 0)
            progress.sent(last_index, size_bytes)

    def _span(self, first_index: int, spans: _SpanCache) -> Span | None:
        if first_index not in spans:
            spans[first_index] = self._state.source.read(first_index, self._state.settings.span_limit_bytes)
        return spans[first_index]

    def _send_append(self, peer: str, progress: PeerProgress, prev_index: int, span: Span | None) -> None:
        state = self._state
        progress.sent_commit = state.commit_index
        prev_term = state.terms.term_at(prev_index)
        # the entry before is deleted here: send a heartbeat that shows who leads and asserts nothing about the log
        if prev_term is None:
            prev_index, prev_term = NO_INDEX, NO_TERM
        state.send(
            peer,
            AppendRequest(
                state.term,
                state.settings.node_id,
                prev_index,
                prev_term,
                span,
                state.commit_index,
                self._recover_index(),
                self._sequence,
            ),
        )

    def _recover_index(self) -> int:
        # a leader's log holds, up to the entry that opened its term, everything that was ever committed before it
        return max(self._state.commit_index, self.term_start_index)

    def _begin_install(self, peer: str, progress: PeerProgress) -> None:
        state, source = self._state, self._state.source
        self._state_count += 1
        state_out = StateOut(
            self._state_count, source.first_index, source.first_position, state.terms.prev_term, state.snapshot()
        )
        progress.install(state_out)
        self._send_part(peer, progress, state_out)

    def _send_part(self, peer: str, progress: PeerProgress, state_out: StateOut) -> None:
        state, settings = self._state, self._state.settings
        state.send(peer, state_out.request(state.term, settings.node_id, settings.span_limit_bytes, self._sequence))
        progress.installed_ms = state.now_ms

    # -- answers in

    def on_append_response(self, peer: str, response: AppendResponse) -> None:
        """Count an answer of this term."""
        progress = self.peers[peer]
        is_sound_now = progress.recovering and not response.recovering
        self._heard(progress, response.sequence, is_recovering=response.recovering)
        if response.accepted and response.received_index <= self._state.terms.last_index:
            is_news = progress.accepted(response.received_index, response.durable_index, response.sequence)
            if is_news or progress.received_index == self._state.terms.last_index:
                progress.moved_ms = self._state.now_ms
            if is_news or is_sound_now:  # entries that it acknowledged while recovering count from now on
                self.advance_commit()
        elif not response.accepted and not progress.is_stale_reject(response.prev_index, response.received_index):
            self._go_back(progress, response)
        self._replicate_to(peer, progress, {})
        self.tell_commit(idle_only=True)

    def on_install_response(self, peer: str, response: InstallResponse) -> None:
        """Send the next part of the state, or, when the follower has all or needs none, the entries that follow it."""
        progress = self.peers[peer]
        self._heard(progress, response.sequence, is_recovering=response.recovering)
        if progress.state_out is not None:
            if response.state_end != NO_INDEX:
                if progress.state_out.arrived(response.state_end):
                    progress.moved_ms = self._state.now_ms
                    self._send_part(peer, progress, progress.state_out)
                return
            progress.installed(response.last_index, is_durable=response.accepted)
        self._replicate_to(peer, progress, {})

    def _go_back(self, progress: PeerProgress, response: AppendResponse) -> None:
        fork = self._state.terms.fork(response.term_runs, response.received_index)
        progress.rejected(min(fork + 1, max(response.prev_index, 0)), response.received_index)

    def _heard(self, progress: PeerProgress, sequence: int, *, is_recovering: bool) -> None:
        if is_recovering and not progress.recovering:
            progress.forget()
        progress.recovering = is_recovering
        if sequence > progress.acked_sequence:
            progress.acked_sequence, progress.acked_ms = sequence, self._began_ms(sequence)
            self._answer_reads()

    def _began_ms(self, sequence: int) -> int:
        return next((began for number, began in self._rounds if number >= sequence), self._state.now_ms)

    # -- counting

    def advance_commit(self) -> None:
        """Raise the commit index to what a quorum holds, if that entry is of this term."""
        state = self._state
        index = self._quorum_index()
        if index > state.commit_index and state.terms.term_at(index) == state.term:
            state.commit_to(index)

    def _quorum_index(self) -> int:
        state = self._state
        counted = [state.counted_index]
        if state.settings.durable_quorum:
            counted += [NO_INDEX if peer.recovering else peer.durable_index for peer in self.peers.values()]
        else:
            counted += [NO_INDEX if peer.recovering else peer.received_index for peer in self.peers.values()]
        counted.sort()
        return counted[-state.quorum]

    def copies(self, index: int) -> tuple[int, int]:
        """Return how many members, this one included, have the entry `index`: (received, durable)."""
        received = 1 + sum(peer.received_index >= index for peer in self.peers.values())
        durable = (self._state.durable_index >= index) + sum(
            peer.durable_index >= index for peer in self.peers.values()
        )
        return received, durable

    def needed_index(self) -> int:
        """Return the first entry that a reachable follower lacks; the log's next index when none lacks any.

        A follower is reachable when it is connected and has received something lately. One whose disk is full or has
        failed stays connected, but must not make the others keep files until their disks are full; it gets an install
        later.
        """
        state = self._state
        oldest_ms = state.now_ms - _REACH_ELECTIONS * state.settings.election_max_ms
        lacking = [
            peer.received_index
            for name, peer in self.peers.items()
            if name not in state.lost_links and peer.moved_ms >= oldest_ms
        ]
        return min([state.terms.last_index, *lacking]) + 1

    # -- following

    def tick(self) -> bool:
        """Send heartbeats when they are due, and the commit index to followers that did not get it with entries.

        Returns:
            False if no quorum answers any more, and this node must stop leading.
        """
        state = self._state
        if state.now_ms >= self._heartbeat_due_ms:
            self._heartbeat_due_ms = state.now_ms + state.settings.heartbeat_ms
            self._heartbeat()
            self._answer_reads()
        else:
            self.tell_commit(idle_only=False)
        self._quorum_ms = max(self._quorum_ms, self._followed_ms(sound_only=False))
        return state.now_ms - self._quorum_ms <= state.settings.election_max_ms

    def forgive(self, stall_ms: int) -> None:
        """Give followers more time after a stall of this node, since their answers may not have been read yet."""
        state = self._state
        latest_ms = state.now_ms - state.settings.election_max_ms + state.grace_ms(stall_ms)
        self._quorum_ms = max(self._quorum_ms, latest_ms)

    def is_followed(self) -> bool:
        """Return whether a quorum answered lately: this node then refuses votes for others."""
        return self._state.now_ms - self._quorum_ms < self._state.settings.election_min_ms

    def has_lease(self) -> bool:
        """Return whether a quorum of sound members followed within `election_min_ms`.

        Not a proof: a follower whose connection to its leader broke votes at once. A read that must not be stale uses
        `read_index`.
        """
        return self._state.now_ms - self._followed_ms(sound_only=True) < self._state.settings.election_min_ms

    def read_index(self, token: int) -> None:
        """Start a round for a read; its result follows when a quorum has answered the round."""
        self._heartbeat()
        self._reads.append((token, self._sequence))
        self._answer_reads()

    def drop_reads(self) -> None:
        """End the waiting reads without an index, because this node stops leading."""
        self._state.reads += [ReadResult(token, None) for token, _ in self._reads]
        self._reads.clear()

    def link_changed(self, peer: str, *, is_up: bool) -> None:
        """Handle that a connection broke, with everything in flight on it, or that a new one was made."""
        progress = self.peers[peer]
        progress.reconnect()
        if is_up:
            self._replicate_to(peer, progress, {})

    def _heartbeat(self) -> None:
        state = self._state
        self._sequence += 1
        self._rounds.append((self._sequence, state.now_ms))
        while self._rounds[0][1] < state.now_ms - 2 * state.settings.election_max_ms:
            self._rounds.popleft()
        spans: _SpanCache = {}
        for peer, progress in self.peers.items():
            self._heartbeat_to(peer, progress, spans)

    def _heartbeat_to(self, peer: str, progress: PeerProgress, spans: _SpanCache) -> None:
        state = self._state
        if peer in state.lost_links:
            return
        progress.heartbeat(self._sequence)
        is_overdue = state.now_ms - progress.installed_ms > state.settings.election_max_ms
        if progress.state_out is not None and is_overdue:
            self._send_part(peer, progress, progress.state_out)
        if progress.state is not ProgressState.PROBE:
            self._send_append(peer, progress, progress.received_index, None)
        self._replicate_to(peer, progress, spans)

    def tell_commit(self, *, idle_only: bool) -> None:
        """Tell followers what is committed: consumers may read there, and need not wait for a heartbeat.

        Those to which entries are under way learn it with the next ones, or at the next tick.
        """
        state = self._state
        for peer, progress in self.peers.items():
            if progress.sent_commit >= state.commit_index or progress.state is not ProgressState.REPLICATE:
                continue
            if not (idle_only and progress.inflight_bytes) and peer not in state.lost_links:
                self._send_append(peer, progress, progress.received_index, None)

    def _followed_ms(self, *, sound_only: bool) -> int:
        state = self._state
        acked = [peer.acked_ms for peer in self.peers.values() if not (sound_only and peer.recovering)]
        acked.append(state.now_ms)
        acked.sort()
        return acked[-state.quorum] if len(acked) >= state.quorum else -state.settings.election_max_ms

    def _answer_reads(self) -> None:
        state = self._state
        while self._reads:
            token, sequence = self._reads[0]
            sound = sum(peer.acked_sequence >= sequence and not peer.recovering for peer in self.peers.values())
            if state.commit_index < self.term_start_index or 1 + sound < state.quorum:
                return
            self._reads.popleft()
            state.reads.append(ReadResult(token, state.commit_index))
