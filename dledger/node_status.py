"""The state of one member of a Raft group, for `/metrics`, `/readyz` and `cluster status`."""

from collections.abc import Iterator
from dataclasses import dataclass

from dledger.core.progress import PeerProgress
from dledger.core.raft import Raft
from dledger.core.roles import SoftState
from telemetry.families import Family, Row

_PEERS = (
    ("ledgermq_replica_lag_entries", "Entries that this follower has not received, on the leader."),
    ("ledgermq_replica_durable_lag_entries", "Entries that are not durable on this follower, on the leader."),
    ("ledgermq_replica_inflight_bytes", "Sent to this follower and not answered, on the leader."),
    ("ledgermq_replica_recovering", "1 while this follower may not count, having lost what it had flushed."),
)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One follower as its leader sees it: see `dledger.core.progress.PeerProgress`.

    Attributes:
        is_heard: it is connected, and has answered a heartbeat of the last `election_max_ms`.
    """

    peer_id: str
    state: str
    received_index: int
    durable_index: int
    recovering: bool
    inflight_bytes: int
    is_heard: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of one member and, while it leads, what it knows of the others.

    Attributes:
        first_index, last_index: first and last entry kept.
        durable_index: last entry that a completed flush covers on this node.
        commit_index: last entry known to be committed; `NO_INDEX` when none is.
        leader_commit: the highest commit index received from the leader; on the leader its own.
        has_lease: this node leads, and no other member can lead at this moment.
        waits_for: members whose answer an election still needs.
        ignored_count: see `dledger.core.member.Member`; since the start.
        peers: the followers; empty while this node does not lead.
    """

    soft: SoftState
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    leader_commit: int
    has_lease: bool
    waits_for: tuple[str, ...]
    ignored_count: int
    peers: tuple[PeerStatus, ...]


def status_of(raft: Raft) -> NodeStatus:
    """Return the present state of a member."""
    state, leader = raft.state, raft.member.leader
    return NodeStatus(
        soft=raft.soft_state,
        first_index=state.terms.first_index,
        last_index=state.terms.last_index,
        durable_index=state.durable_index,
        commit_index=state.commit_index,
        leader_commit=state.commit_index if leader is not None else raft.member.follower.leader_commit,
        has_lease=leader is not None and leader.has_lease(),
        waits_for=raft.waits_for,
        ignored_count=raft.member.ignored_count,
        peers=() if leader is None else tuple(_peer_status(raft, peer, leader.peers[peer]) for peer in leader.peers),
    )


def _peer_status(raft: Raft, peer_id: str, progress: PeerProgress) -> PeerStatus:
    heard_since_ms = raft.state.now_ms - raft.settings.election_max_ms
    return PeerStatus(
        peer_id,
        progress.state.value,
        progress.received_index,
        progress.durable_index,
        progress.recovering,
        progress.inflight_bytes,
        peer_id not in raft.state.lost_links and progress.acked_ms >= heard_since_ms,
    )


def metrics_of(status: NodeStatus) -> Iterator[Family]:
    """Return the state as families of the metrics page."""
    yield _one("ledgermq_raft_last_index", "Last entry of the log.", status.last_index)
    yield _one("ledgermq_raft_commit_index", "Last entry known to be committed.", status.commit_index)
    yield _one("ledgermq_raft_durable_index", "Last entry that is durable on this node.", status.durable_index)
    yield _one("ledgermq_raft_has_lease", "1 while a quorum was heard lately, on the leader.", int(status.has_lease))
    explanation = (
        "Messages of members that changed nothing: of a former leader, impossible, or installs that came late."
    )
    yield Family("ledgermq_raft_ignored_messages_total", "counter", explanation, [((), status.ignored_count)])
    for position, (name, explanation) in enumerate(_PEERS):
        rows: list[Row] = [((("peer", peer.peer_id),), _figures(status, peer)[position]) for peer in status.peers]
        yield Family(name, "gauge", explanation, rows)


def _figures(status: NodeStatus, peer: PeerStatus) -> tuple[int, int, int, int]:
    """Return the values of a follower, in the order of `_PEERS`."""
    return (
        max(0, status.last_index - peer.received_index),
        max(0, status.last_index - peer.durable_index),
        peer.inflight_bytes,
        int(peer.recovering),
    )


def _one(name: str, explanation: str, value: int) -> Family:
    return Family(name, "gauge", explanation, [((), value)])
