"""The one place where a broker's log is chosen: everything else knows the seam only."""

from collections.abc import Callable

from broker.config import BrokerConfig, LogMode
from broker.config import FlushMode as ConfiguredFlushMode
from ledgermq.remoting.refusal import Cause, Refusal
from store.commit_log import CommitLog, CommitLogConfig
from store.flusher import FlushMode
from store.message_store import MessageStore
from store.opening import OpenStore, StoreConfig, open_classic_store

Prepare = Callable[[MessageStore], None]
OnFlushed = Callable[[int, float], None]


async def open_store_of(
    config: BrokerConfig, store_host: bytes, client_address: str, prepare: Prepare, on_flushed: OnFlushed
) -> OpenStore:
    """Recover and start the store that `config` asks for.

    Args:
        config: whose `mode` decides.
        store_host: encoded address that records carry.
        client_address: `host:port` that peers give to clients when this node leads.
        prepare: called before the store starts.
        on_flushed: flushed offset and seconds of each sync of the log.

    Raises:
        StoreError, OSError: the directory is locked, not ours, or the disk refuses.
    """
    store_config = StoreConfig(root=config.store_dir, queue_file_size_bytes=config.consume_queue_file_size_bytes)
    if config.mode is LogMode.RAFT:
        raise Refusal(Cause.NOT_SUPPORTED, "mode raft")
    log_config = CommitLogConfig(
        directory=config.commit_log_path,
        store_host=store_host,
        file_size_bytes=config.commit_log_file_size_bytes,
        flush_mode=FlushMode.SYNC if config.flush_mode is ConfiguredFlushMode.SYNC else FlushMode.ASYNC,
        flush_interval_ms=config.flush_interval_ms,
        sync_flush_timeout_ms=config.sync_flush_timeout_ms,
    )
    return await open_classic_store(
        store_config,
        log_config,
        make_log=lambda log_config, loop: CommitLog(log_config, loop, on_flushed=on_flushed),
        prepare=prepare,
    )
