"""A follower: appends its leader's entries, acknowledges them once they are durable, and measures the leader's silence.

The log is compared with the leader's by the term of the entry before the span (Raft 3.5). Entries that agree with the
span are kept, so a late or repeated request never shortens the log. Entries that disagree are dropped, but never at or
below the commit index.

Under SYNC_FLUSH a span is acknowledged when a flush covers it (`on_durable`); one answer then acknowledges all spans
that it covers. A heartbeat is answered at once, with the received and the durable index.
"""

from dledger.core.errors import InvariantError
from dledger.core.messages import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    InstallRequest,
    InstallResponse,
    Span,
)
from dledger.core.ready import AppendSpan, ResetLog, TruncateAfter
from dledger.core.state import NodeState
from dledger.core.state_parts import StateIn


class Follower:
    """One term as a follower of one leader, or before a leader is known.

    Attributes:
        leader_id: None until a leader of this term is heard; within the term it never changes afterwards.
        leader_commit: the highest commit index received from the leader, also of entries that are missing here.
        matched_index: the log is known to equal the leader's up to here; `NO_INDEX` before the leader has shown it.
            Invariant: the commit index is never raised above it.
        heard_ms: when the leader was last heard.
        waited_ms: when its last notice arrived that its loop is busy, for which this node has to wait.
        recover_target: index up to which the log must be held and counted before this node is sound again; `NO_INDEX`
            before the leader has sent it. A node that forgot its votes must also have heard every other member.
        missed_index: damaged entry of which the leader has no copy; `NO_INDEX` for none. As long as it is damaged, and
            known to be committed, this log is reported to end before it, so that a leader that has deleted it sends an
            install. If it is not committed, the leader may have another entry there, which replaces it.
    """

    __slots__ = (
        "_pending",
        "_state",
        "_state_in",
        "_told_sequence",
        "heard_ms",
        "leader_commit",
        "leader_id",
        "matched_index",
        "missed_index",
        "recover_target",
        "waited_ms",
    )

    def __init__(self, state: NodeState, leader_id: str | None) -> None:
        self._state = state
        self.leader_id = leader_id
        self.leader_commit = self.matched_index = NO_INDEX
        self.heard_ms = self.waited_ms = state.now_ms
        self.recover_target = self.missed_index = NO_INDEX
        self._told_sequence = 0
        self._pending: AppendRequest | None = None
        self._state_in: StateIn | None = None

    def hears_leader(self) -> bool:
        """Return whether the leader was heard, or sent a valid busy notice, within the lease, and is connected."""
        state = self._state
        if self.leader_id is None or self.leader_id in state.lost_links:
            return False
        return state.now_ms - max(self.heard_ms, self.waited_ms) < state.settings.election_min_ms

    def on_append(self, request: AppendRequest) -> None:
        """Append the entries of this term's leader; answer now, or when they are durable."""
        state = self._state
        self.leader_commit = max(self.leader_commit, request.commit_index)
        if not self._is_consistent(request):
            self._reject(request)
            return
        if state.source.damaged_index == self.missed_index <= state.commit_index:
            self._tell_missed(request)
            return
        matched = request.prev_index
        if request.span is not None:
            self._take(request.span)
            matched = request.span.last_index
        self.matched_index = max(self.matched_index, matched)
        state.commit_to(min(request.commit_index, self.matched_index))
        if state.recovering and self.recover_target == NO_INDEX:
            self.recover_target = request.recover_index
        if request.span is None or not state.settings.durable_quorum or self._is_durable(matched):
            self._accept(request)
        else:
            self._pending = request

    def on_durable(self) -> None:
        """Send the acknowledgements that waited for the log's durable index to rise."""
        if self._pending is not None:
            self._accept(self._pending)
            if self._is_durable(self.matched_index):
                self._pending = None
        else:
            self._recover()

    def on_install(self, request: InstallRequest) -> bool:
        """Replace the log by one that starts where the leader's does, unless it already reaches that far.

        The state arrives in parts, which are collected; the log is replaced when the last one is there. A log that
        reaches that far must be equal up to there to be kept. If it is, but has a damaged entry that the leader has
        deleted, it drops the entries that the leader's log does not have any more, and keeps those that this node
        acknowledged.

        Returns:
            False: the log reaches that far, so the request is late, and only answered.
        """
        state = self._state
        known = max(state.commit_index, self.matched_index)
        last_missing = request.first_index - 1
        is_committed = state.terms.first_index <= last_missing <= state.commit_index  # so it is the same everywhere
        reaches = is_committed or state.terms.holds(last_missing, request.prev_term)
        if last_missing > known and reaches:
            known = last_missing
        damaged_index = state.source.damaged_index
        is_damaged = reaches and damaged_index is not None and damaged_index <= last_missing
        is_needed = is_damaged or last_missing > known
        if is_needed:
            whole = self._take_part(request)
            if whole is None:
                return True
            self._begin_at(request, whole, keep=is_damaged and state.terms.last_index > last_missing)
            known = last_missing
        self.matched_index = max(self.matched_index, known)
        state.send(request.leader_id, InstallResponse(state.term, is_needed, known, request.sequence, state.recovering))
        return is_needed

    def _begin_at(self, request: InstallRequest, whole: bytes, *, keep: bool) -> None:
        state, first_index, prev_term = self._state, request.first_index, request.prev_term
        state.writes.append(ResetLog(first_index, request.start_position, prev_term, whole, keep))
        if keep:
            state.terms.trim(first_index, prev_term)
        else:
            state.terms.reset(first_index, prev_term)
            self._pending = None
        state.durable_index = first_index - 1
        state.commit_to(first_index - 1)

    def _take_part(self, request: InstallRequest) -> bytes | None:
        """Add a part; return the whole state if it was the last one, else ask for the next part and return None."""
        state_in = self._state_in
        if state_in is None or state_in.state_id != request.state_id:
            state_in = self._state_in = StateIn(request.state_id)
        if state_in.take(request):
            self._state_in = None
            return bytes(state_in.data)
        state, end = self._state, len(state_in.data)
        state.send(
            request.leader_id,
            InstallResponse(state.term, False, NO_INDEX, request.sequence, state.recovering, state_end=end),
        )
        return None

    def on_refused(self) -> None:
        """Forget the entries of a span for which the log had no room: they are neither matched nor acknowledged."""
        last_index = self._state.terms.last_index
        self.matched_index = min(self.matched_index, last_index)
        self._pending = None

    def _is_consistent(self, request: AppendRequest) -> bool:
        if request.span is not None and not self._is_well_formed(request.span, request):
            return False
        if request.prev_index <= self._state.commit_index:
            return True  # committed entries are the same on all members, also those that are deleted here
        return self._state.terms.term_at(request.prev_index) == request.prev_term

    def _is_well_formed(self, span: Span, request: AppendRequest) -> bool:
        follows = span.first_index == request.prev_index + 1 and span.last_index >= span.first_index
        prev_term = self._state.terms.term_at(request.prev_index)
        return follows and (NO_TERM if prev_term is None else prev_term) <= span.term <= request.term

    def _take(self, span: Span) -> None:
        state, terms = self._state, self._state.terms
        conflict = terms.first_conflict(max(span.first_index, terms.first_index), span.last_index, span.term)
        if conflict is not None:
            self._truncate(conflict - 1, span)
        if span.last_index > terms.last_index:
            if span.term < terms.last_term:
                raise InvariantError(
                    f"leader {self.leader_id} sent entries of term {span.term} behind term {terms.last_term}"
                )
            terms.extend(span.term, span.last_index)
            state.writes.append(AppendSpan(span))

    def _truncate(self, last_index: int, span: Span) -> None:
        state = self._state
        if last_index < state.commit_index:
            raise InvariantError(
                f"leader {self.leader_id} of term {state.term} has term {span.term} at {last_index + 1}, where"
                f" {state.settings.node_id} committed up to {state.commit_index}"
            )
        state.terms.truncate_after(last_index)
        state.durable_index = min(state.durable_index, last_index)
        state.writes.append(TruncateAfter(last_index))

    def _is_durable(self, index: int) -> bool:
        return self._state.durable_index >= index

    def _accept(self, request: AppendRequest) -> None:
        self._recover()
        self._state.answer_append(request.leader_id, request, self.matched_index)

    def _reject(self, request: AppendRequest) -> None:
        state = self._state
        state.answer_append(request.leader_id, request, None, state.terms.runs_from(state.commit_index))

    def _tell_missed(self, request: AppendRequest) -> None:
        # once a round: a leader that has the entry, but cannot read it, would send it again at once
        if request.sequence > self._told_sequence:
            self._told_sequence = request.sequence
            self._state.answer_append(request.leader_id, request, None, last_index=self.missed_index - 1)

    def _recover(self) -> None:
        state, target = self._state, self.recover_target
        is_level = target != NO_INDEX and min(self.matched_index, state.counted_index) >= target
        if is_level and state.knows_its_votes:
            self.recover_target = NO_INDEX
            state.become_sound(self.leader_id)
