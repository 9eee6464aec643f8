"""How a Raft group stands as this member sees it, and how long messages take to be safe: names of our own."""

from collections.abc import Iterator

from broker.log_choice import backlog, group_status
from broker.parts import Parts
from dledger.node_status import NodeStatus, PeerStatus
from telemetry.families import Buckets, Family, Number, Row

_PEERS = (
    ("ledgermq_replica_lag_entries", "Entries that this follower has not received, on the leader."),
    ("ledgermq_replica_durable_lag_entries", "Entries that are not durable on this follower, on the leader."),
    ("ledgermq_replica_inflight_bytes", "Sent to this follower and not answered, on the leader."),
    ("ledgermq_replica_recovering", "1 while this follower may not count, having lost what it had flushed."),
)


def replication(parts: Parts) -> Iterator[Family]:
    """All families; those of a group only where there is one."""
    yield _append_seconds(parts)
    yield _one("ledgermq_unflushed_bytes", "In the log and not durable on this node.", backlog(parts.store.log)[1])
    changes = parts.leadership.changes
    yield Family("ledgermq_role_changes_total", "counter", "How often it began or ceased to lead.", [((), changes)])
    status = group_status(parts.store.log)
    if status is None:
        return
    yield _one("ledgermq_raft_last_index", "Last entry of the log.", status.last_index)
    yield _one("ledgermq_raft_commit_index", "Last entry known to be committed.", status.commit_index)
    yield _one("ledgermq_raft_durable_index", "Last entry that is durable on this node.", status.durable_index)
    yield _one("ledgermq_raft_has_lease", "1 while a quorum was heard lately, on the leader.", int(status.has_lease))
    for position, (name, explanation) in enumerate(_PEERS):
        rows: list[Row] = [((("peer", peer.peer_id),), _figures(status, peer)[position]) for peer in status.peers]
        yield Family(name, "gauge", explanation, rows)


def _figures(status: NodeStatus, peer: PeerStatus) -> tuple[int, int, int, int]:
    """In the order of `_PEERS`."""
    return (
        max(0, status.last_index - peer.received_index),
        max(0, status.last_index - peer.durable_index),
        peer.inflight_bytes,
        int(peer.recovering),
    )


def _append_seconds(parts: Parts) -> Family:
    bounds_ms, counts, sum_ms = parts.counting.calls.appends.distribution()
    buckets = Buckets([bound / 1000 for bound in bounds_ms], counts, sum_ms / 1000)
    explanation = "From a message's arrival to its answer."
    return Family("ledgermq_append_seconds", "histogram", explanation, [((), buckets)])


def _one(name: str, explanation: str, value: Number) -> Family:
    return Family(name, "gauge", explanation, [((), value)])
