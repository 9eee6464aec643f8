"""Decides when a node that does not lead starts an election.

leader heard            random, `election_min_ms` to `election_max_ms` from now
connection to it lost   after this node's rank among the other members times `stagger_ms`, so that votes do not split
enough peers connected  after one heartbeat, in which a leader would be heard, plus the same rank
election lost           50 ms, doubled at each attempt up to `election_min_ms`, plus up to the same again at random
own stall               at least `NodeState.grace_ms` from now, so that messages that waited are handled first
"""

from dledger.core.state import NodeState

_FIRST_BACKOFF_MS = 50


class ElectionClock:
    """The election deadline of a follower or candidate.

    Invariants: `deadline_ms` is on the clock of `tick`. Unless a connection broke, peers just connected or an election
    was lost, it is at least `election_min_ms` after the leader was last heard, so no election starts within a leader's
    lease.
    """

    __slots__ = ("_attempts", "_state", "deadline_ms")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._attempts = 0
        self.deadline_ms = 0
        self.restart()

    @property
    def is_due(self) -> bool:
        """Whether an election should start now."""
        return self._state.now_ms >= self.deadline_ms

    def restart(self) -> None:
        """Wait a whole random election time-out from now."""
        state = self._state
        spread_ms = state.settings.election_max_ms - state.settings.election_min_ms
        self.deadline_ms = state.now_ms + state.settings.election_min_ms + state.jitter(spread_ms)

    def leader_heard(self) -> None:
        """Wait a whole election time-out again, and start the next series of attempts with the shortest pause."""
        self._attempts = 0
        self.restart()

    def attempt(self) -> None:
        """Note that a round of pre-votes starts, and set the time for its answers, longer at each attempt."""
        self._attempts += 1
        self.back_off()

    def back_off(self) -> None:
        """Wait before the next attempt, since the last one failed."""
        wait_ms = min(_FIRST_BACKOFF_MS << min(self._attempts, 10), self._state.settings.election_min_ms)
        self.deadline_ms = self._state.now_ms + wait_ms + self._state.jitter(wait_ms)

    def hasten(self, wait_ms: int, without: str | None) -> None:
        """Start an election after `wait_ms` plus this node's turn among the members but `without`, if sooner."""
        state, stagger_ms = self._state, self._state.settings.stagger_ms
        turn_ms = state.settings.rank(without) * stagger_ms + stagger_ms // 3 + state.jitter(stagger_ms // 2 + 1)
        self.deadline_ms = min(self.deadline_ms, state.now_ms + wait_ms + turn_ms)

    def make_way(self, wait_ms: int) -> None:
        """Start no election within `wait_ms`, in which another candidate may win."""
        self.deadline_ms = max(self.deadline_ms, self._state.now_ms + wait_ms)

    def forgive(self, stall_ms: int) -> None:
        """Wait at least `NodeState.grace_ms` from now: messages that arrived in a stall of this node come first."""
        self.make_way(self._state.grace_ms(stall_ms))
