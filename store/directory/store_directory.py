"""Store directory: its small files say which process uses it, of which kind it is, and how the last run ended.

    <root>/  lock   ledgermq.json   abort   checkpoint   config/   commitlog/ ...   consumequeue/ ...

`ledgermq.json` is ours: the format's version and the kind of log. RocketMQ does not look at it; a directory without
one is RocketMQ's, and is taken over as it is.
"""

import json
from collections.abc import Callable
from pathlib import Path

from store.directory.abort_file import RAFT_ABORT_NAME, AbortFile
from store.directory.checkpoint import StoreCheckpointFile
from store.directory.config_file import write_config
from store.directory.lock_file import LockFile
from store.directory.ownership import ensure_store
from store.errors import StoreFormatError
from store.files.folders import make_folder, open_folder

FORMAT_NAME = "ledgermq.json"
FORMAT_VERSION = 1


class StoreDirectory:
    """A store's root, locked from construction to `close`.

    Args:
        root: made when missing.
        kind: which log the directory holds: `classic` or `raft`.

    Attributes:
        was_clean: the last run ended cleanly, or there was none.

    Raises:
        StoreLockedError: another process has it.
        StoreFormatError: another kind, a newer format, or something else's directory; nothing was changed.
        DiskFailedError: it cannot be made, read or written.
    """

    def __init__(self, root: Path, kind: str) -> None:
        open_folder(root)
        ensure_store(root)
        self.root = root
        self.kind = kind
        self._lock = LockFile(root)
        try:
            self._check_format()
            self.checkpoint = StoreCheckpointFile(root)
            self._java_abort = AbortFile(root)
            self._abort = AbortFile(root, RAFT_ABORT_NAME) if kind == "raft" else self._java_abort
            self.was_clean = not (self._abort.was_present or self._java_abort.was_present)
            self._abort.create()
        except BaseException:
            self._lock.release()
            raise

    @property
    def config(self) -> Path:
        """Folder of topics, groups and consumer offsets; made when missing."""
        path = self.root / "config"
        make_folder(path)
        return path

    def recovered(self) -> None:
        """Note that the queues agree with the log: from now on only our own marker tells of a crash."""
        if self._java_abort is not self._abort and self._java_abort.was_present:
            self._java_abort.remove()

    def close(self, *, clean: bool) -> None:
        """Unlock the directory; `clean`: everything in it is durable and dispatched."""
        if clean:
            self._abort.remove()
        self._lock.release()

    def check(self, load: Callable[[], object]) -> None:
        """Call `load`, without whose data the store cannot be opened; unlock the directory, unchanged, if it fails."""
        try:
            load()
        except BaseException:
            self.close(clean=self.was_clean)
            raise

    def close_after(self, error: BaseException) -> None:
        """Unlock the directory because opening the store failed.

        It counts as clean again only where a format was refused: with any other error, records may have been dispatched
        that are not durable.
        """
        self.close(clean=self.was_clean and isinstance(error, StoreFormatError))

    def _check_format(self) -> None:
        path = self.root / FORMAT_NAME
        if not path.exists():
            content = json.dumps({"format": FORMAT_VERSION, "kind": self.kind}) + "\n"
            write_config(path, content.encode())  # whole or not at all: half of one would be refused for ever
            return
        try:
            found = json.loads(path.read_bytes())
            version, kind = found["format"], found["kind"]
        except (ValueError, TypeError, KeyError) as error:
            raise StoreFormatError(path, f"is not a store's format file: {error!r}") from error
        if version != FORMAT_VERSION:
            raise StoreFormatError(path, f"says format {version!r}; this program knows {FORMAT_VERSION}")
        if kind != self.kind:
            raise StoreFormatError(path, f"says the store is {kind!r}; the configuration asks for {self.kind!r}")
