"""Opening and closing a store, in the one order that is safe.

    lock, format, abort file -> log recovers -> queues recover -> store dispatches -> checkpoints
    store stops -> log flushes and closes -> queues sync, checkpoint -> abort file goes, lock goes

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (load, start, shutdown, 5.3.3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.cleaning.cleaner import Cleaner, store_space
from store.cleaning.config import CleaningConfig
from store.compaction.compaction_store import CompactionStore
from store.directory.store_directory import StoreDirectory
from store.index.config import IndexConfig
from store.log.commit_log import CommitLog, CommitLogConfig
from store.message_store import MessageStore
from store.queues.queue_table import QueueTable
from store.recovery.checkpointer import StoreCheckpointer
from store.recovery.queue_recovery import Needed, QueueRecovery, recover_queues, remake_misfits
from store.recovery.queue_trust import believed_ends
from store.replicated_log import ReplicatedLog
from store.store_config import StoreConfig
from telemetry.descriptors import allow_all_descriptors

if TYPE_CHECKING:
    from store.index.builder import IndexBuilder
    from store.index.service import IndexService

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenStore:
    """A store and what is needed to close it.

    Attributes:
        recovery: what opening had to do.
        cleaner: runs only where the configuration says when.
        last_steps: run when the log is flushed for the last time, before another process may open the directory.
    """

    store: MessageStore
    directory: StoreDirectory
    recovery: QueueRecovery
    checkpointer: StoreCheckpointer
    cleaner: Cleaner
    last_steps: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def close(self) -> None:
        """Close everything; the directory counts as clean only if all of it is durable and dispatched."""
        is_clean = False
        try:
            await self.cleaner.close()
            if self.store.index is not None:
                await self.store.index.finish()
            if self.store.compaction is not None:
                self.store.compaction.finish()
            log_end = self.store.log.max_offset
            await self.store.log.close()
            self.store.close()
            if self.store.index is not None:
                await self.store.index.drain()
            is_compaction_durable = await self._close_compaction()
            is_clean = await self.checkpointer.close(log_end) and is_compaction_durable
            if self.store.index is not None:
                await self.store.index.close()
            self.store.queues.close()
            for step in self.last_steps:
                await step()
        finally:
            self.directory.close(clean=is_clean)

    async def _close_compaction(self) -> bool:
        compaction = self.store.compaction
        if compaction is None:
            return True
        await compaction.drain()
        return await compaction.close()


async def open_store(
    config: StoreConfig,
    directory: StoreDirectory,
    replicated_log: ReplicatedLog,
    *,
    prepare: Callable[[MessageStore], None] | None = None,
    needed: Needed = lambda _queues, _log_end: (),
) -> OpenStore:
    """Recover the queues over a recovered log, and start the store. On an error the directory and log stay open.

    `prepare` is called before the store starts, to add listeners that must see every record; it reads `needed` ones.

    Raises:
        StoreFormatError, DiskFullError, DiskFailedError.
    """
    allow_all_descriptors()  # before Python 3.13 each mapped file keeps one
    loop = asyncio.get_running_loop()
    queues = QueueTable(config.folders.queues, config.queue_file_size_bytes, config.kinds, config.hold_from)
    recovery = await asyncio.to_thread(_recover, config, directory, queues, replicated_log, needed)
    log.info("queues recovered: %s", recovery)
    directory.recovered()
    index = await asyncio.to_thread(_prepare_index, config.index, directory, replicated_log)
    offset = recovery.dispatched_offset
    store = MessageStore(replicated_log, queues, loop, dispatched_offset=offset, cold_limits=config.cold_limits)
    store.master_flushed_offset = directory.checkpoint.found.master_flushed_offset
    checkpointer = StoreCheckpointer(
        directory.checkpoint,
        store,
        loop,
        recovery=recovery,
        sync_index=None if index is None else index.sync,
    )
    store.save_checkpoint = checkpointer.save_cut
    cleaner = store.cleaner = _make_cleaner(config, store)
    cleaner.holds.append(lambda: checkpointer.saved_offset)
    compaction: CompactionStore | None = None
    try:
        compaction = await asyncio.to_thread(_load_compaction, config, directory)
        if index is not None:
            store.index = _serve_index(index, store, loop)
        if compaction is not None:
            _serve_compaction(compaction, store, cleaner)
        if prepare is not None:
            prepare(store)
        await asyncio.to_thread(remake_misfits, replicated_log, queues)
        if compaction is not None:
            compaction.start()
        store.start()
        if store.index is not None and store.index.config.is_safe:
            await store.index.catch_up()
    except BaseException:
        if index is not None:
            await asyncio.to_thread(index.close)
        if compaction is not None:
            await compaction.close()
        raise
    checkpointer.run_every(config.checkpoint_interval_ms / 1000)
    if config.cleaning is not None:
        cleaner.start()
    return OpenStore(store, directory, recovery, checkpointer, cleaner)


def _recover(
    config: StoreConfig, directory: StoreDirectory, queues: QueueTable, replicated_log: ReplicatedLog, needed: Needed
) -> QueueRecovery:
    """Bring the queues up to the log's confirm offset; in a thread."""
    progress, batches = directory.checkpoint.found.progress, replicated_log.batches()
    ends = believed_ends(config.folders.root, queues, progress, replicated_log)
    damaged = None if batches is None else batches.first_damaged
    if ends is not None and damaged is not None and damaged < ends.dispatched_offset:
        ends = None  # a sync failed before the kill: units of what it lost are blanked by dispatching again
    if ends is not None and not queues.load_known(ends):
        log.warning("the queues are not as they were saved: all of them are looked through")
        ends = None
    if ends is None:
        queues.load()
    elif progress is not None:
        queues.removed_offset = progress.removed_offset
    queues.ends_file.take_over(ends)
    recovery = recover_queues(
        replicated_log,
        queues,
        progress,
        known_offset=None if ends is None else ends.dispatched_offset,
        untrusted_walk_bytes=config.untrusted_walk_bytes,
        batches=batches,
        needed=needed,
    )
    queues.cleaned_to = replicated_log.min_offset
    return recovery


def _load_compaction(config: StoreConfig, directory: StoreDirectory) -> CompactionStore | None:
    if config.compaction is None:
        return None
    compaction = CompactionStore(config.folders.root, config.compaction, config.topic_attributes)
    compaction.load(clean=directory.was_clean)
    return compaction


def _serve_compaction(compaction: CompactionStore, store: MessageStore, cleaner: Cleaner) -> None:
    compaction.serve(store)
    store.compaction = store.reader.compacted = compaction
    cleaner.holds.append(compaction.hold)


def _prepare_index(
    config: IndexConfig | None, directory: StoreDirectory, replicated_log: ReplicatedLog
) -> "IndexBuilder | None":
    """Open the files of the index and find out how far they can be trusted.

    Numpy is only loaded if there is an index.
    """
    if config is None:
        return None
    from store.index.builder import prepare_index

    return prepare_index(config, directory.checkpoint, replicated_log, clean=directory.was_clean)


def _serve_index(builder: "IndexBuilder", store: MessageStore, loop: asyncio.AbstractEventLoop) -> "IndexService":
    from store.index.service import IndexService

    service = IndexService(builder, store, loop)
    service.start()
    return service


def _make_cleaner(config: StoreConfig, store: MessageStore) -> Cleaner:
    cleaning = config.cleaning or CleaningConfig()
    log_directory = store.log.directory
    count = cleaning.replicas_per_disk > 1
    cleaner = Cleaner(cleaning, store, measure=lambda: store_space(config.folders.root, log_directory, count=count))
    cleaner.followers.append(lambda min_offset: _clean_index(store, min_offset))
    return cleaner


def _clean_index(store: MessageStore, min_offset: int) -> None:
    if store.index is not None:
        store.index.delete_before(min_offset)


async def open_classic_store(
    config: StoreConfig,
    log_config: CommitLogConfig,
    *,
    make_log: Callable[[CommitLogConfig, asyncio.AbstractEventLoop], CommitLog] = CommitLog,
    load: Callable[[], object] = lambda: None,
    prepare: Callable[[MessageStore], None] | None = None,
) -> OpenStore:
    """Lock the directory, recover the commit log and its queues, and start: the store of a broker that stands alone.

    `load` is called first, to read what `prepare` needs besides, see `StoreDirectory.check`.

    Raises:
        StoreLockedError, StoreFormatError, DiskFullError, DiskFailedError: nothing stays open.
    """
    directory = StoreDirectory(config.folders.root, "classic")
    directory.check(load)
    commit_log = make_log(log_config, asyncio.get_running_loop())
    try:
        damaged = await asyncio.to_thread(commit_log.recover, directory.checkpoint.found, clean=directory.was_clean)
        for offset in damaged:
            log.error("the record at %d is damaged: it stays in the log and is never delivered", offset)
        commit_log.start()
        return await open_store(
            config,
            directory,
            commit_log,
            prepare=prepare,
        )
    except BaseException as error:
        await commit_log.close()
        directory.close_after(error)
        raise
