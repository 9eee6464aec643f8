"""Refusals of a Raft log, each with its cause and the numbers behind it."""

from dledger.config import RaftConfig
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal


def not_leader(node_id: str, term: int, leader: LeaderHint | None) -> Refusal:
    """Return the refusal of a node that does not lead; `leader` is the present leader, if known."""
    where = "no leader is known" if leader is None else f"the leader is {leader.node_id} at {leader.address}"
    remark = f"{node_id} does not lead in term {term}: {where}"
    return Refusal(Cause.NOT_LEADER, remark, retry_after_ms=None if leader else 100, leader_hint=leader)


def leader_changed(node_id: str, term: int, leader: LeaderHint | None) -> Refusal:
    """Return the refusal of a batch of a deposed leader; the next leader may or may not commit it."""
    where = "" if leader is None else f"; {leader.node_id} at {leader.address} leads now"
    remark = f"{node_id} lost leadership in term {term} before the messages were committed{where}"
    return Refusal(Cause.LEADER_CHANGED, remark, leader_hint=leader)


def too_much_waits(waiting_bytes: int, limit_bytes: int) -> Refusal:
    """Return the refusal of an append while more than `limit_bytes` wait for a quorum."""
    busy = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    remark = f"{busy}: {waiting_bytes} bytes wait for a quorum, the limit is {limit_bytes}"
    return Refusal(Cause.BUSY, remark, retry_after_ms=100)


def no_quorum(config: RaftConfig, term: int, received: int, durable: int, waiting: int) -> Refusal:
    """Return the refusal of a late batch; `received` members have the last entry, `durable` of them on disk."""
    limit_ms = config.append_timeout_ms
    remark = (
        f"no quorum within {limit_ms} ms in term {term}: of {len(config.peers)} members {received} hold the last "
        f"entry, {durable} durably; {waiting} batches wait, and may still be committed"
    )
    return Refusal(Cause.NO_QUORUM, remark, retry_after_ms=limit_ms)
