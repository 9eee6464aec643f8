"""What can go wrong in the Raft room, and whose fault it is.

DLedgerError
|- RaftConfigError          the operator's: two equal peers, an unknown self id, a value out of range
|- WrongDirectoryError      the operator's: this data directory belongs to another node, group or a newer format
|- EntryFormatError         the disk's or a peer's: bytes that are no entry where an entry must be
'- PeerError                a peer's: the connection is closed, counted, and now and then logged
   |- UnprovenError         no proof of the cluster's secret
   |- StrangerError         another cluster, group, node id or version behind the address
   |- RefusedError          a peer will not talk to this node
   '- PeerProtocolError     bytes that are no frame of ours
"""

from pathlib import Path


class DLedgerError(Exception):
    """Root of this room's errors."""


class RaftConfigError(DLedgerError):
    """The configuration cannot be run; the message names the key and the offending value."""


class WrongDirectoryError(DLedgerError):
    """The data directory was written by someone else. Nothing in it was touched.

    Args:
        directory: the directory that was to be opened.
        field: what differs (`node id`, `group`, `cluster`, `format version`).
        found: what the directory says.
        expected: what this node's configuration says.
    """

    def __init__(self, directory: Path, field: str, found: object, expected: object) -> None:
        super().__init__(f"{directory} belongs to {field} {found!r}, this node is configured as {field} {expected!r}")
        self.directory = directory
        self.field = field
        self.found = found
        self.expected = expected


class EntryFormatError(DLedgerError):
    """Bytes that must be an entry are not one.

    Args:
        position: absolute position in the data file list of the entry's first byte.
        detail: what was read and what was expected.
    """

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"entry at position {position}: {detail}")
        self.position = position
        self.detail = detail


class PeerError(DLedgerError):
    """A peer did what no peer of ours does; its connection is closed, this process goes on."""


class UnprovenError(PeerError):
    """The other end did not prove that it holds this node's secret; nothing else that it said was looked at.

    Args:
        address: of the other end.
    """

    field = "proof of the cluster's secret"

    def __init__(self, address: str) -> None:
        super().__init__(
            f"peer at {address} refused: it did not prove that it holds the secret of this node"
            " (dLegerPeerSecretFile, the same on all members)"
        )


class RefusedError(PeerError):
    """A peer will not talk to this node.

    Args:
        address: of the peer.
        field: what the peer says it dislikes; it does not say what it expected.
    """

    def __init__(self, address: str, field: str) -> None:
        super().__init__(f"peer {address} refuses this node for its {field!r}")


class StrangerError(PeerError):
    """Someone of another cluster, group, node id or version is behind a connection.

    Args:
        address: `host:port` of the other end.
        field: what differs.
        actual: what the other end said.
        expected: what this node would accept.
    """

    def __init__(self, address: str, field: str, actual: object, expected: object) -> None:
        super().__init__(f"peer at {address} refused: its {field} is {actual!r}, expected {expected!r}")
        self.address = address
        self.field = field
        self.actual = actual
        self.expected = expected


class PeerProtocolError(PeerError):
    """Bytes from a peer that are no frame of this protocol, or a frame whose CRC or layout is wrong."""


class ListenError(DLedgerError):
    """This node's own address cannot be listened on.

    Args:
        address: `host:port` from `dLegerPeers`.
        reason: the system's.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen for peers on {address}: {reason}")
        self.address = address
