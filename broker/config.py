"""What one broker process is told: who it is, where it listens, how it keeps its promise, and its limits.

    broker.conf + overrides -> cli.config (parses, refuses, chooses addresses) -> BrokerConfig -> assembly

A value here is already parsed and in range; `broker.config_problems` checks what only two values together can get
wrong. The names RocketMQ gives these settings are in `node.keys`. The defaults here suit a broker inside one process
(loopback); what a file leaves out is decided by `node.config`.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.auth_settings import AuthSettings
from dledger.config import PeerAddress
from ledgermq.remoting.tls_settings import TlsSettings
from store.log.flusher import FlushMode


class LogMode(enum.StrEnum):
    """Which side of the replicated-log seam the broker stands on."""

    STANDALONE = "standalone"
    RAFT = "raft"


class MetricsExporter(enum.StrEnum):
    """How metrics leave the broker; the page of the health port is there in any case."""

    DISABLE = "DISABLE"
    PROM = "PROM"


@dataclass(slots=True, kw_only=True)
class BrokerConfig:
    """One broker. Times are milliseconds, sizes bytes, ports 0 to 65535 (0: any free one, for tests).

    Only `live_config` changes one that is in use.
    """

    # who
    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker"
    broker_id: int = 0
    """Id registered in standalone mode. In Raft mode the leader registers 0, a follower `follower_broker_id`."""
    mode: LogMode = LogMode.STANDALONE

    # where
    listen_host: str = "0.0.0.0"
    listen_port: int = 10911
    advertised_host: str = "127.0.0.1"
    """Host that routes name and clients dial (brokerIP1)."""
    advertised_port: int | None = None
    """Port that routes name; None: the port listened at. For mapped container ports."""
    inside_host: str = "127.0.0.1"
    """Host that the other members of the cluster dial (brokerIP2)."""
    namesrv_addrs: tuple[str, ...] = ()
    """`host:port` of every nameserver; each is told of every role change."""
    health_host: str = "0.0.0.0"
    health_port: int | None = None
    """Port of /livez, /readyz, /metrics; None: not served."""

    # metrics, beside those on the health port
    metrics_exporter: MetricsExporter = MetricsExporter.DISABLE
    metrics_host: str = ""
    """Where RocketMQ's page is served besides; empty: the advertised host."""
    metrics_port: int = 5557
    metrics_labels: tuple[tuple[str, str], ...] = ()
    """Names and values that every series of RocketMQ's gets."""
    metrics_in_delta: bool = False
    metrics_label_sets_max: int = 50_000
    """Of one metric; what comes beyond is counted together."""

    # Raft
    raft_group: str = ""
    raft_self_id: str = ""
    raft_peers: tuple[PeerAddress, ...] = ()
    """All members, this node included. The own Raft listener binds `listen_host` at the own entry's port."""
    preferred_leader: str | None = None
    """Node id that is handed leadership when it is caught up."""
    raft_heartbeat_interval_ms: int = 100
    raft_election_timeout_ms: int = 700
    """Lower bound t; each wait is drawn from [t, 1.5t). A closed connection does not wait for it."""

    # store
    store_dir: Path = field(default_factory=lambda: Path.home() / "store")
    commit_log_dir: Path | None = None
    """None: `<store_dir>/commitlog`; see `commit_log_path`. Unused in Raft mode."""
    commit_log_file_size_bytes: int = 1 << 30
    consume_queue_file_size_bytes: int = 6_000_000
    """A multiple of 20, the size of a unit."""

    # flush
    flush_mode: FlushMode = FlushMode.ASYNC
    """`node.config` makes it SYNC in Raft mode when the file does not say."""
    flush_interval_ms: int = 500
    """ASYNC only: longest time between two flushes of the commit log."""
    flush_least_pages: int = 4
    """ASYNC, standalone: fewest pages of 4096 bytes worth a flush before the thorough interval is over; 0: any byte."""
    flush_thorough_interval_ms: int = 10_000
    flush_timed: bool = True
    """ASYNC, standalone: flush at the interval only, not also when records were placed or committed."""
    flush_wakes: bool = False
    sync_flush_timeout_ms: int = 5000
    """How long a batch may wait for the disk before its senders are told FLUSH_TIMEOUT."""
    replica_timeout_ms: int = 3000
    """How long a batch may wait for a quorum before its senders are told REPLICA_TIMEOUT."""

    # files of the standalone log: see `store.log.commit_log_config`
    stamps_crc: bool = False
    transient_pool: bool = False
    transient_pool_count: int = 5
    transient_pool_refuses: bool = False
    commit_wakes: bool = True
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200
    warms_up_files: bool = False
    warm_up_flush_pages: int = 4096
    mapped_file_swap: bool = True
    mapped_file_count_max: int = 100
    reads_ahead: bool = True
    forced_delete_after_ms: int = 120_000

    # kinds of consume queues: see `store.queues.queue_kinds`
    queue_ext: bool = False
    queue_ext_file_size_bytes: int = 48 << 20
    batch_queue_file_size_bytes: int = 13_800_000
    multi_dispatch: bool = False
    light_queues: bool = False
    light_queue_max: int = 20_000
    queue_sync_interval_ms: int = 1000
    """Between two syncs of the queues in which `queue_sync_pages` pages of 4096 bytes were filled since."""
    queue_sync_pages: int = 2
    queue_thorough_sync_interval_ms: int = 10_000
    """Between two syncs of all queues; what is not synced is made again from the log."""

    # cleaning: see `store.cleaning.config`; percentages are of a disk
    delete_hours: frozenset[int] = frozenset({4})
    file_reserved_ms: int = 72 * 3_600_000
    clean_interval_ms: int = 10_000
    clean_forcibly: bool = True
    delete_batch_max: int = 10
    delete_log_pause_ms: int = 100
    delete_queue_pause_ms: int = 100
    disk_max_used_percent: int = 75
    disk_forcible_percent: int = 85
    disk_warning_percent: int = 90
    """Above it messages are refused."""
    replicas_per_disk: int = 1
    logical_disk_forcible_ratio: float = 0.8

    # messages, topics, groups
    max_message_size_bytes: int = 4 << 20
    max_topic_length: int = 127
    broker_permission: int = 6
    """Bits 4 read, 2 write, for the whole broker."""
    default_topic_queue_count: int = 8
    auto_create_topic: bool = True
    auto_create_group: bool = True
    consumer_offset_persist_interval_ms: int = 5000

    # timers
    timer_wheel_enable: bool = True
    timer_precision_ms: int = 1000
    """Length of a slot of the wheel; deliveries are to the millisecond whatever it is."""
    timer_max_delay_s: int = 259_200
    timer_roll_window_slots: int = 172_800
    timer_log_file_size_bytes: int = 100 << 20
    timer_flush_interval_ms: int = 1000
    timer_slot_count_max: int = (1 << 31) - 1
    """Timers in one slot from which on some are refused, and all from twice as many on (timerCongestNumEachSlot)."""
    timer_stop_enqueue: bool = False
    timer_stop_dequeue: bool = False
    recall_enable: bool = False
    recall_when_not_writable: bool = True

    # transactions
    reject_transactions: bool = False
    transaction_check_interval_ms: int = 30_000
    transaction_timeout_ms: int = 6000
    """Age from which on a producer is asked about an undecided message."""
    transaction_check_max: int = 15
    transaction_op_interval_ms: int = 3000
    """How long ends of transactions are gathered for one record of the op topic."""
    transaction_op_size_bytes: int = 4096
    transaction_metrics_interval_ms: int = 3000

    # POP
    pop_from_retry_percent: int = 20
    """Of the requests that look into the retry topic first."""
    pop_retry_v2: bool = False
    """Messages that come again go into retry topics of the newer name, whose parts can be told apart."""
    pop_reads_retry_v1: bool = True
    """Then retry topics of the older name are read, too."""
    pop_revive_queues: int = 8
    """What revive queue ids in handles run through; there are no such queues here (reviveQueueNum)."""
    pop_shows_retry_topic: bool = False
    """Messages that come again are shown under their retry topic (popResponseReturnActualRetryTopic)."""
    pop_start_from_memory: bool = True
    """A new group that asks for the end begins at 0 where that is in memory (initPopOffsetByCheckMsgInMem)."""
    pop_wakes_on_order_release: bool = True
    clear_retry_topics: bool = True
    """Deleting a topic deletes its POP retry topics."""
    pop_limits_open: bool = False
    """Whether a group that has more than `pop_open_limit` messages of a queue unacknowledged gets no more of it."""
    pop_open_limit: int = 10_000
    pop_held_max: int = 100_000
    pop_held_queue_max: int = 1024
    default_request_mode: str = "PULL"
    default_pop_share_queues: int = -1
    server_allocates_queues: bool = True

    accepts_sends_from_ms: int = 0
    """Wall clock before which sends are refused (startAcceptSendRequestTimeStamp)."""
    mixed_types: bool = False
    """Topics may be made for messages of several types."""

    # pull
    lite_pull: bool = True
    long_polling: bool = True
    short_polling_ms: int = 1000
    """How long a pull is held when `long_polling` is off."""
    max_pull_count: int = 32
    max_pull_bytes: int = 256 << 10
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    """Clients may trace the messages of this broker."""
    trace_topic: str | None = None
    """Topic of message traces, made at the start."""
    max_cold_pull_count: int = 8
    """Of messages that are probably on the disk only."""
    max_cold_pull_bytes: int = 64 << 10
    memory_percent: int = 40
    """Part of the machine's memory within which the log's newest messages count as in memory."""
    slave_read: bool = False
    """Readers are sent to where their group says (brokerId, and whichBrokerWhenConsumeSlowly when they are behind)."""
    cold_data_control: bool = False
    """See `broker.pull.cold_data`."""
    hot_memory_percent: int = 26
    """Likewise, for what counts as cold there."""
    cold_group_threshold_bytes: int = 3 << 20
    cold_global_threshold_bytes: int = 100 << 20
    filter_scan_bytes: int = 16_000
    """Of units of 20 bytes: how many one pull looks at, at least."""
    store_replies: bool = True
    """Replies to requests are stored, too."""
    property_filter: bool = False
    """Consumers may filter by SQL over message properties."""
    filter_retries: bool = False
    """SQL filters apply to retried messages, too."""

    # index by key: see `store.index.config`
    index_enable: bool = True
    index_safe: bool = False
    """After an unclean stop the broker serves only when the index is complete again."""
    index_slot_count: int = 5_000_000
    index_entry_count: int = 20_000_000
    """Of an index file; entry 0 is never used."""
    default_query_max_count: int = 32
    """Most messages that a query by unique key gives."""
    query_max_count: int = 64
    """Most messages that any query by key gives."""

    # compaction of topics by key: see `store.compaction.config`
    compaction_enable: bool = True
    compaction_log_file_size_bytes: int = 100 << 20
    compaction_unit_file_size_bytes: int = 10 << 20
    compaction_interval_ms: int = 15 * 60_000
    compaction_thread_count: int = 6
    compaction_offset_map_bytes: int = 100 << 20

    # nameservers
    register_interval_ms: int = 30_000
    register_timeout_ms: int = 24_000
    namesrv_heartbeat_interval_ms: int = 5000
    namesrv_heartbeat_timeout_ms: int = 10_000
    """Sent with each registration: silence after which a nameserver drops this broker; two heartbeats missed."""

    # limits
    max_connections: int = 10_000
    max_connections_per_address: int = 1000
    max_frame_size_bytes: int = 16 << 20
    max_header_size_bytes: int = 256 << 10
    max_header_fields: int = 128
    max_unfinished_bytes: int = 256 << 20
    max_requests_in_flight: int = 16_384
    max_unsent_bytes: int = 64 << 20
    connection_idle_timeout_ms: int = 120_000
    tls: TlsSettings = field(default_factory=TlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    max_topics: int = 100_000
    config_black_list: tuple[str, ...] = ("configBlackList", "brokerConfigPath")
    """Keys that request 25 may not change, beside those that it never may."""

    notices: tuple[str, ...] = ()
    """What the process says once at its start: addresses chosen, keys without effect."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Every known key under RocketMQ's name with the value in force, as text: what requests 25, 26 show."""

    @property
    def commit_log_path(self) -> Path:
        """Directory of the classic commit log's files."""
        return self.commit_log_dir or self.store_dir / "commitlog"

    @property
    def raft_log_path(self) -> Path:
        """Directory of the Raft node: `data/`, `index/`, term and vote."""
        return self.store_dir / f"dledger-{self.raft_self_id}"

    @property
    def follower_broker_id(self) -> int:
        """Id a follower registers: the number in its node id plus one, as Java's DLedger brokers do (n0 is 1)."""
        if match := re.fullmatch(r"n(\d+)", self.raft_self_id):
            return int(match[1]) + 1
        return [peer.node_id for peer in self.raft_peers].index(self.raft_self_id) + 1
