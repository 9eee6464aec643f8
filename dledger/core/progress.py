"""A leader's knowledge of one follower's log, and the requests in flight to it.

              answer accepts                     lost message, lost link, lost entries
    PROBE ------------------> REPLICATE ------------------------------------------> PROBE
     |   ^                                                                           |
     |   '----- InstallResponse ----- INSTALL <---- needs entries below the oldest kept file

In PROBE one request is in flight at a time; in REPLICATE spans are pipelined up to a window of bytes.

Source: etcd raft `tracker/progress.go` and `design.md`; `received` and `durable` are separate here.
"""

from collections import deque
from enum import Enum

from dledger.core.messages import NO_INDEX
from dledger.core.state_parts import StateOut


class ProgressState(Enum):
    """How entries are sent to the follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    INSTALL = "install"


class PeerProgress:
    """One follower as its leader sees it.

    Invariant: `durable_index <= received_index < next_index <= last index of the leader + 1`.

    Attributes:
        received_index: the follower's log equals the leader's up to here; `NO_INDEX` while nothing is known.
        durable_index: the follower has flushed its log up to here.
        next_index: the first entry that was not sent yet.
        recovering: the follower may have forgotten entries, so it does not count. Its indexes were set to `NO_INDEX`
            when it said so; what it has acknowledged since then is true.
        acked_sequence: newest heartbeat round that the follower answered; `acked_ms`: when that round began.
        installed_ms: when the last install request was sent.
        state_out: the state that is being installed; None in other states than INSTALL.
        moved_ms: when the follower last held more than before, or everything.
        sent_commit: the commit index in the last request that was sent to it.
        inflight_bytes: bytes sent and not answered yet, in REPLICATE.
    """

    __slots__ = (
        "_inflight",
        "_mark_index",
        "_mark_sequence",
        "_probe_sent",
        "acked_ms",
        "acked_sequence",
        "durable_index",
        "inflight_bytes",
        "installed_ms",
        "moved_ms",
        "next_index",
        "received_index",
        "recovering",
        "sent_commit",
        "state",
        "state_out",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.state = ProgressState.PROBE
        self.next_index = next_index
        self.received_index = NO_INDEX
        self.durable_index = NO_INDEX
        self.recovering = False
        self.acked_sequence = 0
        self.acked_ms = now_ms
        self.installed_ms = now_ms
        self.moved_ms = now_ms
        self.state_out: StateOut | None = None
        self.sent_commit = NO_INDEX
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self._probe_sent = False
        self._mark_sequence = 0
        self._mark_index = NO_INDEX

    def may_send(self, window_bytes: int) -> bool:
        """Return whether another append request may be sent now."""
        if self.state is ProgressState.REPLICATE:
            return self.inflight_bytes < window_bytes
        return self.state is ProgressState.PROBE and not self._probe_sent

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note an append request with entries up to `last_index` (`next_index - 1` when it had none)."""
        if self.state is ProgressState.PROBE:
            self._probe_sent = True
            return
        self.next_index = last_index + 1
        self.inflight_bytes += size_bytes
        self._inflight.append((last_index, size_bytes))

    def heartbeat(self, sequence: int) -> None:
        """Note that round `sequence` begins.

        What was sent before it has arrived, or is lost, when the next round is answered.
        """
        self._probe_sent = False
        if self._mark_index <= self.received_index:
            self._mark_sequence, self._mark_index = sequence, self.next_index - 1

    def accepted(self, received_index: int, durable_index: int, sequence: int) -> bool:
        """Note that the follower's log equals the leader's up to `received_index`; return whether that is news.

        A durable index above that concerns entries that the answer does not confirm as equal, so those do not count.
        """
        durable_index = min(durable_index, received_index)
        is_news = received_index > self.received_index or durable_index > self.durable_index
        self.received_index = max(self.received_index, received_index)
        self.durable_index = max(self.durable_index, durable_index)
        inflight = self._inflight
        while inflight and inflight[0][0] <= received_index:
            self.inflight_bytes -= inflight.popleft()[1]
        if self.state is ProgressState.REPLICATE:
            if self._has_lost(sequence):
                self.probe(self.received_index + 1)
        elif self._is_found(received_index):
            self.state = ProgressState.REPLICATE
            self.next_index = self.received_index + 1
        return is_news

    def is_stale_reject(self, prev_index: int, last_index: int) -> bool:
        """Return whether a reject of `prev_index`, by a log that ends at `last_index`, is to be ignored.

        While spans are pipelined a gap is no reason to go back: the missing span may be in flight on a network that
        reorders, and if it was lost the answers to the next heartbeats show it.
        """
        if self.state is ProgressState.PROBE:
            return prev_index != self.next_index - 1
        lost_entries = prev_index == self.received_index and last_index < self.received_index
        return not lost_entries

    def rejected(self, next_index: int, last_index: int) -> None:
        """Probe at `next_index`, where the follower's log, which ends at `last_index`, may part from the leader's."""
        self.received_index = min(self.received_index, last_index)
        self.durable_index = min(self.durable_index, last_index)
        self.probe(max(next_index, self.received_index + 1))

    def forget(self) -> None:
        """Let nothing count that the follower acknowledged before: it is recovering."""
        self.recovering = True
        self.received_index = self.durable_index = NO_INDEX
        self.probe(self.next_index)

    def probe(self, next_index: int) -> None:
        """Probe the entry before `next_index`, one request at a time, before more is sent."""
        self.state = ProgressState.PROBE
        self.state_out = None
        self.next_index = next_index
        self.inflight_bytes = 0
        self._inflight.clear()
        self._probe_sent = False
        self._mark_index = NO_INDEX

    def reconnect(self) -> None:
        """Count what was in flight as lost: a connection broke or was made."""
        self.probe(self.next_index if self.received_index == NO_INDEX else self.received_index + 1)

    def install(self, state_out: StateOut) -> None:
        """Send `state_out`, since the follower's log must start anew."""
        self.probe(self.next_index)
        self.state, self.state_out = ProgressState.INSTALL, state_out

    def installed(self, last_index: int, *, is_durable: bool) -> None:
        """Note that its log equals the leader's up to `last_index`: it starts there, or already held that much."""
        self.received_index = max(self.received_index, last_index)
        if is_durable:
            self.durable_index = max(self.durable_index, last_index)
        self.probe(self.received_index + 1)

    def _is_found(self, received_index: int) -> bool:
        """Return whether an answer shows where to continue: the probe matched, or an install is done."""
        return received_index >= self.next_index - (self.state is ProgressState.PROBE)

    def _has_lost(self, sequence: int) -> bool:
        return sequence > self._mark_sequence and self.received_index < self._mark_index
