"""The handshake of a connection between peers: who the two ends are, and the settings that must be equal.

    listener --challenge: nonce--> dialer --Hello, proof--> listener --Hello, proof--> dialer
                                                            or --refusal: field--> dialer

The listener reveals nothing about itself before it knows the dialer; a refusal names the field, not the expected value.
Proofs are empty where no secret is configured, see `ledgermq.remoting.proof`.

A peer is identified by cluster, group, node id and incarnation; its address may change. The same node with a new
incarnation has lost its disk: this is logged, and `HardState.recovering` makes it safe.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dledger.errors import PeerProtocolError, WrongPeerError
from ledgermq.remoting.proof import NONCE_SIZE

SEALED_FRAMES: Final = b"frames"
"""`purpose` of the seals between members of a Raft group."""
PROTOCOL_VERSION: Final = 4
"""Members of different versions refuse each other. 4: frames are sealed by AES-GCM; 3: by SHA-256 and BLAKE2b."""
SIZE_LIMIT: Final = 4096
_NONCE: Final = re.compile(f"[0-9a-f]{{{2 * NONCE_SIZE}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A node's description of itself in the handshake.

    Attributes:
        version: version of this protocol.
        cluster, group, node_id: identity of the sender.
        members: ids of all members of the sender's group, as `dledger.log.membership.members_text` writes them. Nodes
            with different members would count different majorities.
        to: node id of the node that the sender believes to be at the other end.
        nonce: drawn by the sender for this connection, hexadecimal; the other end's proof covers it.
        incarnation: drawn when the sender's data directory was made.
        session: drawn when the sender's process started.
        client_address: `host:port` to which clients are sent while the sender leads.
        inside_address: `host:port` at which the other members ask the sender; empty: the same.
        data_file_size: positions are equal on all nodes only if their files have the same size.
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
    inside_address: str
    data_file_size: int

    def encode(self) -> bytes:
        """Return the fields as JSON."""
        return json.dumps(asdict(self)).encode()

    def check(self, other: "Hello", address: str, expected_ids: frozenset[str]) -> None:
        """Check that `other`, which connects from `address`, is one of `expected_ids` in this node's group.

        Raises:
            WrongPeerError: names the first field that differs.
        """
        for field, label in _MUST_AGREE.items():
            actual, expected = getattr(other, field), getattr(self, field)
            if actual != expected:
                raise WrongPeerError(address, label, actual, expected)
        if other.node_id not in expected_ids:
            raise WrongPeerError(address, "node id", other.node_id, " or ".join(sorted(expected_ids)))
        if other.to != self.node_id:
            raise WrongPeerError(address, "addressee", other.to, self.node_id)


_MUST_AGREE: Final = {
    "version": "protocol version",
    "cluster": "cluster",
    "group": "group",
    "members": "dLegerPeers",
    "data_file_size": "data file size",
}


def decode_hello(data: bytes) -> Hello:
    """Decode a hello from the data of its frame.

    Raises:
        PeerProtocolError: it is not a hello.
    """
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PeerProtocolError(f"hello {data[:80]!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise PeerProtocolError(f"hello is a {type(parsed).__name__}, expected an object")
    if parsed.get("version") != PROTOCOL_VERSION:
        # version 1, which is refused later, has neither field
        parsed = {"members": "", "nonce": bytes(NONCE_SIZE).hex(), **parsed}
    values: dict[str, Any] = {}
    for field in fields(Hello):
        value = parsed.get(field.name)
        if not isinstance(value, int if field.type is int else str):
            raise PeerProtocolError(f"hello has {field.name} {value!r}")
        values[field.name] = value
    if not _NONCE.fullmatch(values["nonce"]):
        raise PeerProtocolError(f"hello has nonce {values['nonce'][:80]!r}, expected {NONCE_SIZE} bytes")
    return Hello(**values)
