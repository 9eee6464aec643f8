"""Errors of the store; each carries the numbers behind it.

StoreError
|- RecordUnavailableError   the offset asked for is not (or no longer) served
|- RecordTooLargeError      a record that fits into no file
|- InvalidTopicError        a topic that cannot name a folder
|- StoreFormatError         a directory or file that is not ours, newer, or of a wrong length
|- StoreLockedError         another process has the directory
|- DiskFullError            no room for a file; nothing was placed; may succeed later
|- DiskFailedError          the disk lost or refused bytes; final for this process
|- DiskReadError            the disk cannot read bytes that it holds; everything else goes on
|- StateUnknownError        what state records had built at an offset of the log cannot be known here any more
|- PoolUnavailableError     the transient pool cannot be made, or has no buffer left
'- AllocationPendingError   the next file is not ready in time; may succeed later
"""

from pathlib import Path


class StoreError(Exception):
    """Root of the tree."""


class RecordUnavailableError(StoreError):
    """The bytes asked for are outside of what the log holds, or may show.

    Args:
        physical_offset: first byte asked for.
        size_bytes: how many.
        min_offset: first byte served.
        max_offset: end of what is served.
    """

    def __init__(self, physical_offset: int, size_bytes: int, min_offset: int, max_offset: int) -> None:
        super().__init__(
            f"{size_bytes} bytes at physical offset {physical_offset} are outside [{min_offset}, {max_offset})"
        )
        self.physical_offset = physical_offset
        self.size_bytes = size_bytes
        self.min_offset = min_offset
        self.max_offset = max_offset


class RecordTooLargeError(StoreError):
    """A record of `size_bytes` fits into no file; `limit_bytes` would."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a record of {size_bytes} bytes does not fit into a file that takes {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class InvalidTopicError(StoreError):
    """A topic that cannot name a folder: empty, too long, not UTF-8, or with a path in it."""

    def __init__(self, topic: bytes | str, detail: str) -> None:
        super().__init__(f"topic {topic!r} {detail}")
        self.topic = topic
        self.detail = detail


class StoreFormatError(StoreError):
    """The directory is not one that this program and this configuration may open; nothing was changed."""

    def __init__(self, file: Path, detail: str) -> None:
        super().__init__(f"{file}: {detail}")
        self.file = file
        self.detail = detail


class StoreLockedError(StoreError):
    """Another process holds the directory's lock; `pid` is its id, or None when the system does not say."""

    def __init__(self, file: Path, pid: int | None) -> None:
        super().__init__(f"{file}: held by process {pid if pid is not None else 'unknown'}")
        self.file = file
        self.pid = pid


class DiskFullError(StoreError):
    """There is no room to allocate `needed_bytes`; nothing was placed, and a later try may succeed.

    Args:
        advice: what would help, where the caller knows it.
    """

    def __init__(self, file: Path, needed_bytes: int, advice: str = "") -> None:
        super().__init__(f"{file}: no room on the disk for {needed_bytes} bytes{advice and '; '}{advice}")
        self.file = file
        self.needed_bytes = needed_bytes


class NoDescriptorError(DiskFullError):
    """This process may open no more files. Treated as a full disk: nothing was changed, a later try may succeed."""

    def __init__(self, file: Path) -> None:
        StoreError.__init__(self, f"{file}: cannot be opened, no file descriptor is left (ulimit -n)")
        self.file = file
        self.needed_bytes = 0


class DiskFailedError(StoreError):
    """An input/output error. Dirty pages may be gone and a retry would report success: final for this process."""

    def __init__(self, file: Path, detail: str) -> None:
        super().__init__(f"{file}: {detail}")
        self.file = file
        self.detail = detail


class DiskReadError(StoreError):
    """The disk cannot read the page at `position` of a file; found before it is touched. Everything else goes on."""

    def __init__(self, file: Path, position: int, detail: str) -> None:
        super().__init__(f"{file}: cannot be read at byte {position}: {detail}")
        self.file = file
        self.position = position
        self.detail = detail


class PoolUnavailableError(StoreError):
    """The pool of `count` write buffers of `size_bytes` cannot be made, or all are in use; nothing was placed."""

    def __init__(self, count: int, size_bytes: int, detail: str) -> None:
        super().__init__(f"transient pool of {count} buffers of {size_bytes} bytes: {detail}")
        self.count = count
        self.size_bytes = size_bytes
        self.detail = detail


class AllocationPendingError(StoreError):
    """The next file was asked for in time and is not there: the disk is slow; a later try may succeed."""

    def __init__(self, file: Path, waited_s: float) -> None:
        super().__init__(f"{file}: not allocated after {waited_s:.3f} s")
        self.file = file
        self.waited_s = waited_s


class StateUnknownError(StoreError):
    """The state at `offset` is not known: the saved tables are newer, and the log is trimmed."""

    def __init__(self, offset: int, saved_offset: int, min_offset: int) -> None:
        super().__init__(
            f"the state at {offset} is not known: tables were saved at {saved_offset}, the log begins at {min_offset}"
        )
        self.offset = offset
        self.saved_offset = saved_offset
        self.min_offset = min_offset
