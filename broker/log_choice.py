"""The one place where a broker's log is chosen: everything else knows the seam only."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker.config import BrokerConfig, LogMode
from broker.config import FlushMode as ConfiguredFlushMode
from dledger.config import PeerAddress, RaftConfig
from dledger.core.errors import RaftError
from dledger.node_status import NodeStatus
from dledger.raft_files import open_files
from dledger.raft_log import RaftLog
from ledgermq.message.index_unit import IndexLayout
from ledgermq.remoting.refusal import Cause, Refusal
from store.cleaning.config import CleaningConfig
from store.commit_log import CommitLog, CommitLogConfig
from store.compaction.config import CompactionConfig
from store.flusher import FlushMode
from store.index.config import IndexConfig
from store.message_store import MessageStore
from store.opening import OpenStore, StoreConfig, open_classic_store, open_store
from store.queue_kinds import QueueKinds
from store.queue_reader import MEMORY_BYTES, ColdLimits
from store.replicated_log import ReplicatedLog
from store.store_directory import StoreDirectory

_RETRY_AFTER_MS = 200


class Follower(Protocol):
    """Who stands on the store, told from the start."""

    def prepare(self, store: MessageStore) -> None:
        """The store is recovered and about to start: add listeners that must see every record it dispatches."""

    def topic_attributes(self, topic: str) -> Mapping[str, str]:
        """Of a topic, as far as known; empty for others. Asked from the recovery of the store on, in its thread."""

    def on_flushed(self, flushed_offset: int, seconds: float) -> None:
        """One sync of the log is done."""

    def snapshot(self) -> bytes:
        """What the log's state records have built so far."""

    def restore(self, state: bytes) -> None:
        """Replace that by a leader's; durable on return."""


async def open_store_of(config: BrokerConfig, store_host: bytes, client_address: str, follower: Follower) -> OpenStore:
    """Recover and start the store that `config` asks for.

    Args:
        config: whose `mode` decides.
        store_host: encoded address that records carry.
        client_address: `host:port` that peers give to clients when this node leads.
        follower: prepared before the store starts.

    Raises:
        StoreError, DLedgerError, OSError: the directory is locked, not ours, or the disk or a port refuses.
    """
    store_config = StoreConfig(
        root=config.store_dir,
        queue_file_size_bytes=config.consume_queue_file_size_bytes,
        log_directory=config.commit_log_path if config.mode is LogMode.STANDALONE else config.raft_log_path,
        cleaning=_cleaning_config(config),
        index=_index_config(config) if config.index_enable else None,
        compaction=_compaction_config(config) if config.compaction_enable else None,
        topic_attributes=follower.topic_attributes,
        kinds=_queue_kinds(config, follower),
        checkpoint_interval_ms=config.queue_thorough_sync_interval_ms,
        queue_sync_interval_ms=config.queue_sync_interval_ms,
        queue_sync_pages=config.queue_sync_pages,
        cold_limits=_cold_limits(config),
    )
    if config.mode is LogMode.RAFT:
        return await _open_raft_store(store_config, _raft_config(config, store_host, client_address), follower)
    return await open_classic_store(
        store_config,
        _commit_log_config(config, store_host),
        make_log=lambda log_config, loop: CommitLog(log_config, loop, on_flushed=follower.on_flushed),
        prepare=follower.prepare,
    )


async def _open_raft_store(store_config: StoreConfig, raft_config: RaftConfig, follower: Follower) -> OpenStore:
    """Recover the Raft log, put the store on it, then join the group."""
    directory = StoreDirectory(store_config.root, "raft")
    raft_log: RaftLog | None = None
    try:
        files = await asyncio.to_thread(open_files, raft_config)
        loop = asyncio.get_running_loop()
        raft_log = RaftLog(raft_config, files, loop, machine=follower, on_flushed=follower.on_flushed)
        opened = await open_store(
            store_config,
            directory,
            raft_log,
            flushed_offset=_flushed_offset(raft_log),
            batches=raft_log.batches(),
            prepare=follower.prepare,
        )
    except BaseException:
        if raft_log is not None:
            await raft_log.close()
        directory.close(clean=directory.was_clean)
        raise
    try:
        await raft_log.start()
    except BaseException:
        await opened.close()
        raise
    return opened


def group_status(replicated_log: ReplicatedLog) -> NodeStatus | None:
    """How a Raft group stands, as this member sees it; None where there is none."""
    return replicated_log.status() if isinstance(replicated_log, RaftLog) else None


def readiness(replicated_log: ReplicatedLog) -> tuple[bool, str] | None:
    """What the log itself says of its health; None for one that says nothing."""
    return replicated_log.readiness() if isinstance(replicated_log, RaftLog) else None


class Backlog(NamedTuple):
    """How far a log's disk is behind: bytes not in its files, bytes not durable, and free write buffers (or None)."""

    uncommitted_bytes: int
    unflushed_bytes: int
    free_buffer_count: int | None


def backlog(replicated_log: ReplicatedLog) -> Backlog:
    """The present one."""
    match replicated_log:
        case CommitLog() as log:
            committed = log.committed_offset
            return Backlog(log.max_offset - committed, committed - log.flushed_offset, log.free_buffer_count)
        case RaftLog() as log:
            return Backlog(0, log.max_offset - log.flushed_offset, None)
        case _:
            return Backlog(0, 0, None)


def term_starts(replicated_log: ReplicatedLog) -> list[tuple[int, int]]:
    """`(term, physical offset of its first entry)` of every term in the log; none where nothing is elected."""
    return replicated_log.term_starts() if isinstance(replicated_log, RaftLog) else []


def set_read_ahead(replicated_log: ReplicatedLog, reads_ahead: bool) -> None:
    """Have the system read ahead in the log's files, or not.

    Raises:
        Refusal: NOT_SUPPORTED, reading ahead in a Raft log: a store into a fresh page would wait for it.
    """
    if isinstance(replicated_log, CommitLog):
        replicated_log.set_reads_ahead(reads_ahead)
    elif reads_ahead:
        raise Refusal(Cause.NOT_SUPPORTED, "the system never reads ahead in the files of a Raft log")


def hand_over(replicated_log: ReplicatedLog, target: str | None) -> str:
    """Let another member lead: the one with id `target`, or whoever holds most. Returns who was chosen.

    Raises:
        Refusal: NOT_SUPPORTED for a log that has no other members, BUSY when that one cannot take over now.
    """
    if not isinstance(replicated_log, RaftLog):
        raise Refusal(Cause.NOT_SUPPORTED, "this broker stands alone: there is nobody to hand leadership to")
    try:
        return replicated_log.transfer(target)
    except RaftError as error:
        raise Refusal(Cause.BUSY, str(error), retry_after_ms=_RETRY_AFTER_MS) from error


def _flushed_offset(raft_log: RaftLog) -> Callable[[], int]:
    return lambda: min(raft_log.flushed_offset, raft_log.confirm_offset)


def _commit_log_config(config: BrokerConfig, store_host: bytes) -> CommitLogConfig:
    return CommitLogConfig(
        directory=config.commit_log_path,
        store_host=store_host,
        file_size_bytes=config.commit_log_file_size_bytes,
        stamps_crc=config.stamps_crc,
        flush_mode=_flush_mode(config),
        flush_interval_ms=config.flush_interval_ms,
        flush_least_pages=config.flush_least_pages,
        flush_thorough_interval_ms=config.flush_thorough_interval_ms,
        flush_timed=config.flush_timed,
        flush_wakes=config.flush_wakes,
        sync_flush_timeout_ms=config.sync_flush_timeout_ms,
        pool_count=config.transient_pool_count if config.transient_pool else 0,
        pool_refuses=config.transient_pool_refuses,
        commit_wakes=config.commit_wakes,
        commit_interval_ms=config.commit_interval_ms,
        commit_least_pages=config.commit_least_pages,
        commit_thorough_interval_ms=config.commit_thorough_interval_ms,
        warms_up=config.warms_up_files,
        warm_up_flush_pages=config.warm_up_flush_pages,
        mapped_count_max=config.mapped_file_count_max if config.mapped_file_swap else sys.maxsize,
        reads_ahead=config.reads_ahead,
        forced_delete_after_ms=config.forced_delete_after_ms,
    )


def _raft_config(config: BrokerConfig, store_host: bytes, client_address: str) -> RaftConfig:
    return RaftConfig(
        cluster=config.cluster_name,
        group=config.raft_group,
        self_id=config.raft_self_id,
        peers=tuple(PeerAddress(peer.node_id, peer.host, peer.port) for peer in config.raft_peers),
        store_dir=config.store_dir,
        client_address=client_address,
        store_host=store_host,
        listen_host=config.listen_host,
        flush_mode=_flush_mode(config),
        flush_interval_ms=config.flush_interval_ms,
        data_file_size_bytes=config.commit_log_file_size_bytes,
        heartbeat_ms=config.raft_heartbeat_interval_ms,
        election_min_ms=config.raft_election_timeout_ms,
        election_max_ms=config.raft_election_timeout_ms * 3 // 2,
        preferred_leader=config.preferred_leader,
        append_timeout_ms=config.replica_timeout_ms,
    )


def _compaction_config(config: BrokerConfig) -> CompactionConfig:
    return CompactionConfig(
        log_file_size_bytes=config.compaction_log_file_size_bytes,
        unit_file_size_bytes=config.compaction_unit_file_size_bytes,
        interval_ms=config.compaction_interval_ms,
        thread_count=config.compaction_thread_count,
        offset_map_bytes=config.compaction_offset_map_bytes,
    )


def _index_config(config: BrokerConfig) -> IndexConfig:
    return IndexConfig(
        directory=config.store_dir / "index",
        layout=IndexLayout(config.index_slot_count, config.index_entry_count),
        is_safe=config.index_safe,
        query_max=config.query_max_count,
    )


def _queue_kinds(config: BrokerConfig, follower: Follower) -> QueueKinds:
    return QueueKinds(
        ext=config.queue_ext,
        ext_file_size_bytes=config.queue_ext_file_size_bytes,
        batch_file_size_bytes=config.batch_queue_file_size_bytes,
        multi_dispatch=config.multi_dispatch,
        light=config.light_queues,
        light_max=config.light_queue_max,
        topic_attributes=follower.topic_attributes,
    )


def _cold_limits(config: BrokerConfig) -> ColdLimits:
    return ColdLimits(
        memory_bytes=MEMORY_BYTES * config.memory_percent // 100,
        count_max=config.max_cold_pull_count,
        bytes_max=config.max_cold_pull_bytes,
        scan_units=-(-config.filter_scan_bytes // 20),
    )


def _cleaning_config(config: BrokerConfig) -> CleaningConfig:
    return CleaningConfig(
        delete_hours=config.delete_hours,
        reserved_ms=config.file_reserved_ms,
        max_used_ratio=config.disk_max_used_percent / 100,
        forcible_ratio=config.disk_forcible_percent / 100,
        warning_ratio=config.disk_warning_percent / 100,
        forcibly=config.clean_forcibly,
        batch_max=config.delete_batch_max,
        interval_ms=config.clean_interval_ms,
        log_pause_ms=config.delete_log_pause_ms,
        queue_pause_ms=config.delete_queue_pause_ms,
        replicas_per_disk=config.replicas_per_disk,
        logical_forcible_ratio=config.logical_disk_forcible_ratio,
    )


def _flush_mode(config: BrokerConfig) -> FlushMode:
    return FlushMode.SYNC if config.flush_mode is ConfiguredFlushMode.SYNC else FlushMode.ASYNC
