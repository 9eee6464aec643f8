"""From the broker's settings, which are those of one file, to those of each part of the store below it."""

import sys

from broker.config import BrokerConfig
from dledger.config import RaftConfig
from ledgermq.message.index_unit import IndexLayout
from store.cleaning.config import CleaningConfig
from store.compaction.config import CompactionConfig
from store.index.config import IndexConfig
from store.log.commit_log_config import CommitLogConfig
from store.opening import StoreConfig
from store.queues.queue_kinds import QueueKinds, TopicAttributes
from store.queues.queue_reader import MEMORY_BYTES, ColdLimits


def store_config(config: BrokerConfig, topic_attributes: TopicAttributes) -> StoreConfig:
    """For the store on whichever log; `topic_attributes` are asked for in the thread of its recovery, too."""
    return StoreConfig(
        root=config.store_dir,
        queue_file_size_bytes=config.consume_queue_file_size_bytes,
        cleaning=_cleaning_config(config),
        index=_index_config(config) if config.index_enable else None,
        compaction=_compaction_config(config) if config.compaction_enable else None,
        topic_attributes=topic_attributes,
        kinds=_queue_kinds(config, topic_attributes),
        checkpoint_interval_ms=config.queue_thorough_sync_interval_ms,
        queue_sync_interval_ms=config.queue_sync_interval_ms,
        queue_sync_pages=config.queue_sync_pages,
        cold_limits=_cold_limits(config),
    )


def commit_log_config(config: BrokerConfig, store_host: bytes) -> CommitLogConfig:
    """For a broker that stands alone; `store_host` is its address as records hold it."""
    return CommitLogConfig(
        directory=config.commit_log_path,
        store_host=store_host,
        file_size_bytes=config.commit_log_file_size_bytes,
        stamps_crc=config.stamps_crc,
        flush_mode=config.flush_mode,
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


def raft_config(config: BrokerConfig, store_host: bytes, client_address: str) -> RaftConfig:
    """For a member of a Raft group, to which clients come at `client_address`, `host:port`, when it leads."""
    return RaftConfig(
        cluster=config.cluster_name,
        group=config.raft_group,
        self_id=config.raft_self_id,
        peers=config.raft_peers,
        store_dir=config.store_dir,
        client_address=client_address,
        store_host=store_host,
        listen_host=config.listen_host,
        flush_mode=config.flush_mode,
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


def _queue_kinds(config: BrokerConfig, topic_attributes: TopicAttributes) -> QueueKinds:
    return QueueKinds(
        ext=config.queue_ext,
        ext_file_size_bytes=config.queue_ext_file_size_bytes,
        batch_file_size_bytes=config.batch_queue_file_size_bytes,
        multi_dispatch=config.multi_dispatch,
        light=config.light_queues,
        light_max=config.light_queue_max,
        topic_attributes=topic_attributes,
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
