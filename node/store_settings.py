"""What the parts of the store below a broker are told, from the settings of its process."""

from dataclasses import replace

from dledger.config import RaftConfig
from ledgermq.remoting.proof import read_secrets
from node.node_config import NodeConfig
from store.log.commit_log_config import CommitLogConfig
from store.queues.queue_kinds import TopicAttributes
from store.store_config import StoreConfig


def store_config(config: NodeConfig, topic_attributes: TopicAttributes) -> StoreConfig:
    """For the store on whichever log; `topic_attributes` are asked for in the thread of its recovery, too."""
    store = config.broker.store
    index, compaction = store.index, store.compaction
    return replace(
        store,
        index=replace(index, directory=store.root / "index") if index is not None and index.enable else None,
        compaction=compaction if compaction is not None and compaction.enable else None,
        kinds=replace(store.kinds, topic_attributes=topic_attributes),
        topic_attributes=topic_attributes,
    )


def commit_log_config(config: NodeConfig, store_host: bytes) -> CommitLogConfig:
    """For a broker that stands alone; `store_host` is its address as records hold it."""
    return replace(config.log, directory=config.commit_log_path, store_host=store_host)


def raft_config(config: NodeConfig, store_host: bytes, client_address: str) -> RaftConfig:
    """For a member of a Raft group, to which clients come at `client_address`, `host:port`, when it leads.

    Raises:
        SecretFileError: the file of the peers' secret cannot be used.
    """
    raft, broker = config.raft, config.broker
    return RaftConfig(
        cluster=broker.cluster_name,
        group=raft.group,
        self_id=raft.self_id,
        peers=raft.peers,
        store_dir=broker.store.root,
        client_address=client_address,
        store_host=store_host,
        peer_secrets=read_secrets(raft.peer_secret_file) if raft.peer_secret_file is not None else (),
        listen_host=None if raft.is_local else broker.listen_host,  # no other machine needs to reach local peers
        flush_mode=config.log.flush_mode,
        flush_interval_ms=config.log.flush_interval_ms,
        data_file_size_bytes=config.log.file_size_bytes,
        heartbeat_ms=raft.heartbeat_ms,
        election_min_ms=raft.election_timeout_ms,
        election_max_ms=raft.election_timeout_ms * 3 // 2,
        preferred_leader=raft.preferred_leader,
        append_timeout_ms=raft.append_timeout_ms,
    )
