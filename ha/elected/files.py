"""Files of an elected replica beside its log: the epochs, and the id that the controllers gave to it.

    epochFileCheckpoint    which master wrote which part of the log     brokerIdentity       cluster#name#id
    ledgermq.boot          boot of the machine, doubt of the log        brokerIdentity-temp  cluster#name#id#check code

All but `ledgermq.boot` are RocketMQ's. Each is replaced as a whole and durable on return. RocketMQ's file of epochs is
overwritten in place.

Source: apache/rocketmq `store/.../ha/autoswitch/{EpochFileCache,BrokerMetadata,TempBrokerMetadata}.java` (5.3.3).
"""

from pathlib import Path
from typing import Final, NamedTuple

import orjson

from ha.core.epochs import Epochs, begun, decode_file, encode_file, up_to
from ha.errors import EpochFileError
from store.directory.abort_file import AbortFile
from store.directory.boot import boot_id
from store.directory.config_file import write_config

_EPOCHS: Final = "epochFileCheckpoint"
_IDENTITY: Final = "brokerIdentity"
_CANDIDATE: Final = "brokerIdentity-temp"
_BOOT: Final = "ledgermq.boot"
_FIRST_ID: Final = 1


class EpochFile:
    """The file of the log's epochs in `directory`, the store's root; empty before `load`.

    Attributes:
        newest: number of the newest epoch that the file ever had, even if its records were lost or cut; 0: none.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _EPOCHS
        self.epochs: Epochs = ()
        self.newest = 0

    def load(self, end: int) -> None:
        """Read the file; drop epochs that begin behind `end`, the end of the log, whose records are lost.

        Raises:
            EpochFileError: it is damaged.
            OSError: it cannot be read.
        """
        if self._path.exists():
            try:
                epochs = decode_file(self._path.read_bytes())
                self.newest = epochs[-1].number if epochs else 0
                self.epochs = up_to(epochs, end)
            except EpochFileError as error:
                raise EpochFileError(f"{self._path}: {error}") from error

    def begin(self, number: int, start: int) -> None:
        """Begin epoch `number` with this node as master and a log that ends at `start`; durable on return.

        Raises:
            ValueError: the log has this epoch or a newer one.
            StoreError, OSError: the disk refused.
        """
        self.take_over(begun(up_to(self.epochs, start), number, start))

    def take_over(self, epochs: Epochs) -> None:
        """Replace the epochs by those of the master's log. Raises `StoreError`, `OSError`: the disk refused."""
        if epochs != self.epochs:
            write_config(self._path, encode_file(epochs))
            self.epochs = epochs


class BootFile:
    """The file with the boot id of this replica's last run, and the doubt of its log (`ha.core.doubt`).

    Args:
        directory: the store's root, not opened yet.
        boot: id of this boot; None: `boot_id` gives it.
    """

    def __init__(self, directory: Path, boot: str | None = None) -> None:
        self._path = directory / _BOOT
        self._boot = boot or boot_id()
        self._is_open = AbortFile(directory).was_present
        self._written = b""

    def has_lost_power(self) -> bool:
        """Return whether a power cut may have taken records that the last run had reported before they were durable.

        A file that cannot be read counts as damaged by a power cut.
        """
        if not self._path.exists():
            return False
        try:
            before = orjson.loads(self._path.read_bytes())
            boot, was_durable, in_doubt = before["boot"], before["durable"], before["doubt"]
        except (ValueError, KeyError, TypeError):
            boot, was_durable, in_doubt = "", False, True
        return bool(in_doubt or (self._is_open and not was_durable and boot != self._boot))

    def write(self, *, is_durable: bool, in_doubt: bool) -> None:
        """Write how this run reports records, and whether the log is in doubt. Raises `StoreError`, `OSError`."""
        content = orjson.dumps({"boot": self._boot, "durable": is_durable, "doubt": in_doubt})
        if content != self._written:
            write_config(self._path, content)
            self._written = content


def doubt_log(directory: Path) -> bool:
    """Mark the log of a stopped replica as in doubt, see `ha.core.doubt`.

    Args:
        directory: the store's root.

    Returns:
        Whether this is the store of an elected replica; other stores are not changed.

    Raises:
        StoreError, OSError: the disk refused.
    """
    path = directory / _BOOT
    if is_elected := path.exists():
        write_config(path, orjson.dumps({"boot": "", "durable": False, "doubt": True}))
    return is_elected


class ReplicaIdentity(NamedTuple):
    """This broker's name and its id among the replicas; with the check code until the id is confirmed."""

    cluster: str
    name: str
    broker_id: int
    check_code: str = ""


class IdentityFiles:
    """The files in `directory`, the store's root."""

    def __init__(self, directory: Path) -> None:
        self._path, self._candidate = directory / _IDENTITY, directory / _CANDIDATE

    def identity(self) -> ReplicaIdentity | None:
        """Return the confirmed identity; None if there is none.

        Raises:
            EpochFileError: the file is damaged.
        """
        return _read(self._path, 3)

    def candidate(self) -> ReplicaIdentity | None:
        """Return the identity that was requested last; None if none, or if it is confirmed. Raises as `identity`."""
        return _read(self._candidate, 4)

    def ask(self, identity: ReplicaIdentity) -> None:
        """Store the identity that will be requested. Raises `StoreError`, `OSError`."""
        write_config(self._candidate, "#".join(map(str, identity)).encode())

    def confirm(self, identity: ReplicaIdentity) -> None:
        """Store that the controllers have given the id. Raises `StoreError`, `OSError`."""
        write_config(self._path, "#".join(map(str, identity[:3])).encode())
        self._candidate.unlink(missing_ok=True)


def _read(path: Path, count: int) -> ReplicaIdentity | None:
    if not path.exists():
        return None
    words = path.read_text("utf-8", "replace").strip().split("#")
    if len(words) != count or not words[2].isascii() or not words[2].isdigit() or int(words[2]) < _FIRST_ID:
        raise EpochFileError(f"{path} has {'#'.join(words)[:200]!r}, expected cluster#name#id")
    return ReplicaIdentity(words[0], words[1], int(words[2]), *words[3:])
