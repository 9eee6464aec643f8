"""Settings of the Raft core: the members and the time limits, checked at construction."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.core.errors import MembershipError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTiming:
    """The time limits. All members should have the same.

    Attributes:
        heartbeat_ms: time between heartbeats; also the resolution of check-quorum and of loss detection.
        election_min_ms: a leader silent for less than this is never voted against (the lease).
        election_max_ms: a leader silent for longer is always given up; a leader without a quorum for so long steps
            down.
        stagger_ms: after a lost connection a member waits its rank times this before it campaigns, so that votes do not
            split.
        prefer_interval_ms: how often a leader looks for a member of greater priority.
        tick_slack_ms: the part of a time between two ticks that is longer than this is a stall of the own loop.
    """

    heartbeat_ms: int = 100
    election_min_ms: int = 600
    election_max_ms: int = 1000
    stagger_ms: int = 30
    prefer_interval_ms: int = 1000
    tick_slack_ms: int = 50

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: times out of relation.
        """
        for name in ("heartbeat_ms", "stagger_ms", "prefer_interval_ms", "tick_slack_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.election_min_ms < 2 * self.heartbeat_ms:
            raise ValueError(
                f"election_min_ms={self.election_min_ms}: must be at least twice heartbeat_ms={self.heartbeat_ms}"
            )
        if self.election_max_ms <= self.election_min_ms:
            raise ValueError(
                f"election_max_ms={self.election_max_ms}: must be more than election_min_ms={self.election_min_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings(RaftTiming):
    """Membership and timing of one node. All members should have the same values but for `node_id`.

    Attributes:
        node_id: this node; one of `peers`.
        peers: all members, this node included; fixed for the life of the process (no joint consensus yet).
        priorities: members with a greater value are preferred as leaders; a member left out has 0. A leader hands over
            to a member of greater priority that holds everything committed.
        durable_quorum: an entry counts for the quorum when it is flushed (SYNC_FLUSH); else when it is received.
        span_limit_bytes: largest span in one append request.
        window_bytes: most bytes in flight to one follower.
    """

    node_id: str
    peers: tuple[str, ...]
    priorities: Mapping[str, int] = field(default_factory=dict)
    durable_quorum: bool = True
    span_limit_bytes: int = 1 << 20
    window_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            MembershipError: empty or equal peers, this node not among them, a priority for an unknown peer.
            ValueError: times or sizes out of relation.
        """
        RaftTiming.__post_init__(self)
        self._check_membership()
        if not 1 <= self.span_limit_bytes <= self.window_bytes:
            raise ValueError(f"span_limit_bytes={self.span_limit_bytes}: must be 1 to window_bytes={self.window_bytes}")

    @property
    def quorum(self) -> int:
        """Smallest majority of the members."""
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> tuple[str, ...]:
        """All members except this node."""
        return tuple(peer for peer in self.peers if peer != self.node_id)

    def priority(self, peer: str) -> int:
        """Priority of a member."""
        return self.priorities.get(peer, 0)

    def goes_before(self, peer: str) -> bool:
        """Return whether `peer` should campaign rather than this node when their logs are equal."""
        return (-self.priority(peer), peer) < (-self.priority(self.node_id), self.node_id)

    def rank(self, without: str | None) -> int:
        """Return the number of members, without `without`, that should campaign before this node."""
        return sum(self.goes_before(peer) for peer in self.others if peer != without)

    def _check_membership(self) -> None:
        if len(set(self.peers)) != len(self.peers):
            twice = sorted({peer for peer in self.peers if self.peers.count(peer) > 1})
            raise MembershipError(f"peers named more than once: {', '.join(twice)}")
        if "" in self.peers:
            raise MembershipError("the id of a peer is empty")
        if self.node_id not in self.peers:
            raise MembershipError(
                f"self id {self.node_id!r} is not among the peers {', '.join(self.peers) or '(none)'}"
            )
        for peer in self.priorities:
            if peer not in self.peers:
                raise MembershipError(f"priority for {peer!r}, which is not among the peers {', '.join(self.peers)}")
