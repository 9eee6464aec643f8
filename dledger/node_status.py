"""A picture of one member of a Raft group, for `/metrics`, `/readyz` and `cluster status`; not for the hot path."""

from dataclasses import dataclass

from dledger.core.progress import Progress
from dledger.core.raft import Raft
from dledger.core.roles import SoftState


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One follower as its leader sees it: see `dledger.core.progress.Progress`."""

    peer_id: str
    state: str
    received_index: int
    durable_index: int
    recovering: bool
    inflight_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One member, and what it knows of the others while it leads.

    Attributes:
        first_index, last_index: of the entries kept.
        durable_index: newest entry that a flush covers here.
        commit_index: entries up to here can never vanish; `NO_INDEX` when none is known to be committed.
        has_lease: it leads, and no other can lead at this moment.
        waits_for: members that an election still needs to hear.
        ignored_count: messages of strangers, or without sense.
        peers: empty while it does not lead.
    """

    soft: SoftState
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    has_lease: bool
    waits_for: tuple[str, ...]
    ignored_count: int
    peers: tuple[PeerStatus, ...]


def status_of(raft: Raft) -> NodeStatus:
    """What is true of a member now."""
    state, leader = raft.state, raft.leader
    return NodeStatus(
        soft=raft.soft_state,
        first_index=state.terms.first_index,
        last_index=state.terms.last_index,
        durable_index=state.durable_index,
        commit_index=state.commit_index,
        has_lease=leader is not None and leader.has_lease(),
        waits_for=raft.waits_for,
        ignored_count=raft.ignored_count,
        peers=() if leader is None else tuple(_peer_status(peer, leader.peers[peer]) for peer in leader.peers),
    )


def _peer_status(peer_id: str, progress: Progress) -> PeerStatus:
    return PeerStatus(
        peer_id,
        progress.state.value,
        progress.received_index,
        progress.durable_index,
        progress.recovering,
        progress.inflight_bytes,
    )
