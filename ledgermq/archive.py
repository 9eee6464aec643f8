"""Archives of a log: for each sealed file (segment) a Parquet file and a manifest, which is written last.

    ARCHIVE/00000000000000000000.parquet     the bytes of the segment, cut into records, with columns beside them
    ARCHIVE/_00000000000000000000.json       manifest: sizes, hashes and contents of segment and Parquet file

The job that writes them is `ledgermq.spark.archive`. A broker reads manifests before it deletes a segment.

Names and bytes depend on the segment alone, not on time or chance. One archive holds one log; the replicas of a Raft
group have the same log, so any of them may fill it. Readers of Parquet directories ignore names that begin with `_`.
"""

import errno
import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from ledgermq import durable_files

VERSION: Final = 2
"""Version of the format of manifests and Parquet files."""
MANIFEST_BYTES_MAX: Final = 256 << 20

_READ_BYTES: Final = 4 << 20


class ManifestError(ValueError):
    """A file is not a manifest of a known version."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The records of one queue in a segment; both offsets are included."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of an archived segment.

    Attributes:
        start: physical offset of its first byte.
        length: its size in bytes.
        sha256: hash of its bytes, in hex.
        kind: kind of the log, `classic` or `dledger`.
        records: number of whole records.
        first_store_ms, last_store_ms: lowest and highest store time; 0 without records.
        parquet_bytes, parquet_sha256: size and hash of the Parquet file.
        queues: sorted by topic and queue id.
    """

    start: int
    length: int
    sha256: str
    kind: str
    records: int
    first_store_ms: int
    last_store_ms: int
    parquet_bytes: int
    parquet_sha256: str
    queues: tuple[QueueRange, ...] = ()

    def encode(self) -> bytes:
        """Return the content of the manifest's file."""
        fields = {"version": VERSION, **asdict(self)}
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest in a file.

    Raises:
        ManifestError: it is not one, or of another version.
    """
    try:
        fields: dict[str, Any] = {**orjson.loads(data)}
        version = fields.pop("version")
        if version != VERSION:
            raise ManifestError(
                f"version {version!r} of manifests is unknown, only {VERSION} is known:"
                " another release restores it; to archive its file again, remove the manifest"
            )
        queues = tuple(QueueRange(**queue) for queue in fields.pop("queues"))
        manifest = Manifest(**fields, queues=queues)
    except (ValueError, TypeError, KeyError) as error:
        raise error if isinstance(error, ManifestError) else ManifestError(f"no manifest: {error}") from None
    numbers = (manifest.start, manifest.length, manifest.parquet_bytes)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ManifestError(f"no manifest: start, length and size are {numbers}")
    return manifest


def segment_name(start: int) -> str:
    """Return the name of a segment, without the suffix of the files that archive it."""
    return f"{start:020d}"


def manifest_path(archive: Path, start: int) -> Path:
    """Return where the manifest of a segment is."""
    return archive / f"_{segment_name(start)}.json"


def parquet_path(archive: Path, start: int) -> Path:
    """Return where the Parquet file of a segment is."""
    return archive / f"{segment_name(start)}.parquet"


def read_manifest(archive: Path, start: int) -> Manifest | None:
    """Return the manifest of a segment; None if it is not archived.

    Raises:
        ManifestError: the file is not a manifest, or is that of another segment.
        OSError: it cannot be read.
    """
    path = manifest_path(archive, start)
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ManifestError(f"{path}: larger than {MANIFEST_BYTES_MAX} bytes")
        manifest = decode_manifest(path.read_bytes())
    except FileNotFoundError:
        return None
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from None
    if manifest.start != start:
        raise ManifestError(f"{path}: is the manifest of the segment at {manifest.start}")
    return manifest


def archived_starts(archive: Path) -> list[int]:
    """Return the starts of the segments that have a manifest, in order.

    Raises:
        OSError: the directory cannot be read.
    """
    names = (path.stem[1:] for path in archive.iterdir() if path.suffix == ".json" and path.name.startswith("_"))
    return sorted(int(name) for name in names if len(name) == 20 and name.isascii() and name.isdigit())


def archive_fault(archive: Path, segment: Path) -> str | None:
    """Return why a segment must not be deleted yet; None if the archive holds it whole.

    Reads the whole segment and its Parquet file, compares both with the manifest, and syncs what is archived: a copy
    made by another program may lie in the page cache only.

    Raises:
        OSError: one of them cannot be read or synced.
    """
    start = int(segment.name)
    try:
        manifest = read_manifest(archive, start)
    except ManifestError as error:
        return str(error)
    if manifest is None:
        return f"{manifest_path(archive, start)} does not exist"
    if segment.stat().st_size != manifest.length or sha256_of(segment) != manifest.sha256:
        return f"{manifest_path(archive, start)} is the manifest of other bytes than {segment} has"
    fault = parquet_fault(archive, manifest)
    if fault is None:
        for path in (parquet_path(archive, start), manifest_path(archive, start), archive):
            sync(path)
    return fault


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable; do nothing on a file system that cannot sync directories.

    Raises:
        OSError: it cannot be synced.
    """
    try:
        durable_files.sync(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def parquet_fault(archive: Path, manifest: Manifest) -> str | None:
    """Return why the Parquet file of a segment is not the one of its manifest; None if it is.

    Raises:
        OSError: it cannot be read.
    """
    path = parquet_path(archive, manifest.start)
    if not path.exists():
        return f"{path} does not exist"
    if path.stat().st_size != manifest.parquet_bytes or sha256_of(path) != manifest.parquet_sha256:
        return f"{path} is not the file that its manifest describes"
    return None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.sha256()
    for piece in _pieces(path):
        found.update(piece)
    return found.hexdigest()


def _pieces(path: Path) -> Iterator[memoryview]:
    buffer = bytearray(_READ_BYTES)
    with memoryview(buffer) as view, path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            yield view[:count]
