"""The handshake of a connection between peers: who speaks, to whom, and what both must agree on.

    listener --challenge: nonce--> dialer --Hello, proof--> listener --Hello, proof--> dialer
                                                                     or --refusal: field--> dialer

The listener says nothing of itself before it knows the dialer, and a refusal names the field, not what was expected.
Proofs are empty where no secret is configured, see `ledgermq.remoting.proof`.

A peer is known by cluster, group, node id and incarnation. Its address may change. A new incarnation is the same node
with an empty disk: it is logged, and Raft handles it by itself (`HardState.recovering`).
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dledger.errors import PeerProtocolError, StrangerError
from ledgermq.remoting.proof import NONCE_SIZE

PROTOCOL_VERSION: Final = 3
SIZE_LIMIT: Final = 4096
_NONCE: Final = re.compile(f"[0-9a-f]{{{2 * NONCE_SIZE}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a node says of itself.

    Attributes:
        version: of this protocol.
        cluster, group, node_id: who speaks.
        members: ids of all members of the speaker's group, as `dledger.log.membership.members_text` writes them: nodes
            that disagree would count different majorities.
        to: node id that the speaker believes to talk to.
        nonce: that the speaker drew for this connection, hexadecimal; the other end's proof covers it.
        incarnation: drawn when the speaker's data directory was made.
        session: drawn when the speaker's process started.
        client_address: `host:port` that clients are sent to when the speaker leads.
        data_file_size: positions are the same on all nodes only if their files are.
    """

    version: int
    cluster: str
    group: str
    members: str
    node_id: str
    to: str
    nonce: str
    incarnation: str
    session: str
    client_address: str
    data_file_size: int

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    def check(self, other: "Hello", address: str, expected_ids: frozenset[str]) -> None:
        """Whether `other`, which speaks from `address`, may be one of `expected_ids` in this node's group.

        Raises:
            StrangerError: naming the first field that differs.
        """
        for field, label in _MUST_AGREE.items():
            actual, expected = getattr(other, field), getattr(self, field)
            if actual != expected:
                raise StrangerError(address, label, actual, expected)
        if other.node_id not in expected_ids:
            raise StrangerError(address, "node id", other.node_id, " or ".join(sorted(expected_ids)))
        if other.to != self.node_id:
            raise StrangerError(address, "addressee", other.to, self.node_id)


_MUST_AGREE: Final = {
    "version": "protocol version",
    "cluster": "cluster",
    "group": "group",
    "members": "dLegerPeers",
    "data_file_size": "data file size",
}


def decode_hello(data: bytes) -> Hello:
    """A hello from its frame.

    Raises:
        PeerProtocolError: it is none.
    """
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerProtocolError(f"hello {data[:80]!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise PeerProtocolError(f"hello is a {type(parsed).__name__}, expected an object")
    if parsed.get("version") != PROTOCOL_VERSION:
        parsed = {"members": "", "nonce": bytes(NONCE_SIZE).hex(), **parsed}  # unknown to version 1, which is refused
    values: dict[str, Any] = {}
    for field in fields(Hello):
        value = parsed.get(field.name)
        if not isinstance(value, int if field.type is int else str):
            raise PeerProtocolError(f"hello has {field.name} {value!r}")
        values[field.name] = value
    if not _NONCE.fullmatch(values["nonce"]):
        raise PeerProtocolError(f"hello has nonce {values['nonce'][:80]!r}, expected {NONCE_SIZE} bytes")
    return Hello(**values)
