"""Which node a data directory belongs to, and how the last process that used it ended.

    <storeBaseDir>/dledger-n0/
        identity      format version, cluster, group, node id, incarnation: written once, when the directory is made
        running       boot id and pid: there while a process has the log open, removed by a clean stop
        peers         the incarnation last seen of each peer
        members       ids of the group's members: see `dledger.log.membership`

The incarnation is random, drawn when the directory is made. A node that comes back with another one has lost its disk,
and with it its votes and acknowledgements. A node with the same incarnation at another address is the same node.
"""

import contextlib
import enum
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger.errors import WrongDirectoryError
from dledger.log.small_file import remove_durably, write_durably
from store.directory.boot import boot_id
from store.errors import StoreError, StoreFormatError
from store.files.folders import open_folder
from store.log.flusher import FlushMode

FORMAT_VERSION = 1


class PreviousStop(enum.Enum):
    """How the last process that had this directory open ended."""

    CLEAN = "clean"
    PROCESS_CRASH = "process crash"  # the machine did not restart: the page cache was kept
    MACHINE_CRASH = "machine crash"  # the machine restarted: what was not flushed may be lost
    DISK_FAILURE = "disk failure"  # a write or a sync failed: what was not flushed may be lost


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The node to which a data directory belongs."""

    cluster: str
    group: str
    node_id: str
    incarnation: str


def directory_of(store_dir: Path, node_id: str) -> Path:
    """Return the directory of a node's Raft log, which is where Java's DLedger keeps it."""
    return store_dir / f"dledger-{node_id}"


def make_directory(store_dir: Path, node_id: str) -> Path:
    """Return the node's Raft directory; it is made if missing.

    Raises:
        WrongDirectoryError: the store belongs to another node.
        DiskFailedError: it cannot be made.
    """
    for other in sorted(store_dir.glob("dledger-*")):
        if other.is_dir() and other.name != f"dledger-{node_id}":
            raise WrongDirectoryError(store_dir, "node id", other.name.removeprefix("dledger-"), node_id)
    directory = directory_of(store_dir, node_id)
    open_folder(directory)
    return directory


def open_identity(directory: Path, cluster: str, group: str, node_id: str) -> tuple[MemberIdentity, bool]:
    """Read the identity of a locked directory, or create it in a directory that is new or Java's.

    Returns:
        The identity, and whether it was created.

    Raises:
        WrongDirectoryError: the directory belongs to another node, group or cluster, or has a newer format.
        StoreFormatError: the identity file cannot be parsed.
        DiskFullError, DiskFailedError: it could not be written.
    """
    path = directory / "identity"
    if not path.exists():
        identity = MemberIdentity(cluster, group, node_id, secrets.token_hex(16))
        write_durably(path, _to_json(identity))
        return identity, True
    found = _load_json(path)
    expected = {"format version": FORMAT_VERSION, "cluster": cluster, "group": group, "node id": node_id}
    for field, value in expected.items():
        if found.get(field) != value:
            raise WrongDirectoryError(directory, field, found.get(field), value)
    incarnation = found.get("incarnation")
    if not isinstance(incarnation, str) or not incarnation:
        raise StoreFormatError(path, f"incarnation is {incarnation!r}, expected a text")
    return MemberIdentity(cluster, group, node_id, incarnation), False


def _to_json(identity: MemberIdentity) -> bytes:
    fields = {
        "format version": FORMAT_VERSION,
        "cluster": identity.cluster,
        "group": identity.group,
        "node id": identity.node_id,
        "incarnation": identity.incarnation,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def _load_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise StoreFormatError(path, f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise StoreFormatError(path, f"expected an object, found {type(found).__name__}")
    return found


class RunningMarker:
    """The `running` file: tells a clean stop from a crash, and a crash of the process from one of the machine.

    Args:
        directory: the node's Raft directory.
        boot: id of this boot of the machine; None takes `boot_id`.
    """

    def __init__(self, directory: Path, boot: str | None = None) -> None:
        self._path = directory / "running"
        self._boot = boot or boot_id()
        found: dict[str, Any] | None = None
        if self._path.exists():
            try:
                found = _load_json(self._path)
            except StoreFormatError:
                found = {}  # the machine crashed before the marker itself was written
        self.previous_stop = PreviousStop.CLEAN
        if found is not None:
            self.previous_stop = self._how_it_ended(found)
        self.was_async = found is not None and found.get("flush mode") != FlushMode.SYNC.value
        """Whether the run that crashed used ASYNC_FLUSH, or did not say which flush mode it used."""
        self._fields: dict[str, Any] = {}

    def _how_it_ended(self, found: dict[str, Any]) -> PreviousStop:
        if found.get("disk failed"):
            return PreviousStop.DISK_FAILURE
        is_same_boot = found.get("boot id") == self._boot
        return PreviousStop.PROCESS_CRASH if is_same_boot else PreviousStop.MACHINE_CRASH

    def set(self, mode: FlushMode) -> None:
        """Note that the log is open from here on. Durable on return.

        Raises:
            DiskFullError, DiskFailedError: as `write_durably`.
        """
        self._fields = {"boot id": self._boot, "pid": os.getpid(), "flush mode": mode.value}
        write_durably(self._path, json.dumps(self._fields).encode() + b"\n")

    def note_disk_failure(self) -> None:
        """Note for the next start that a write or sync failed, if that can still be written."""
        with contextlib.suppress(StoreError):
            write_durably(self._path, json.dumps({**self._fields, "disk failed": True}).encode() + b"\n")

    def clear(self) -> None:
        """Note a clean stop: everything is flushed, and nothing more will be written."""
        remove_durably(self._path)


class KnownPeers:
    """The `peers` file: the last incarnation of each peer to which this node was connected."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "peers"
        self._incarnations: dict[str, str] = {}
        if self._path.exists():
            self._incarnations = {str(k): str(v) for k, v in _load_json(self._path).items()}

    @property
    def incarnations(self) -> Mapping[str, str]:
        """Incarnation by node id."""
        return self._incarnations

    def learn(self, node_id: str, incarnation: str) -> bool:
        """Remember `incarnation`; return whether the node had another one before, so that its disk is a new one."""
        before = self._incarnations.get(node_id)
        self._incarnations[node_id] = incarnation
        return before is not None and before != incarnation

    def picture(self) -> bytes:
        """Return the content to save: the incarnations known now."""
        return json.dumps(self._incarnations, sort_keys=True, indent=1).encode() + b"\n"

    def save(self, picture: bytes) -> None:
        """Write `picture`; durable on return. Blocks on the disk: call it from a thread, one call at a time."""
        write_durably(self._path, picture)
