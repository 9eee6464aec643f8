"""Errors of Raft replication, and who has to act.

DLedgerError
|- RaftConfigError          operator: two equal peers, an unknown self id, a value out of range
|- WrongDirectoryError      operator: the data directory belongs to another node or group, or has a newer format
|- ListenError              operator: the node's own address is taken, or not an address of this machine
|- EntryFormatError         disk or peer: bytes that should be an entry are not one
'- PeerError                peer: its connection is closed, the error counted and logged from time to time
   |- UnprovenError         it did not prove that it has the cluster's secret
   |- WrongPeerError        it belongs to another cluster or group, or has another node id or version
   |- PeerRefusedError      it refuses this node
   '- PeerProtocolError     it sent bytes that are not a frame of the peer protocol
"""

from pathlib import Path


class DLedgerError(Exception):
    """Root of the errors of this room."""


class RaftConfigError(DLedgerError):
    """The configuration is invalid; the message names the key and its value."""


class WrongDirectoryError(DLedgerError):
    """The data directory was written by another node, group or format version. It was not changed.

    Args:
        directory: the directory to be opened.
        field: what differs (`node id`, `group`, `cluster`, `format version`).
        found: the value in the directory.
        expected: the value in this node's configuration.
    """

    def __init__(self, directory: Path, field: str, found: object, expected: object) -> None:
        super().__init__(f"{directory} belongs to {field} {found!r}, this node is configured as {field} {expected!r}")
        self.directory = directory
        self.field = field
        self.found = found
        self.expected = expected


class EntryFormatError(DLedgerError):
    """Bytes that should be an entry of the log are not one.

    Args:
        position: position of the entry's first byte, in bytes from the start of the log; -1 if not known.
        detail: what was read and what was expected.
    """

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"entry at position {position}: {detail}")
        self.position = position
        self.detail = detail


class PeerError(DLedgerError):
    """A peer broke the rules of the protocol; its connection is closed, this process goes on."""


class UnprovenError(PeerError):
    """The other end did not prove that it has this node's secret. Nothing else that it sent was used.

    Args:
        address: address of the other end.
    """

    field = "proof of the cluster's secret"

    def __init__(self, address: str) -> None:
        super().__init__(
            f"peer at {address} refused: it did not prove that it holds the secret of this node"
            " (dLegerPeerSecretFile, the same on all members)"
        )


class PeerRefusedError(PeerError):
    """A peer refuses this node.

    Args:
        address: address of the peer.
        field: the field of this node's hello that the peer does not accept; the value it expects is not told.
    """

    def __init__(self, address: str, field: str) -> None:
        super().__init__(f"peer {address} refuses this node because of its {field}")


class WrongPeerError(PeerError):
    """The other end of a connection is not the expected member of this group.

    Args:
        address: `host:port` of the other end.
        field: what differs.
        actual: the value that the other end sent.
        expected: the value that this node accepts.
    """

    def __init__(self, address: str, field: str, actual: object, expected: object) -> None:
        super().__init__(f"peer at {address} refused: its {field} is {actual!r}, expected {expected!r}")
        self.address = address
        self.field = field
        self.actual = actual
        self.expected = expected


class PeerProtocolError(PeerError):
    """A peer sent bytes that are not a frame of the peer protocol, or a frame with a wrong CRC or layout."""


class ListenError(DLedgerError):
    """This node cannot listen at its own address.

    Args:
        address: `host:port` from `dLegerPeers`.
        reason: the error text of the operating system.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot listen for peers on {address}: {reason}")
        self.address = address
