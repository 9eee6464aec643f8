"""Equal logs: the bytes of a node's log files, from the first kept to a given end, as one hash.

Reads the files in a folder (each named by its 20-digit start offset) without the code that wrote them, also while their
owner runs: bytes below the confirm offset never change.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FILE_NAME = re.compile(r"\d{20}")
_CHUNK_BYTES = 1 << 20


class LogFilesError(Exception):
    """The folder does not hold the bytes asked for."""


@dataclass(frozen=True, slots=True)
class LogDigest:
    """SHA-256 of the log's bytes in `[start, end)`, physical offsets."""

    start: int
    end: int
    sha256: str


def digest_log(directory: Path, end: int, start: int | None = None) -> LogDigest:
    """Hash the log files in `directory` from `start` (None: the first byte kept) to `end`.

    Raises:
        LogFilesError: no log files, a gap between them, or they end before `end` or begin after `start`.
    """
    files = _files_of(directory)
    first = int(files[0].name)
    position = first if start is None else start
    if position < first:
        raise LogFilesError(f"{directory} begins at {first}, after {position}")
    begin, digest = position, hashlib.sha256()
    for path in files:
        file_start, size = int(path.name), path.stat().st_size
        if file_start + size <= position or position >= end:
            continue
        if file_start > position:
            raise LogFilesError(f"{directory} has no file for offset {position}; the next one begins at {file_start}")
        position = _digest_file(digest, path, position - file_start, min(size, end - file_start)) + file_start
    if position < end:
        raise LogFilesError(f"{directory} ends at {position}, before {end}")
    return LogDigest(begin, end, digest.hexdigest())


def first_difference(one: Path, other: Path, end: int) -> int | None:
    """Return the physical offset of the first byte below `end` in which two logs differ; None: in none.

    The logs are compared where both have bytes; one that ends before `end` differs there.

    Raises:
        LogFilesError: one of them holds no log files, or has a gap.
    """
    start = max(int(_files_of(folder)[0].name) for folder in (one, other))
    ours, theirs = _chunks(one, start, end), _chunks(other, start, end)
    for mine, yours in itertools.zip_longest(ours, theirs, fillvalue=b""):
        if mine != yours:
            both = min(len(mine), len(yours))
            return start + next((at for at in range(both) if mine[at] != yours[at]), both)
        start += len(mine)
    return None


def _chunks(directory: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes in `[start, end)`, as far as they exist, cut at the multiples of the chunk size."""
    waiting = bytearray()
    for path in _files_of(directory):
        file_start = int(path.name)
        if file_start + path.stat().st_size <= start or file_start >= end:
            continue
        if file_start > start:
            raise LogFilesError(f"{directory} has no file for offset {start}; the next one begins at {file_start}")
        with path.open("rb") as file:
            file.seek(start - file_start)
            while start < end and (chunk := file.read(min(_CHUNK_BYTES - len(waiting), end - start))):
                waiting += chunk
                start += len(chunk)
                if len(waiting) == _CHUNK_BYTES:
                    yield bytes(waiting)
                    waiting.clear()
    yield bytes(waiting)


def _files_of(directory: Path) -> list[Path]:
    """Return the log files of a folder, oldest first. Raises `LogFilesError`: there are none."""
    files = sorted(path for path in directory.glob("*") if _FILE_NAME.fullmatch(path.name))
    if not files:
        raise LogFilesError(f"{directory} holds no log files")
    return files


def _digest_file(digest: "hashlib._Hash", path: Path, begin: int, end: int) -> int:
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end and (chunk := file.read(min(_CHUNK_BYTES, end - begin))):
            digest.update(chunk)
            begin += len(chunk)
    return begin
