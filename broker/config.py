"""Settings of one broker: its names, its addresses, its limits.

    broker.conf + overrides -> node.config (parses, refuses, chooses addresses) -> BrokerConfig -> assembly

A value here is already parsed and in range; `problems` says what only several values together can get wrong. The
defaults suit a broker inside one process (loopback); what a file leaves out is decided by `node.config`. How the log is
kept and replicated is no matter of the broker: see `node.node_config`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from broker.auth_settings import AuthSettings
from broker.config_kinds import (
    ADDRESSES,
    METRIC_LABELS,
    METRICS_EXPORTER,
    PERMISSION,
    REGISTER_INTERVAL,
    MetricsExporter,
)
from ledgermq.remoting.config_key import (
    BOOL,
    INT,
    NOT_NEGATIVE,
    NOT_NEGATIVE_LONG,
    OURS,
    PATH,
    PERCENT,
    PORT,
    POSITIVE,
    POSITIVE_LONG,
    STORE,
    TEXT,
    WORDS,
    key,
    one_of,
    section,
)
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import AddressQuotas, UserQuotas
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.remoting.tls_settings import TlsSettings
from store.store_config import StoreConfig


@dataclass(slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker.

    Times are milliseconds, sizes bytes, ports 0 to 65535 (0: any free one, for tests). Only `live_config` changes
    settings in use.
    """

    ORIGIN: ClassVar[str] = "BrokerConfig"

    # who
    cluster_name: str = key(
        "brokerClusterName", TEXT, "DefaultCluster", "Name of the cluster that the broker belongs to."
    )
    broker_name: str = key(
        "brokerName",
        TEXT,
        "broker",
        "Name that this broker and its replicas share in routes.",
        shown="<the host's name>",
    )
    broker_id: int = key(
        "brokerId",
        NOT_NEGATIVE_LONG,
        0,
        "Number of this broker within its name: 0 is the master. In Raft mode roles decide instead.",
        note="Has no effect in Raft mode: the leader registers 0, a follower the number in its node id plus one.",
    )
    node_id: str = ""
    """This node among the replicas of its broker name, for messages and metrics; empty where it has none."""
    follower_id: int = 1
    """Id registered while another node leads."""

    # where
    listener: ListenerKeys = section(ListenerKeys)
    advertised_host: str = key(
        "brokerIP1",
        TEXT,
        "127.0.0.1",
        "Host that routes name: what clients dial.",
        shown="<an address of this machine>",
        note="Chosen and printed at the start, with the other candidates, when it is not set.",
        alias="advertisedHost",
    )
    advertised_port: int | None = key(
        "advertisedPort",
        PORT,
        None,
        "Port that routes name, where a container's port is mapped to another one.",
        shown="<listenPort>",
        origin=OURS,
    )
    inside_host: str = key(
        "brokerIP2",
        TEXT,
        "127.0.0.1",
        "Host that the other members of the cluster dial.",
        shown="<an address of this machine>",
        note="In Raft mode the host of this node's entry in dLegerPeers, when it is not set.",
        alias="insideHost",
    )
    namesrv_addrs: tuple[str, ...] = key(
        "namesrvAddr", ADDRESSES, (), "Nameservers, host:port divided by semicolons; each gets every change of role."
    )
    namesrv_secret_file: Path | None = key(
        "namesrvSecretFile",
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which this broker's registrations are signed.",
        note="The same as the nameservers'. RocketMQ's nameservers do not ask for a signature.",
        origin=OURS,
    )

    # metrics, beside those on the health port
    metrics_exporter: MetricsExporter = key(
        "metricsExporterType",
        METRICS_EXPORTER,
        MetricsExporter.DISABLE,
        "How metrics leave the process, beside the page of healthPort.",
        note="OTLP_GRPC and LOG are refused; the page of healthPort always has them, and more.",
    )
    metrics_host: str = key(
        "metricsPromExporterHost",
        TEXT,
        "",
        "Host at which RocketMQ's metrics are served as Prometheus text; empty: brokerIP1.",
    )
    metrics_port: int = key(
        "metricsPromExporterPort", PORT, 5557, "Port at which RocketMQ's metrics are served as Prometheus text."
    )
    metrics_labels: tuple[tuple[str, str], ...] = key(
        "metricsLabel", METRIC_LABELS, (), "Labels put on every metric, as k:v,k:v."
    )
    metrics_in_delta: bool = key(
        "metricsInDelta",
        BOOL,
        False,
        "Export changes of metrics rather than sums.",
        note="Puts the label aggregation=delta on every series, as upstream; Prometheus' sums stay sums.",
    )
    metrics_label_sets_max: int = key("metricsOtelCardinalityLimit", POSITIVE, 50_000, "Most label sets of one metric.")

    # messages, topics, groups
    max_message_size_bytes: int = key(
        "maxMessageSize", POSITIVE, 4 << 20, "Most bytes of a message's body.", origin=STORE
    )
    max_topic_length: int = key("maxTopicLength", POSITIVE, 127, "Most characters of a topic's name.", origin=STORE)
    max_topics: int = key(
        "maxTopics", POSITIVE, 100_000, "Most topics; automatic creation refuses more.", origin=OURS, live=True
    )
    max_groups: int = key(
        "maxGroups", POSITIVE, 100_000, "Most consumer groups; automatic creation refuses more.", origin=OURS, live=True
    )
    batch_messages_max: int = key(
        "maxMessagesOfBatch",
        POSITIVE,
        16_384,
        "Most messages in one request of a batch, which are appended in one go.",
        origin=OURS,
    )
    lanes_max: int = key(
        "maxNumberedLanes",
        POSITIVE,
        10_000,
        "Most lanes, pairs of a producer that numbers its messages and a queue, whose numbers are kept.",
        origin=OURS,
        live=True,
    )
    lane_expiry_hours: int = key(
        "numberedLaneExpireHours",
        POSITIVE,
        168,
        "Hours after the last message of a lane until its numbers are forgotten.",
        origin=OURS,
        live=True,
    )
    broker_permission: int = key(
        "brokerPermission", PERMISSION, 6, "What the whole broker allows: 4 read, 2 write, 6 both.", live=True
    )
    accepts_sends_from_ms: int = key(
        "startAcceptSendRequestTimeStamp",
        NOT_NEGATIVE_LONG,
        0,
        "Time in ms since 1970 before which sends are refused.",
        live=True,
    )
    mixed_types: bool = key(
        "enableMixedMessageType", BOOL, False, "Allow topics whose messages are of several types.", live=True
    )
    default_topic_queue_count: int = key(
        "defaultTopicQueueNums", POSITIVE, 8, "Most queues that an automatically created topic gets."
    )
    auto_create_topic: bool = key(
        "autoCreateTopicEnable", BOOL, True, "A message for an unknown topic creates it, after the template TBW102."
    )
    auto_create_group: bool = key(
        "autoCreateSubscriptionGroup",
        BOOL,
        True,
        "A consumer group that is not known is created when a consumer of it appears.",
        live=True,
    )
    consumer_offset_persist_interval_ms: int = key(
        "flushConsumerOffsetInterval",
        POSITIVE,
        5000,
        "Time in ms between two writes of the consumer offsets to their file.",
    )
    lock_grace_ms: int = key(
        "lockGraceTime",
        NOT_NEGATIVE,
        4000,
        "Time in ms for which a consumer keeps its queues' locks after its last connection closed.",
        note="Then other consumers get them, unless it was heard of or still pulls; after 1.5 s if its connections to "
        "several members ended at once. With RocketMQ this takes 60 s.",
        origin=OURS,
    )
    region_id: str = key("regionId", TEXT, "DefaultRegion", "Name of the region, handed to clients in send answers.")
    trace_on: bool = key("traceOn", BOOL, True, "Tell clients that this broker wants traces.")
    trace_topic_enable: bool = key("traceTopicEnable", BOOL, False, "Create the topic of message traces at start.")
    trace_topic_name: str = key("msgTraceTopicName", TEXT, "RMQ_SYS_TRACE_TOPIC", "Topic that takes message traces.")
    store_replies: bool = key(
        "storeReplyMessageEnable", BOOL, True, "Store replies of request-reply for consoles to see.", live=True
    )

    # timers
    timer_wheel_enable: bool = key("timerWheelEnable", BOOL, True, "Serve timer messages.", origin=STORE, live=True)
    timer_precision_ms: int = key("timerPrecisionMs", POSITIVE, 1000, "Precision of timers in ms.", origin=STORE)
    timer_max_delay_s: int = key(
        "timerMaxDelaySec", POSITIVE, 259_200, "Longest delay in seconds.", origin=STORE, live=True
    )
    timer_roll_window_slots: int = key(
        "timerRollWindowSlot", POSITIVE, 172_800, "Slots of the wheel before a timer is rolled on.", origin=STORE
    )
    timer_log_file_size_bytes: int = key(
        "mappedFileSizeTimerLog", POSITIVE, 100 << 20, "Bytes of a file of the timer's log.", origin=STORE
    )
    timer_flush_interval_ms: int = key(
        "timerFlushIntervalMs", POSITIVE, 1000, "Time in ms between two flushes of the timer.", origin=STORE
    )
    timer_slot_count_max: int = key(
        "timerCongestNumEachSlot", POSITIVE, (1 << 31) - 1, "Most timers that end in one slot.", origin=STORE, live=True
    )
    timer_stop_enqueue: bool = key("timerStopEnqueue", BOOL, False, "Stop taking timers.", origin=STORE)
    timer_stop_dequeue: bool = key("timerStopDequeue", BOOL, False, "Stop the delivery of timers.", origin=STORE)
    recall_enable: bool = key("recallMessageEnable", BOOL, False, "Let producers take back a timer message.", live=True)
    recall_when_not_writable: bool = key(
        "allowRecallWhenBrokerNotWriteable",
        BOOL,
        True,
        "Let timers be recalled while the broker takes no messages.",
        live=True,
    )

    # transactions
    reject_transactions: bool = key(
        "rejectTransactionMessage", BOOL, False, "Refuse transactional messages.", live=True
    )
    transaction_check_interval_ms: int = key(
        "transactionCheckInterval",
        POSITIVE_LONG,
        30_000,
        "Time in ms between two rounds of asking producers for the state of transactions.",
        live=True,
    )
    transaction_timeout_ms: int = key(
        "transactionTimeOut",
        NOT_NEGATIVE_LONG,
        6000,
        "Age in ms at which an undecided transaction is asked about.",
        live=True,
    )
    transaction_check_max: int = key(
        "transactionCheckMax", NOT_NEGATIVE, 15, "Questions after which a transaction is given up.", live=True
    )
    transaction_op_interval_ms: int = key(
        "transactionOpBatchInterval",
        NOT_NEGATIVE,
        3000,
        "Time in ms for which ends of transactions are gathered.",
        live=True,
    )
    transaction_op_size_bytes: int = key(
        "transactionOpMsgMaxSize", POSITIVE, 4096, "Bytes of one message that ends transactions.", live=True
    )
    transaction_metrics_interval_ms: int = key(
        "transactionMetricFlushInterval", POSITIVE_LONG, 3000, "Time in ms between two writes of transaction figures."
    )

    # POP
    pop_from_retry_percent: int = key(
        "popFromRetryProbability",
        NOT_NEGATIVE,
        20,
        "Percentage of POP requests that look into the retry topic first.",
        live=True,
    )
    pop_retry_v2: bool = key("enableRetryTopicV2", BOOL, False, "Name POP retry topics by the newer rule.", live=True)
    pop_reads_retry_v1: bool = key(
        "retrieveMessageFromPopRetryTopicV1",
        BOOL,
        True,
        "Read POP retry topics named by the older rule, too.",
        live=True,
    )
    pop_revive_queues: int = key("reviveQueueNum", POSITIVE, 8, "Queues of the POP revival topic.")
    pop_shows_retry_topic: bool = key(
        "popResponseReturnActualRetryTopic",
        BOOL,
        False,
        "Show consumers the retry topic a POP message came from.",
        live=True,
    )
    pop_start_from_memory: bool = key(
        "initPopOffsetByCheckMsgInMem",
        BOOL,
        True,
        "Decide where a new POP group starts by what is in memory.",
        live=True,
    )
    pop_wakes_on_order_release: bool = key(
        "enableNotifyAfterPopOrderLockRelease",
        BOOL,
        True,
        "Wake waiting consumers when an ordered POP lock is free.",
        live=True,
    )
    pop_limits_open: bool = key(
        "enablePopMessageThreshold", BOOL, False, "Limit messages that a POP group has in flight.", live=True
    )
    pop_open_limit: int = key(
        "popInflightMessageThreshold",
        NOT_NEGATIVE_LONG,
        10_000,
        "Most messages a POP group may have in flight in a queue.",
        live=True,
    )
    pop_held_max: int = key("maxPopPollingSize", POSITIVE_LONG, 100_000, "Waiting POP requests on the whole broker.")
    pop_held_queue_max: int = key("popPollingSize", POSITIVE, 1024, "Most waiting POP requests of one queue.")
    clear_retry_topics: bool = key(
        "clearRetryTopicWhenDeleteTopic",
        BOOL,
        True,
        "Deleting a topic deletes the POP retry topics made for it.",
        live=True,
    )
    default_request_mode: str = key(
        "defaultMessageRequestMode",
        one_of("PULL", "POP"),
        "PULL",
        "How push consumers fetch when nothing is set for their group.",
        live=True,
    )
    default_pop_share_queues: int = key(
        "defaultPopShareQueueNum", INT, -1, "Consumers that may share a queue in POP mode; -1 all.", live=True
    )
    server_allocates_queues: bool = key(
        "serverLoadBalancerEnable",
        BOOL,
        True,
        "Share out queues on the server for consumers that ask for it.",
        live=True,
    )

    # pull
    held_pulls_max: int = key(
        "maxHeldPulls",
        POSITIVE,
        100_000,
        "Most pulls that wait for messages; for one more the connection with most of them gives some up, else it is"
        " answered 2, system busy.",
        origin=OURS,
        live=True,
    )
    lite_pull: bool = key("litePullMessageEnable", BOOL, True, "Serve lite pull requests.", live=True)
    long_polling: bool = key(
        "longPollingEnable",
        BOOL,
        True,
        "Hold a pull that finds nothing until a message comes or its time is up.",
        live=True,
    )
    short_polling_ms: int = key(
        "shortPollingTimeMills",
        POSITIVE_LONG,
        1000,
        "Time in ms for which a pull is held when long polling is off.",
        live=True,
    )
    max_pull_count: int = key(
        "maxTransferCountOnMessageInMemory", POSITIVE, 32, "Most messages of one pull.", origin=STORE, live=True
    )
    max_pull_bytes: int = key(
        "maxTransferBytesOnMessageInMemory", POSITIVE, 256 << 10, "Most bytes of one pull.", origin=STORE, live=True
    )
    bulk_pull_bytes: int = key(
        "maxTransferBytesOfBulkPull",
        POSITIVE,
        1 << 20,
        "Most bytes of one pull that asks for bulk.",
        origin=OURS,
        live=True,
    )
    slave_read: bool = key(
        "slaveReadEnable",
        BOOL,
        False,
        "Let consumers read from slaves that are not far behind.",
        upstream="false",
        live=True,
        note="Without it, slaves of an appointed master refuse pulls with code 2. Slaves of an elected master and"
        " followers of a Raft group always serve them; with it, an elected master sends its readers to slaves.",
    )
    spread_reads: bool = key(
        "spreadReads",
        BOOL,
        True,
        "Let consumers read from followers too, each queue from one: of a Raft leader, or, with slaveReadEnable, of an"
        " elected master.",
        live=True,
        note="The leader suggests the member in its answers to pulls. Without it readers stay at the leader.",
    )
    cold_data_control: bool = key(
        "coldDataFlowControlEnable",
        BOOL,
        False,
        "Limit the reading of messages that are no longer in memory.",
        origin=STORE,
        live=True,
    )
    hot_memory_percent: int = key(
        "accessMessageInMemoryHotRatio",
        PERCENT,
        26,
        "Percentage of memory whose newest messages count as hot.",
        origin=STORE,
        live=True,
    )
    cold_group_threshold_bytes: int = key(
        "cgColdReadThreshold",
        NOT_NEGATIVE_LONG,
        3 << 20,
        "Bytes a consumer group may read from cold files in a period.",
        live=True,
    )
    cold_global_threshold_bytes: int = key(
        "globalColdReadThreshold",
        NOT_NEGATIVE_LONG,
        100 << 20,
        "Bytes all consumers may read from cold files in a period.",
        live=True,
    )
    property_filter: bool = key(
        "enablePropertyFilter", BOOL, False, "Let consumers filter by SQL over message properties.", live=True
    )
    filter_retries: bool = key(
        "filterSupportRetry", BOOL, False, "Apply SQL filters to messages that are retried, too.", live=True
    )
    default_query_max_count: int = key(
        "defaultQueryMaxNum",
        POSITIVE,
        32,
        "Most messages that a query by key gives.",
        origin=STORE,
        live=True,
        note="Of a query by unique key, which does not say how many it wants.",
    )

    # nameservers
    register_interval_ms: int = key(
        "registerNameServerPeriod",
        REGISTER_INTERVAL,
        30_000,
        "Time in ms between two registrations at the nameservers, 10000 to 60000.",
    )
    register_timeout_ms: int = key(
        "registerBrokerTimeoutMills", POSITIVE, 24_000, "Patience in ms for a nameserver's answer to a registration."
    )
    namesrv_heartbeat_interval_ms: int = key(
        "brokerHeartbeatInterval",
        POSITIVE,
        5000,
        "Time in ms between two heartbeats to the nameservers.",
        upstream="1000",
        note="Sent in every mode; RocketMQ sends it with enableSlaveActingMaster only.",
    )
    namesrv_heartbeat_timeout_ms: int = key(
        "brokerNotActiveTimeoutMillis",
        POSITIVE_LONG,
        10_000,
        "Silence in ms after which a nameserver drops this broker.",
    )

    slave_acting: bool = key(
        "enableSlaveActingMaster",
        BOOL,
        False,
        "Let the slave with the smallest id stand in for its absent master, without taking messages.",
        note="On the master and its slaves; the nameservers need supportActingMaster. For appointed masters only.",
    )
    remote_escape: bool = key(
        "enableRemoteEscape",
        BOOL,
        False,
        "Let a slave that stands in deliver what waits to masters of other broker names.",
    )
    members_interval_ms: int = key(
        "syncBrokerMemberGroupPeriod",
        POSITIVE,
        1000,
        "Time in ms between two questions of a slave whether its master is away.",
        note="With enableSlaveActingMaster.",
    )

    # what other rooms have settings for
    store: StoreConfig = section(StoreConfig)
    limits: Limits = section(Limits)
    address_quotas: AddressQuotas = section(AddressQuotas)
    user_quotas: UserQuotas = section(UserQuotas)
    tls: TlsSettings = section(TlsSettings)
    auth: AuthSettings = section(AuthSettings)

    # changes at run time
    insecure_settings: bool = key(
        "insecureSettings",
        BOOL,
        False,
        "Let everybody change settings (updateBrokerConfig) where users are not checked, as RocketMQ's broker does.",
        origin=OURS,
    )
    config_black_list: tuple[str, ...] = key(
        "configBlackList", WORDS, ("configBlackList", "brokerConfigPath"), "Keys that may not be changed at run time."
    )

    properties: Mapping[str, str] = field(default_factory=dict)
    """Every known key under RocketMQ's name with the value in force, as text: what requests 25, 26 show."""

    @property
    def public_port(self) -> int:
        """The port that routes name; 0: the one at which the broker will listen."""
        return self.advertised_port or self.listener.port

    @property
    def address(self) -> str:
        """`host:port` that routes name: what clients dial."""
        return f"{self.advertised_host}:{self.public_port}"

    @property
    def inside_address(self) -> str:
        """`host:port` that the other members of the cluster dial; empty where any free port is taken."""
        return f"{self.inside_host}:{self.listener.port}" if self.listener.port else ""

    @property
    def trace_topic(self) -> str | None:
        """Topic of message traces, made at the start; None: none is made."""
        return self.trace_topic_name if self.trace_topic_enable else None

    @property
    def file_reserved_ms(self) -> int:
        """How long files of the log are kept."""
        assert self.store.cleaning is not None, "a broker cleans its store"
        return self.store.cleaning.reserved_ms

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold."""
        if (why := self.limits.why_too_large(self.max_message_size_bytes)) is not None:
            yield "maxMessageSize", why
        beat, silence = self.namesrv_heartbeat_interval_ms, self.namesrv_heartbeat_timeout_ms
        if silence < 2 * beat:
            yield "brokerNotActiveTimeoutMillis", f"{silence} is too short: two heartbeats of {beat} ms must fit"
        yield from self.store.problems(self.max_message_size_bytes)
        yield from self.tls.problems()
        yield from self.auth.problems()
