"""Which files of the log an archive holds, so that only these are deleted. See `ledgermq.archive`."""

from pathlib import Path

from ledgermq.archive import archive_fault, manifest_path, parquet_path


class ArchiveGate:
    """Compares files of the log with their manifests. Called from one thread at a time.

    Args:
        archive: the directory with the manifests of this log.

    Attributes:
        fault: why the last file that was checked must stay; None if it may be deleted.
        told: the fault that was logged last.
    """

    def __init__(self, archive: Path) -> None:
        self.fault: str | None = None
        self.told: str | None = None
        self._archive = archive
        self._judged: list[tuple[str, int, int]] = []

    def is_open(self, segment: Path) -> bool:
        """Return whether a file of the log may be deleted: its manifest and the archived file are right.

        Reads the file and its copy whole; when it is asked for again, only if one of the files has changed, or could
        not be read.
        """
        start = int(segment.name)
        paths = (segment, manifest_path(self._archive, start), parquet_path(self._archive, start))
        try:
            stamps = [(str(path), (status := path.stat()).st_size, status.st_mtime_ns) for path in paths]
            if stamps != self._judged:
                self.fault = archive_fault(self._archive, segment)
        except OSError as error:
            self.fault, self._judged = f"{error.filename or self._archive}: {error.strerror or error}", []
            return False
        self._judged = stamps
        return self.fault is None
