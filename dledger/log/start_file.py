"""The `start` file: where the log begins, written before older files are dropped.

    firstIndex=1204
    startPosition=2147483648
    prevTerm=7              term of entry firstIndex - 1; absent when there is none or it is not known
    resetting=true          an install was begun and is not finished; absent otherwise

Invariants, from the moment at which the file is durable:
    - Every entry below `firstIndex` was committed.
    - Data before `startPosition` is left over from a deletion that a crash interrupted.
    - While `resetting` stands, neither the entries nor the state machine's files can be used: the old entries may be
      half deleted, the tables half replaced. The next start drops all entries and needs a leader that brings the node
      up to date.

Java has no such file, and a log without one begins where its first data file does.
"""

from dataclasses import dataclass
from pathlib import Path

from dledger.core.messages import NO_TERM
from dledger.log.small_file import write_durably
from ledgermq.message.java_properties import parse_properties
from store.errors import StoreFormatError

FILE_NAME = "start"


@dataclass(frozen=True, slots=True)
class LogStart:
    """First entry kept, its absolute position, and the term of the entry before it (`NO_TERM`: none, or not known).

    `installing`: an install was begun and is not finished.
    """

    first_index: int
    start_position: int
    prev_term: int
    installing: bool = False


EMPTY_LOG = LogStart(0, 0, NO_TERM)


def load_start(directory: Path) -> LogStart | None:
    """Read `directory/start`; None if there is none.

    Raises:
        StoreFormatError: it cannot be parsed.
    """
    path = directory / FILE_NAME
    try:
        values = parse_properties(path.read_text("ascii"))
        return LogStart(
            first_index=int(values["firstIndex"]),
            start_position=int(values["startPosition"]),
            prev_term=int(values.get("prevTerm", NO_TERM)),
            installing=values.get("resetting") == "true",
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise StoreFormatError(path, f"cannot read where the log starts: {error}") from error


def save_start(directory: Path, start: LogStart) -> None:
    """Replace `directory/start`; durable on return.

    Raises:
        DiskFullError, DiskFailedError: as `write_durably`.
    """
    lines = [f"firstIndex={start.first_index}", f"startPosition={start.start_position}"]
    if start.prev_term != NO_TERM:
        lines.append(f"prevTerm={start.prev_term}")
    if start.installing:
        lines.append("resetting=true")
    write_durably(directory / FILE_NAME, ("\n".join(lines) + "\n").encode())
