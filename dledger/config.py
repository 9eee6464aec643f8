"""The configuration of a Raft node: its identity, its peers, its files and its time limits.

`peers` has RocketMQ's `dLegerPeers` format: `n0-host:port;n1-host:port;n2-host:port`.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dledger.core.settings import RaftSettings, RaftTiming
from dledger.errors import RaftConfigError
from dledger.log.entry import FILLER_SIZE, HEADER_SIZE, INDEX_UNIT_SIZE
from ledgermq.remoting.refusal import LeaderHint
from store.log.flusher import FlushMode

_NODE_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """One member of the group: its id and the address at which it listens for peers.

    The host is resolved at every connect. A member is recognized by its id, not by its address.
    """

    node_id: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}-{self.host}:{self.port}"


def parse_peers(text: str) -> tuple[PeerAddress, ...]:
    """Parse `n0-host:port;n1-host:port`; returns the members in the order given.

    Raises:
        RaftConfigError: a part cannot be parsed, or two members have the same id or address.
    """
    peers: list[PeerAddress] = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        peer = _parse_peer(part)
        for other in peers:
            if other.node_id == peer.node_id:
                raise RaftConfigError(f"dLegerPeers names node {peer.node_id!r} twice: {other} and {peer}")
            if (other.host, other.port) == (peer.host, peer.port):
                raise RaftConfigError(f"dLegerPeers gives two nodes the same address: {other} and {peer}")
        peers.append(peer)
    if not peers:
        raise RaftConfigError(f"dLegerPeers is {text!r}, expected n0-host:port;n1-host:port;...")
    return tuple(peers)


def _parse_peer(part: str) -> PeerAddress:
    node_id, dash, address = part.partition("-")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (dash and colon and host and _NODE_ID.fullmatch(node_id)):
        raise RaftConfigError(f"dLegerPeers has {part!r}, expected id-host:port with an id such as n0")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RaftConfigError(f"dLegerPeers has port {port!r} in {part!r}, expected 1 to 65535")
    return PeerAddress(node_id, host, int(port))


def follower_broker_id(node_id: str, node_ids: Sequence[str]) -> int:
    """Return the id that a follower registers: the number in its node id plus one, as in Java's DLedger (n0 is 1).

    Other node ids have the place among `node_ids`, counted from 1.
    """
    match = re.fullmatch(r"n(\d+)", node_id)
    return int(match[1]) + 1 if match else node_ids.index(node_id) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Settings of one Raft node.

    Attributes:
        cluster, group, self_id: identity of this node; `self_id` is one of `peers`.
        peers: all members and the addresses at which they listen for each other.
        store_dir: the log is in `dledger-<self_id>` below it.
        client_address: `host:port` that peers give to clients when this node leads.
        inside_address: `host:port` at which brokers of the group pass requests of clients on to this node; empty: the
            same.
        store_host: encoded address for the store host field of records: 8 or 20 bytes.
        peer_secrets: secrets one of which members prove to have when they connect; none: no proof is asked for.
        listen_host: host to bind; None: the host in `peers`.
        flush_mode: SYNC counts an entry once it is durable, ASYNC once it is received.
        preferred_leader: member to which leadership is transferred when its log is up to date.
        span_limit_bytes: largest part of the log in one append request.
        peer_window_bytes: most bytes sent to one follower and not yet acknowledged.
        append_timeout_ms: a batch not committed within this time is refused; it may still be committed later.
        disk_stall_ms: a leader steps down when a flush takes longer.
        pending_limit_bytes: most bytes placed and not yet committed; further appends are refused as BUSY.
    """

    cluster: str
    group: str
    self_id: str
    peers: tuple[PeerAddress, ...]
    store_dir: Path
    client_address: str
    store_host: bytes
    inside_address: str = ""
    peer_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    listen_host: str | None = None

    flush_mode: FlushMode = FlushMode.SYNC
    flush_interval_ms: int = 200  # ASYNC only
    data_file_size_bytes: int = 1 << 30
    index_file_size_bytes: int = 5 * _MIB * INDEX_UNIT_SIZE

    timing: RaftTiming = field(default_factory=RaftTiming)
    preferred_leader: str | None = None

    span_limit_bytes: int = _MIB
    peer_window_bytes: int = 8 * _MIB
    append_timeout_ms: int = 3000
    disk_stall_ms: int = 3000
    pending_limit_bytes: int = 256 * _MIB
    checkpoint_interval_ms: int = 1000

    def __post_init__(self) -> None:
        """Check relations between the values.

        Raises:
            RaftConfigError: names the key and its value.
        """
        ids = [peer.node_id for peer in self.peers]
        if self.self_id not in ids:
            raise RaftConfigError(f"dLegerSelfId {self.self_id!r} is not among dLegerPeers {', '.join(ids)}")
        if self.preferred_leader is not None and self.preferred_leader not in ids:
            raise RaftConfigError(
                f"preferredLeaderId {self.preferred_leader!r} is not among dLegerPeers {', '.join(ids)}"
            )
        if self.data_file_size_bytes < 2 * (HEADER_SIZE + FILLER_SIZE):
            raise RaftConfigError(f"a log file of {self.data_file_size_bytes} bytes is too small for an entry")
        if self.index_file_size_bytes <= 0 or self.index_file_size_bytes % INDEX_UNIT_SIZE:
            raise RaftConfigError(
                f"an index file of {self.index_file_size_bytes} bytes is not a multiple of {INDEX_UNIT_SIZE} bytes"
            )

    @property
    def listen_address(self) -> PeerAddress:
        """This node's own entry of `peers`."""
        return next(peer for peer in self.peers if peer.node_id == self.self_id)

    def broker_id_of(self, node_id: str) -> int:
        """Return the id under which routes show a member while it follows."""
        return follower_broker_id(node_id, [peer.node_id for peer in self.peers])

    @property
    def own_hint(self) -> LeaderHint:
        """The hint to this node as the leader, for clients and peers."""
        return LeaderHint(self.self_id, self.client_address, self.inside_address)

    @property
    def settings(self) -> RaftSettings:
        """The part of the configuration that the Raft core uses."""
        return RaftSettings(
            node_id=self.self_id,
            peers=tuple(peer.node_id for peer in self.peers),
            priorities={} if self.preferred_leader is None else {self.preferred_leader: 1},
            durable_quorum=self.flush_mode is FlushMode.SYNC,
            span_limit_bytes=self.span_limit_bytes,
            window_bytes=self.peer_window_bytes,
            **asdict(self.timing),
        )
