"""When a node that does not lead asks for votes.

leader heard          `election_min_ms` to `election_max_ms` from now, drawn anew each time
leader's link lost    its rank among the rest times `stagger_ms`, so that votes do not split
enough peers joined   one heartbeat, in which a leader would be heard, and its rank
election lost         50 ms, doubled with each attempt up to `election_min_ms`, and up to that much more
own stall             later by the stall: others could not be heard meanwhile
"""

from dledger.core.state import NodeState

_FIRST_BACKOFF_MS = 50


class ElectionClock:
    """The one deadline of a follower or candidate; `deadline_ms` is on the clock of `tick`."""

    __slots__ = ("_attempts", "_state", "deadline_ms")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._attempts = 0
        self.deadline_ms = 0
        self.restart()

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask for votes."""
        return self._state.now_ms >= self.deadline_ms

    def restart(self) -> None:
        """Wait a whole election time-out from now."""
        state = self._state
        spread_ms = state.settings.election_max_ms - state.settings.election_min_ms
        self.deadline_ms = state.now_ms + state.settings.election_min_ms + state.jitter(spread_ms)

    def leader_heard(self) -> None:
        """All is well: wait anew, and be quick again when the next election comes."""
        self._attempts = 0
        self.restart()

    def attempt(self) -> None:
        """A round of pre-votes begins: wait for its answers, longer with each attempt."""
        self._attempts += 1
        self.back_off()

    def back_off(self) -> None:
        """An attempt came to nothing."""
        wait_ms = min(_FIRST_BACKOFF_MS << min(self._attempts, 10), self._state.settings.election_min_ms)
        self.deadline_ms = self._state.now_ms + wait_ms + self._state.jitter(wait_ms)

    def hasten(self, wait_ms: int, without: str | None) -> None:
        """There is reason to ask soon: after `wait_ms` and this node's turn among the members but `without`."""
        state, stagger_ms = self._state, self._state.settings.stagger_ms
        turn_ms = state.settings.rank(without) * stagger_ms + stagger_ms // 3 + state.jitter(stagger_ms // 2 + 1)
        self.deadline_ms = min(self.deadline_ms, state.now_ms + wait_ms + turn_ms)

    def make_way(self, wait_ms: int) -> None:
        """Another candidate may win: not before it had `wait_ms`."""
        self.deadline_ms = max(self.deadline_ms, self._state.now_ms + wait_ms)

    def forgive(self, stall_ms: int) -> None:
        """This node stood still for that long: others get time to be heard before their silence counts."""
        self.make_way(self._state.grace_ms(stall_ms))
