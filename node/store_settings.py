"""The settings of the store and of the logs below a broker, made from the configuration of its process."""

from dataclasses import replace

from broker.auth_settings import AuthSettings, WithoutSecret
from broker.identity import BrokerIdentity
from dledger.config import RaftConfig
from dledger.core.settings import RaftTiming
from ha.config import HaGroupConfig, MasterConfig, MemberConfig
from ha.core.copies import ALONE
from ledgermq.remoting.proof import Secrets, read_secrets
from node.node_config import LogMode, NodeConfig
from store.log.commit_log_config import CommitLogConfig
from store.log.flusher import FlushMode
from store.queues.queue_kinds import TopicAttributes
from store.store_config import StoreConfig


def store_config(config: NodeConfig, topic_attributes: TopicAttributes) -> StoreConfig:
    """Return the settings of the store on any log; `topic_attributes` is also called in the thread of its recovery."""
    store = config.broker.store
    index, compaction = store.index, store.compaction
    return replace(
        store,
        index=replace(index, directory=store.folders.index) if index is not None and index.enable else None,
        compaction=compaction if compaction is not None and compaction.enable else None,
        kinds=replace(store.kinds, topic_attributes=topic_attributes),
        topic_attributes=topic_attributes,
    )


def commit_log_config(config: NodeConfig, store_host: bytes) -> CommitLogConfig:
    """Return the settings of the classic log; `store_host` is the broker's address as records hold it.

    A slave, and a replica that may become one, has no transient pool, as in RocketMQ.
    """
    has_pool = config.log.transient_pool and config.mode not in (LogMode.SLAVE, LogMode.ELECTED)
    return replace(config.log, directory=config.commit_log_path, store_host=store_host, transient_pool=has_pool)


def group_config(config: NodeConfig, client_address: str) -> HaGroupConfig:
    """Return what masters and slaves have in common; clients reach this node at `client_address`, `host:port`.

    Raises:
        SecretFileError: the file of the peers' secret cannot be used.
    """
    ha, broker, identity = config.ha, config.broker, BrokerIdentity(config.broker)
    return HaGroupConfig(
        cluster=identity.cluster,
        name=identity.name,
        broker_id=0 if config.mode is LogMode.MASTER else broker.follower_id,
        client_address=client_address,
        inside_address=broker.inside_address,
        file_size=config.log.file_size_bytes,
        secrets=peer_secrets(config),
        heartbeat_s=ha.heartbeat_ms / 1000,
        idle_limit_s=ha.idle_limit_ms / 1000,
    )


def master_config(config: NodeConfig, client_address: str) -> MasterConfig:
    """Return the settings of a master; raises as `group_config`."""
    waits, is_sync = config.broker_role == "SYNC_MASTER", config.log.flush_mode is FlushMode.SYNC
    rules = config.ha.rules(waits=waits, counts_durable=is_sync)
    limit_ms: int | None = config.log.sync_flush_timeout_ms if is_sync else None
    if rules.wanted > ALONE:
        limit_ms = config.raft.append_timeout_ms
    return config.ha.master_config(
        group_config(config, client_address),
        config.broker.listener.host,
        config.ha_port or 0,
        limit_s=None if limit_ms is None else limit_ms / 1000,
        rules=rules,
        is_insecure=config.raft.insecure_peers,
        record_max_bytes=config.broker.max_message_size_bytes,
    )


def peer_secrets(config: NodeConfig) -> Secrets:
    """Return the secrets by which the brokers of a name know each other.

    Raises:
        SecretFileError: the file cannot be used.
    """
    raft, ha = config.raft, config.ha
    secret_file = raft.peer_secret_file if config.mode is LogMode.RAFT else ha.peer_secret_file
    return () if secret_file is None else read_secrets(secret_file)


def with_secrets(config: NodeConfig) -> AuthSettings:
    """Return the settings of users with the secrets by which their passwords are stored; raises as `peer_secrets`."""
    auth = config.broker.auth
    known = peer_secrets(config) if auth.password_key_file is None else read_secrets(auth.password_key_file)
    without = WithoutSecret.OWN_KEY if config.mode is LogMode.STANDALONE else WithoutSecret.REFUSE
    if auth.plain_passwords:
        without = WithoutSecret.PLAIN
    return replace(auth, password_secrets=known, without_secret=without)


def member_config(config: NodeConfig, client_address: str, broker_id: int) -> MemberConfig:
    """Return the settings of a replica to which the controllers gave `broker_id`; raises as `group_config`."""
    master = master_config(config, client_address)
    master = replace(
        master,
        group=replace(master.group, broker_id=broker_id),
        rules=replace(master.rules, least=config.ha.min_in_sync_replicas),
        limit_s=config.raft.append_timeout_ms / 1000,
    )
    return config.elected.member_config(
        master,
        config.broker.inside_host,
        config.broker.store.folders.root,
        follows_rocketmq=config.ha.master_protocol == "rocketmq",
    )


def raft_config(config: NodeConfig, store_host: bytes, client_address: str) -> RaftConfig:
    """Return the settings of a Raft member; clients reach it at `client_address`, `host:port`, when it leads.

    Raises:
        SecretFileError: the file of the peers' secret cannot be used.
    """
    raft, broker = config.raft, config.broker
    return RaftConfig(
        cluster=BrokerIdentity(broker).cluster,
        group=raft.group,
        self_id=raft.self_id,
        peers=raft.peers,
        store_dir=broker.store.folders.root,
        client_address=client_address,
        store_host=store_host,
        inside_address=broker.inside_address,
        peer_secrets=peer_secrets(config),
        listen_host=None if raft.is_local else broker.listener.host,  # no other machine needs to reach local peers
        flush_mode=config.log.flush_mode,
        flush_interval_ms=config.log.flush_interval_ms,
        data_file_size_bytes=config.log.file_size_bytes,
        timing=RaftTiming(
            heartbeat_ms=raft.heartbeat_ms,
            election_min_ms=raft.election_timeout_ms,
            election_max_ms=raft.election_timeout_ms * 3 // 2,
        ),
        preferred_leader=raft.preferred_leader,
        append_timeout_ms=raft.append_timeout_ms,
    )
