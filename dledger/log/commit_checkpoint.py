"""The `checkpoint` file: how far this node knew its log to be committed when it last wrote the file.

    committedIndex=203      entries up to here are committed and durable on this node, damaged ones included
    endIndex=203            last entry at that time
    durablePosition=110593  ours: end of what was durable and not damaged when the log was opened; recovery trusts the
                            files before it, scans after it

Invariants: `committedIndex` never exceeds the true commit index, and everything below `durablePosition` is durable
before the file is written.

Without the file, or with a damaged one, recovery only takes longer: the leader tells the commit index again. The first
two keys are Java's (`DLedgerMmapFileStore`, keys of `DLedgerServer`); Java ignores the third and drops it.
"""

from dataclasses import dataclass
from pathlib import Path

from dledger.log.small_file import write_durably
from ledgermq.message.java_properties import parse_properties
from store.errors import StoreFormatError

FILE_NAME = "checkpoint"
NONE = -1


@dataclass(frozen=True, slots=True)
class CommitCheckpoint:
    """The content of the file; -1 for a value that is not known.

    Attributes:
        committed_index: last entry known to be committed, and durable on this node, damaged or not.
        end_index: last entry of the log.
        durable_position: absolute end of the durable data, or start of the first damaged entry that was found at the
            start and is not repaired; -1 in files that Java wrote.
    """

    committed_index: int = NONE
    end_index: int = NONE
    durable_position: int = NONE

    @property
    def is_written_by_java(self) -> bool:
        """Whether Java's DLedger wrote the file, and so wrote to the log last: it drops `durablePosition`."""
        return self.committed_index != NONE and self.durable_position == NONE


def load_checkpoint(directory: Path) -> CommitCheckpoint:
    """Read `directory/checkpoint`; all values are -1 if there is none.

    Raises:
        StoreFormatError: the file cannot be parsed.
    """
    path = directory / FILE_NAME
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        return CommitCheckpoint()
    except UnicodeDecodeError as error:
        raise StoreFormatError(path, f"not text: {error}") from error
    try:
        values = parse_properties(text)
        return CommitCheckpoint(
            committed_index=int(values.get("committedIndex", NONE)),
            end_index=int(values.get("endIndex", NONE)),
            durable_position=int(values.get("durablePosition", NONE)),
        )
    except ValueError as error:
        raise StoreFormatError(path, str(error)) from error


def save_checkpoint(directory: Path, checkpoint: CommitCheckpoint) -> None:
    """Replace `directory/checkpoint`; durable on return. Blocks on the disk: call it from the background thread.

    Raises:
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    lines = [f"committedIndex={checkpoint.committed_index}", f"endIndex={checkpoint.end_index}"]
    if checkpoint.durable_position >= 0:
        lines.append(f"durablePosition={checkpoint.durable_position}")
    write_durably(directory / FILE_NAME, ("\n".join(lines) + "\n").encode())
