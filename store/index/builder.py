"""Index builder: the thread that owns the index files. Everything it is asked to do happens in the order of asking.

    loop        apply(batch)  apply(batch)        query          (checkpointer's thread) sync
    its thread       hash, slots, write   hash, slots, write  find                  fdatasync

If the disk is full, a batch waits and is continued later where it stopped. If the disk fails, this process builds no
more: from then on the checkpoint says what the last good sync covered.
"""

import contextlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from store.directory.checkpoint import IndexProgress, StoreCheckpointFile
from store.errors import DiskFailedError, StoreError
from store.index.batch import Entries, KeyBatch
from store.index.config import IndexConfig
from store.index.file_set import IndexFiles
from store.index.index_file import QueryRange
from store.index.recovery import IndexStart, choose_start
from store.replicated_log import ReplicatedLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query by key.

    Attributes:
        offsets: physical offsets, newest first; other keys of the same hash may be among them.
        index_last_update_timestamp: store time (ms) of the last record indexed; 0 for none.
        index_last_update_offset: its physical offset.
    """

    offsets: list[int]
    index_last_update_timestamp: int
    index_last_update_offset: int


class IndexBuilder:
    """The builder of one index; owns its files. Its methods may be called from any thread.

    Attributes:
        config: of the index.
        applied_offset: keys of every record below are in the files (not necessarily on disk).
        entries: put by this process.
        error: why nothing is put now, or None.
    """

    def __init__(self, config: IndexConfig, files: IndexFiles, start: IndexStart) -> None:
        self.config = config
        self.applied_offset = start.resume_offset
        self.entries = 0
        self.error: StoreError | None = None
        self.size_bytes = files.size_bytes
        self._files = files
        self._cut = start.cut
        self._pending: list[Entries] = []
        self._pending_end = start.resume_offset
        self._mark: IndexProgress | None = None  # what the files hold between two batches
        self._durable: IndexProgress | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-index")

    # -- from any thread

    def apply(self, batch: KeyBatch | None, end_offset: int) -> "Future[bool]":
        """Enter a batch's keys, if there is one; the next batch starts at `end_offset`.

        The future says whether all are in. If not, `go_on` tries again.
        """
        return self._executor.submit(self._apply, batch, end_offset)

    def go_on(self) -> "Future[bool]":
        """Do what is not done yet: the cut at the start, a batch that met an error; returns as `apply`."""
        return self._executor.submit(self._go_on)

    def cut_at(self, physical_offset: int) -> "Future[bool]":
        """Drop the entries of records at or past an offset, and continue there; returns as `apply`."""
        return self._executor.submit(self._cut_at, physical_offset)

    def query(self, window: QueryRange, count_max: int) -> "Future[QueryResult]":
        """Find a key among what was entered before.

        The future raises DiskReadError: a file cannot be read.
        """
        return self._executor.submit(self._query, window, count_max)

    def delete_before(self, physical_offset: int) -> None:
        """Drop files whose records are all before that offset; returns at once."""
        with contextlib.suppress(RuntimeError):  # closed
            self._executor.submit(self._delete_before, physical_offset)

    def sync(self) -> IndexProgress | None:
        """Sync all entries and return how far they reach; after an error, that of the last good sync. Blocks."""
        try:
            return self._executor.submit(self._sync).result()
        except RuntimeError:  # closed
            return self._durable

    def close(self) -> None:
        """Finish the work that was handed in, and close the files; blocks."""
        self._executor.submit(self._files.close)
        self._executor.shutdown()

    # -- in its thread

    def _apply(self, batch: KeyBatch | None, end_offset: int) -> bool:
        if isinstance(self.error, DiskFailedError):
            return False
        self._pending_end = end_offset
        if batch is not None:
            self._pending.append(batch.entries())
        return self._go_on()

    def _cut_at(self, physical_offset: int) -> bool:
        self._pending.clear()
        self._pending_end = physical_offset
        self._cut = self._files.cut_at(physical_offset)
        return self._go_on()

    def _go_on(self) -> bool:
        """Continue waiting work; return whether all of it is done."""
        if isinstance(self.error, DiskFailedError):
            return False
        try:
            if self._cut is not None:
                self._files.cut(self._cut)
                self._cut = None
            self._put_pending()
        except StoreError as error:
            if self.error is None:
                log.error("the key index waits at %d: %s", self.applied_offset, error)
            self.error = error
            return False
        self.error = None
        self.applied_offset = self._pending_end
        self.size_bytes = self._files.size_bytes
        self._mark = self._progress()
        return True

    def _put_pending(self) -> None:
        pending = self._pending
        while pending:
            entries = pending[0]
            while entries:
                count = self._files.put(entries)
                self.entries += count
                pending[0] = entries = entries.behind(count)
            pending.pop(0)

    def _progress(self) -> IndexProgress:
        file_name, entry_count = 0, 0
        if self._files.files:
            last = self._files.files[-1]
            file_name, entry_count = int(last.path.name), last.header.entry_count
        timestamp, _ = self._files.last_update()
        return IndexProgress(self.applied_offset, timestamp, file_name, entry_count)

    def _delete_before(self, physical_offset: int) -> None:
        try:
            for path in self._files.delete_before(physical_offset):
                log.info("index file %s is deleted: the log has none of its records any more", path)
        except (OSError, StoreError) as error:
            log.error("an index file cannot be deleted: %s", error)
        self.size_bytes = self._files.size_bytes

    def _query(self, window: QueryRange, count_max: int) -> QueryResult:
        return QueryResult(self._files.find(window, count_max), *self._files.last_update())

    def _sync(self) -> IndexProgress | None:
        mark = self._mark
        if self._cut is None and not isinstance(self.error, DiskFailedError):
            try:
                self._files.sync()
                self._durable = mark
            except DiskFailedError as error:
                log.error("the key index takes no more entries: %s", error)
                self.error = error
        return self._durable


def prepare_index(config: IndexConfig, file: StoreCheckpointFile, log_: ReplicatedLog, *, clean: bool) -> IndexBuilder:
    """Open the index over a recovered log; blocks, for a thread. Nothing is cut or entered before its first `go_on`.

    Raises:
        StoreFormatError: an index file of another length or with an impossible header.
        DiskFailedError, DiskReadError: an index file cannot be opened or read.
    """
    files = IndexFiles(config.directory, config.layout)
    try:
        start = choose_start(files, file.found, log_, clean=clean)
        vouched = file.found.index
        if vouched is not None and start.resume_offset < vouched.dispatched_offset:
            # the entries that the progress names are lost, and other entries will get their numbers
            file.found = replace(file.found, index=None)
            file.save(file.found)
        return IndexBuilder(config, files, start)
    except BaseException:
        files.close()
        raise
