"""What a leader knows of one follower's log, and what it has under way to it.

               answer accepts                     lost message, lost link, lost entries
      PROBE ------------------> REPLICATE ------------------------------------------> PROBE
        |   ^                                                                           |
        |   '----- InstallResponse ----- INSTALL <---- needs entries below the oldest kept file

In PROBE one request is under way at a time; in REPLICATE spans are pipelined under a window of bytes.

Source: etcd raft `tracker/progress.go` and `design.md`; `received` and `durable` are told apart here.
"""

from collections import deque
from enum import Enum

from dledger.core.messages import NO_INDEX
from dledger.core.state_parts import StateOut


class ProgressState(Enum):
    """How entries go to the follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    INSTALL = "install"


class Progress:
    """One follower, as its leader sees it.

    Always `durable_index <= received_index < next_index <= last index of the leader + 1`.

    Attributes:
        received_index: the follower's log equals the leader's up to here; `NO_INDEX` while nothing is known.
        durable_index: the follower has flushed its log up to here.
        next_index: first entry that was not sent yet.
        recovering: the follower may have forgotten entries, so it does not count; its indexes were forgotten when it
            said so, and what it says since then is believed.
        acked_sequence: newest heartbeat round that the follower answered; `acked_ms`: when that round began.
        installed_ms: when the last install request went out.
        state_out: the state that is being installed; None in other states than INSTALL.
        moved_ms: when it was last seen to hold more than before, or all there is.
        inflight_bytes: sent and not answered yet, in REPLICATE.
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
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()
        self._probe_sent = False
        self._mark_sequence = 0
        self._mark_index = NO_INDEX

    def may_send(self, window_bytes: int) -> bool:
        """Whether another append request may go out now."""
        if self.state is ProgressState.REPLICATE:
            return self.inflight_bytes < window_bytes
        return self.state is ProgressState.PROBE and not self._probe_sent

    def sent(self, last_index: int, size_bytes: int) -> None:
        """An append request with entries up to `last_index` went out (`next_index - 1` when it had none)."""
        if self.state is ProgressState.PROBE:
            self._probe_sent = True
            return
        self.next_index = last_index + 1
        self.inflight_bytes += size_bytes
        self._inflight.append((last_index, size_bytes))

    def heartbeat(self, sequence: int) -> None:
        """Round `sequence` begins: what went out before it must have arrived when the round after it is answered."""
        self._probe_sent = False
        if self._mark_index <= self.received_index:
            self._mark_sequence, self._mark_index = sequence, self.next_index - 1

    def accepted(self, received_index: int, durable_index: int, sequence: int) -> bool:
        """The follower's log equals ours up to `received_index`. Returns whether anything it holds is news.

        A durable index above that speaks of entries which the answer itself does not vouch for: they do not count.
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
        """Whether a reject of `prev_index`, by a log that ends at `last_index`, asks for nothing.

        While spans are pipelined a gap is no reason to go back: what is missing may be under way on a network that
        reorders, and if it was lost the answers to the next heartbeats show it.
        """
        if self.state is ProgressState.PROBE:
            return prev_index != self.next_index - 1
        lost_what_it_had = prev_index == self.received_index and last_index < self.received_index
        return not lost_what_it_had

    def rejected(self, next_index: int, last_index: int) -> None:
        """Its log ends at `last_index` and may part from ours at `next_index`: ask there."""
        self.received_index = min(self.received_index, last_index)
        self.durable_index = min(self.durable_index, last_index)
        self.probe(max(next_index, self.received_index + 1))

    def forget(self) -> None:
        """It came back recovering: nothing it ever acknowledged counts."""
        self.recovering = True
        self.received_index = self.durable_index = NO_INDEX
        self.probe(self.next_index)

    def probe(self, next_index: int) -> None:
        """Ask for the entry before `next_index`, once, before anything else goes out."""
        self.state = ProgressState.PROBE
        self.state_out = None
        self.next_index = next_index
        self.inflight_bytes = 0
        self._inflight.clear()
        self._probe_sent = False
        self._mark_index = NO_INDEX

    def reconnect(self) -> None:
        """The connection broke, or stands again: what was under way is lost."""
        self.probe(self.next_index if self.received_index == NO_INDEX else self.received_index + 1)

    def install(self, state_out: StateOut) -> None:
        """Its log begins anew, and `state_out` is sent first."""
        self.probe(self.next_index)
        self.state, self.state_out = ProgressState.INSTALL, state_out

    def installed(self, last_index: int, *, is_durable: bool) -> None:
        """Its log equals ours up to `last_index` (because it begins there, or because it held that much already)."""
        self.received_index = max(self.received_index, last_index)
        if is_durable:
            self.durable_index = max(self.durable_index, last_index)
        self.probe(self.received_index + 1)

    def _is_found(self, received_index: int) -> bool:
        """Whether an answer shows where to go on: the probe matched, or an install whose answer was lost is done."""
        return received_index >= self.next_index - (self.state is ProgressState.PROBE)

    def _has_lost(self, sequence: int) -> bool:
        return sequence > self._mark_sequence and self.received_index < self._mark_index
