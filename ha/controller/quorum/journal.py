r"""The journal of one controller: the log's entries, its term and its vote, durable before anything depends on them.

    journal    "ledgermq journal 1\n", then records: u32 length and u32 CRC-32 of the rest; u64 index, u64 term, command
    vote       JSON: term, vote, and whether this member is sound

An entry is synced before `add` returns, so it is on the disk before PySyncObj acknowledges it. Only the last record can
be torn; a damaged one further ahead ends the start. Trimming writes a new file. A crash between a snapshot and the
trimming behind it leaves more entries than needed: `QuorumJournal` drops them when it is opened, where PySyncObj's own
journal would drop the newer ones.

A member is sound if it has everything that it ever acknowledged. A member that starts with an empty folder may have
lost its disk: it is sound once it has applied an entry of the term of a leader that it follows. `transport` describes
what an unsound member may do.

The names of the methods are those that PySyncObj calls.
"""

import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from ha.controller.errors import QuorumFileError
from ha.controller.quorum.snapshot_file import Entry, Snapshot
from ledgermq.durable_files import NO_DESCRIPTORS, replace_durably, sync

JOURNAL: Final = "journal"
VOTE: Final = "vote"
_HEAD: Final = b"ledgermq journal 1\n"
_RECORD: Final = struct.Struct("<II")
_ENTRY: Final = struct.Struct("<QQ")
_LOOK_S: Final = 0.1
_WAIT_S: Final = 60.0
_log: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


class QuorumJournal:
    """The journal in a folder, which belongs to this process.

    Args:
        folder: of the controller.
        snapshot: what the folder's snapshot holds, if there is one.

    Raises:
        QuorumFileError: a file is damaged, or journal and snapshot do not fit together.
        OSError: the disk.
    """

    def __init__(self, folder: Path, snapshot: Snapshot | None) -> None:
        self._path = folder / JOURNAL
        self._vote_path = folder / VOTE
        self._vote = self._read_vote()
        if not self._path.exists():
            if self.is_sound:
                raise QuorumFileError(self._path, f"is not there, but {VOTE} is")
            replace_durably(self._path, _HEAD)
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # where each record ends
        self._file = self._path.open("r+b", buffering=0)
        try:
            self._load()
            self._fit(snapshot)
        except BaseException:
            self._file.close()
            raise

    # ---- opening

    def _read_vote(self) -> dict[str, Any]:
        if not self._vote_path.exists():
            if self._path.exists():
                raise QuorumFileError(self._vote_path, f"is not there, but {JOURNAL} is: a vote may be forgotten")
            replace_durably(self._vote_path, orjson.dumps({"term": 0, "vote": None, "isSound": False}))
        try:
            vote = orjson.loads(self._vote_path.read_bytes())
            return {"term": int(vote["term"]), "vote": vote["vote"], "isSound": bool(vote["isSound"])}
        except (ValueError, KeyError, TypeError) as error:
            raise QuorumFileError(self._vote_path, f"is damaged: {error}") from error

    def _load(self) -> None:
        data = self._file.readall() or b""
        if not data.startswith(_HEAD):
            raise QuorumFileError(self._path, "is no journal of a controller, or of another version")
        at = len(_HEAD)
        while at < len(data):
            length, crc = _RECORD.unpack_from(data, at) if at + _RECORD.size <= len(data) else (0, 0)
            start = at + _RECORD.size
            body = data[start : start + length]
            if len(body) < max(length, _ENTRY.size) or zlib.crc32(body) != crc:
                if start + length < len(data) and any(data[start + length :]):
                    raise QuorumFileError(self._path, f"is damaged at byte {at}, and goes on behind that")
                _log.warning("%s: the last record was not written whole, cut at byte %d", self._path, at)
                self._cut(at)
                return
            index, term = _ENTRY.unpack_from(body)
            if self._entries and index != self._entries[-1][1] + 1:
                raise QuorumFileError(self._path, f"has entry {index} behind entry {self._entries[-1][1]}")
            at = start + length
            self._entries.append((body[_ENTRY.size :], index, term))
            self._ends.append(at)

    def _fit(self, snapshot: Snapshot | None) -> None:
        """Let the journal begin where the snapshot ends, if it reaches that far."""
        if not self._entries:
            return
        first, begins = self._entries[0][1], 1 if snapshot is None else snapshot.previous[1]
        if first > begins:
            missing = "there is no snapshot" if snapshot is None else f"the snapshot ends at entry {begins + 1}"
            raise QuorumFileError(self._path, f"begins at entry {first}, and {missing}")
        if snapshot is not None and first < begins and snapshot.previous in self._entries:
            self.deleteEntriesTo(self._entries.index(snapshot.previous))

    # ---- entries, as PySyncObj asks for them

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: Any) -> Any:
        return self._entries[at]

    def term_of(self, index: int) -> int | None:
        """Return the term of the entry with this index; None if it is not in the journal."""
        at = index - self._entries[0][1] if self._entries else -1
        return self._entries[at][2] if 0 <= at < len(self._entries) else None

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry; it is durable on return."""
        record = _encode((command, index, term))
        end = self._ends[-1] if self._ends else len(_HEAD)
        _write_all(self._file.fileno(), record, end)
        os.fdatasync(self._file.fileno())
        self._entries.append((command, index, term))
        self._ends.append(end + len(record))

    def clear(self) -> None:
        """Drop all entries."""
        self._cut(len(_HEAD))
        self._entries.clear()
        self._ends.clear()

    def deleteEntriesFrom(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count < len(self._entries):
            self._cut(self._ends[count - 1] if count else len(_HEAD))
            del self._entries[count:], self._ends[count:]

    def deleteEntriesTo(self, count: int) -> None:
        """Drop the first `count` entries, at once."""
        kept = self._entries[count:]
        records = [_encode(entry) for entry in kept]
        _with_descriptors(lambda: sync(self._path.parent))  # also makes the snapshot durable, which PySyncObj renamed
        _with_descriptors(lambda: replace_durably(self._path, b"".join((_HEAD, *records))))
        self._file.close()
        self._file = _with_descriptors(lambda: self._path.open("r+b", buffering=0))
        self._entries, self._ends = kept, []
        end = len(_HEAD)
        for record in records:
            end += len(record)
            self._ends.append(end)

    def _cut(self, end: int) -> None:
        os.ftruncate(self._file.fileno(), end)
        os.fsync(self._file.fileno())

    # ---- term and vote

    @property
    def is_sound(self) -> bool:
        """Whether this member has everything that it ever acknowledged."""
        return bool(self._vote["isSound"])

    def become_sound(self) -> None:
        """Note that this member is sound; durable on return."""
        self._save_vote(isSound=True)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        """Store the term, and this member's vote in it; durable on return."""
        self._save_vote(term=term, vote=vote)

    def getCurrentTerm(self) -> int:
        return int(self._vote["term"])

    def getVotedForNodeId(self) -> str | None:
        vote: str | None = self._vote["vote"]
        return vote

    def _save_vote(self, **changed: Any) -> None:
        vote = self._vote | changed
        _with_descriptors(lambda: replace_durably(self._vote_path, orjson.dumps(vote)))
        self._vote = vote

    # ---- the rest of what PySyncObj calls

    def setRaftCommitIndex(self, index: int) -> None:
        """Do nothing: after a restart the leader sends the commit index again."""

    def getRaftCommitIndex(self) -> int:
        """Return the index of the first entry, which is committed."""
        return 1

    def onOneSecondTimer(self) -> None:
        """Do nothing: nothing waits to be saved."""

    def _destroy(self) -> None:
        self._file.close()


def _encode(entry: Entry) -> bytes:
    body = _ENTRY.pack(*entry[1:]) + entry[0]
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _with_descriptors(action: Callable[[], _T]) -> _T:
    """Return the result of `action`, which may be repeated; wait for descriptors, a minute at most.

    This member sends nothing during that time, so that others lead, and /livez reports it after a while.

    Raises:
        OSError: as `action`.
    """
    deadline = time.monotonic() + _WAIT_S
    is_logged = False
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or time.monotonic() > deadline:
                raise
            if not is_logged:
                _log.error("this controller waits until it may open files again: %s", error)
            is_logged = True
        time.sleep(_LOOK_S)
