"""Finds out whether a directory is a classic store, a DLedger store or neither, and which files it has.

    classic   ROOT/commitlog/0000...    ROOT/consumequeue/...   ROOT/index/...   ROOT/checkpoint
    dledger   ROOT/dledger-n0/data/0000...  dledger-n0/index/0000...  and beside them the same queues, index, checkpoint
    bare      ROOT/data/0000...  ROOT/index/0000...   a DLedger group's own directory, without a broker around it

Source: apache/rocketmq `store/config/MessageStoreConfig.java`, openmessaging/dledger `DLedgerConfig.java`.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.lock_holder import lock_holder
from node.errors import CommandError

CLASSIC = "classic"
DLEDGER = "dledger"

_NAME_DIGITS = 20


class UnreadableError(CommandError):
    """The directory is not a store, or cannot be read."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """A file named by the offset of its first byte."""

    path: Path
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A store directory. `log_files` have valid names and are in order; nothing else about them is checked.

    Attributes:
        root: the directory asked for; faults name files relative to it.
        kind: CLASSIC or DLEDGER.
        log_dir: folder of the log's files.
        raft_dir: folder of DLedger's small files, None in a classic store.
        is_bare: whether there are no broker's files around the DLedger directory.
        log_file_size: bytes of each log file: the most frequent length; 0 without files.
        strangers: names in the log's folder that are not log files.
        holder: id of the process that has the store open, or None.
    """

    root: Path
    kind: str
    log_dir: Path
    raft_dir: Path | None
    is_bare: bool
    log_files: tuple[OffsetFile, ...]
    log_file_size: int
    strangers: tuple[Path, ...] = ()
    holder: int | None = None
    unit_dir: Path | None = field(default=None)

    def name(self, path: Path) -> str:
        """Return the name of a file in faults."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)

    def log_path(self, start: int) -> Path:
        """Return the path of the log file that starts at `start`, whether it exists or not."""
        known = next((file.path for file in self.log_files if file.start == start), None)
        return known or self.log_dir / f"{start:020d}"


def open_layout(root: Path, log_dir: Path | None = None) -> StoreLayout:
    """Find out what `root` is. `log_dir` is the folder of the log when storePathCommitLog put it elsewhere.

    Raises:
        UnreadableError: not a directory, not a store, several DLedger members in one, or no permission.
    """
    try:
        if not root.is_dir():
            raise UnreadableError(f"{root} is not a directory" if root.exists() else f"{root} does not exist")
        root = root.resolve()
        return _open(root, log_dir)
    except OSError as error:
        raise UnreadableError(f"{error.filename or root}: {error.strerror or error}") from error


def offset_files(directory: Path) -> tuple[list[OffsetFile], list[Path]]:
    """Return the files named by an offset, in order, and the other paths. A missing directory counts as empty."""
    files: list[OffsetFile] = []
    strangers: list[Path] = []
    if not directory.is_dir():
        return files, strangers
    with os.scandir(directory) as found:
        for entry in found:
            name = entry.name
            if entry.is_dir():
                continue
            if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit():
                files.append(OffsetFile(Path(entry.path), int(name), entry.stat().st_size))
            else:
                strangers.append(Path(entry.path))
    return sorted(files, key=lambda file: file.start), sorted(strangers)


def usual_length(files: Iterable[OffsetFile]) -> int:
    """Return the most frequent length, the larger one of two; 0 without files."""
    counts = Counter(file.length for file in files if file.length)
    return max(counts, key=lambda length: (counts[length], length), default=0)


def _open(root: Path, log_dir: Path | None) -> StoreLayout:
    members = sorted(path for path in root.glob("dledger-*") if (path / "data").is_dir())
    if len(members) > 1:
        names = ", ".join(path.name for path in members)
        raise UnreadableError(f"{root} holds several DLedger members ({names}); name one of them")
    if members:
        return _layout(root, DLEDGER, log_dir or members[0] / "data", members[0], is_bare=False)
    if log_dir is None and (root / "data").is_dir() and not (root / "commitlog").is_dir():
        return _layout(root, DLEDGER, root / "data", root, is_bare=True)
    if log_dir is not None or (root / "commitlog").is_dir():
        return _layout(root, CLASSIC, log_dir or root / "commitlog", None, is_bare=False)
    raise UnreadableError(f"{root} is not a store: it has neither commitlog nor dledger-*/data nor data{_hint(root)}")


def _hint(root: Path) -> str:
    if (root.parent / "commitlog") == root or (root.parent / "consumequeue") == root:
        return f"; try {root.parent}"
    for below in sorted(path for path in root.glob("*/") if path.is_dir()):  # a node's folder has its store below it
        if (below / "commitlog").is_dir() or any(below.glob("dledger-*/data")):
            return f"; try {below}"
    return ""


def _layout(root: Path, kind: str, log_dir: Path, raft_dir: Path | None, *, is_bare: bool) -> StoreLayout:
    if not log_dir.is_dir():
        raise UnreadableError(f"{log_dir} is not a directory")
    files, strangers = offset_files(log_dir)
    for file in files:
        if not os.access(file.path, os.R_OK):
            raise UnreadableError(f"{file.path}: Permission denied")
    locked = [root] if raft_dir is None else [root, raft_dir]
    return StoreLayout(
        root=root,
        kind=kind,
        log_dir=log_dir,
        raft_dir=raft_dir,
        is_bare=is_bare,
        log_files=tuple(files),
        log_file_size=_file_size(files),
        strangers=tuple(strangers),
        holder=next((pid for pid in map(lock_holder, locked) if pid is not None), None),
        unit_dir=raft_dir / "index" if raft_dir is not None else None,
    )


def _file_size(files: list[OffsetFile]) -> int:
    """Return the size of the log files: the distance between names if possible, since a file may have been cut."""
    distances = [later.start - file.start for file, later in itertools.pairwise(files)]
    lengths = usual_length(files)
    return lengths if not distances or lengths in distances else min(distances)
