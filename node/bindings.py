"""From a key to the field of the configuration that it sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgermq.remoting.tls import ClientAuth, TlsMode
from node import metric_values, values
from store.log.flusher import FlushMode


def _same(value: Any) -> Any:
    return value


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _seconds(number: int) -> int:
    return values.positive(number) * 1000


def _hours(number: int) -> int:
    return values.not_negative(number) * 3_600_000


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Binding:
    """One field.

    Attributes:
        convert: takes the value that the key's kind gave; may raise `values.ValueRefusedError`.
        show: the field's value as the key's text.
    """

    field: str
    convert: Callable[[Any], Any] = _same
    show: Callable[[Any], str] = _show


_LISTENER: Mapping[str, Binding] = {
    "bindAddress": Binding("listen_host"),
    "healthHost": Binding("health_host"),
    "listenPort": Binding("listen_port", values.port),
    "maxConnections": Binding("max_connections", values.positive),
    "maxConnectionsPerAddress": Binding("max_connections_per_address", values.positive),
    "maxFrameSize": Binding("max_frame_size_bytes", values.positive),
    "maxHeaderFields": Binding("max_header_fields", values.positive),
    "maxHeaderSize": Binding("max_header_size_bytes", values.positive),
    "maxRequestsInFlight": Binding("max_requests_in_flight", values.positive),
    "maxUnfinishedSize": Binding("max_unfinished_bytes", values.positive),
    "maxUnsentSize": Binding("max_unsent_bytes", values.positive),
    "serverChannelMaxIdleTimeSeconds": Binding(
        "connection_idle_timeout_ms", _seconds, lambda milliseconds: str(milliseconds // 1000)
    ),
}


def _hidden(value: str) -> str:
    return "***" if value else ""


TLS_BINDINGS: Mapping[str, Binding] = {
    "tls.client.authServer": Binding("tls_outgoing_verify"),
    "tls.client.certPath": Binding("tls_outgoing_certificate", _path),
    "tls.client.checkHost": Binding("tls_outgoing_check_host"),
    "tls.client.keyPassword": Binding("tls_outgoing_key_password", show=_hidden),
    "tls.client.keyPath": Binding("tls_outgoing_key", _path),
    "tls.client.trustCertPath": Binding("tls_outgoing_trusted", _path),
    "tls.server.certPath": Binding("tls_certificate", _path),
    "tls.server.keyPassword": Binding("tls_key_password", show=_hidden),
    "tls.server.keyPath": Binding("tls_key", _path),
    "tls.server.mode": Binding("tls_mode", TlsMode),
    "tls.server.need.client.auth": Binding("tls_client_auth", ClientAuth),
    "tls.server.trustCertPath": Binding("tls_trusted", _path),
    "useTLS": Binding("tls_outgoing"),
}
"""Fields of `TlsSettings`, which brokers and nameservers have both."""

AUTH_BINDINGS: Mapping[str, Binding] = {
    "aclEnable": Binding("old_acl"),
    "authenticationEnabled": Binding("authentication_enable"),
    "authenticationWhitelist": Binding("authentication_whitelist", values.codes, values.show_codes),
    "authorizationEnabled": Binding("authorization_enable"),
    "authorizationWhitelist": Binding("authorization_whitelist", values.codes, values.show_codes),
    "initAuthenticationUser": Binding("first_user", show=_hidden),
    "innerClientAuthenticationCredentials": Binding("inner_user", show=_hidden),
}
"""Fields of `AuthSettings`."""

BROKER_BINDINGS: Mapping[str, Binding] = {
    **_LISTENER,
    "advertisedPort": Binding("advertised_port", values.port),
    "accessMessageInMemoryHotRatio": Binding("hot_memory_percent", values.percent),
    "allowRecallWhenBrokerNotWriteable": Binding("recall_when_not_writable"),
    "accessMessageInMemoryMaxRatio": Binding("memory_percent", values.percent),
    "autoCreateSubscriptionGroup": Binding("auto_create_group"),
    "autoCreateTopicEnable": Binding("auto_create_topic"),
    "brokerClusterName": Binding("cluster_name"),
    "brokerHeartbeatInterval": Binding("namesrv_heartbeat_interval_ms", values.positive),
    "brokerId": Binding("broker_id", values.not_negative),
    "brokerName": Binding("broker_name"),
    "brokerNotActiveTimeoutMillis": Binding("namesrv_heartbeat_timeout_ms", values.positive),
    "brokerPermission": Binding("broker_permission", values.permission),
    "cgColdReadThreshold": Binding("cold_group_threshold_bytes", values.not_negative),
    "coldDataFlowControlEnable": Binding("cold_data_control"),
    "globalColdReadThreshold": Binding("cold_global_threshold_bytes", values.not_negative),
    "slaveReadEnable": Binding("slave_read"),
    "cleanFileForciblyEnable": Binding("clean_forcibly"),
    "cleanResourceInterval": Binding("clean_interval_ms", values.positive),
    "commitCommitLogLeastPages": Binding("commit_least_pages", values.not_negative),
    "commitCommitLogThoroughInterval": Binding("commit_thorough_interval_ms", values.not_negative),
    "commitIntervalCommitLog": Binding("commit_interval_ms", values.positive),
    "commitLogSwapMapReserveFileNum": Binding("mapped_file_count_max", values.positive),
    "dLegerGroup": Binding("raft_group"),
    "dLegerPeers": Binding("raft_peers", values.raft_peers),
    "configBlackList": Binding("config_black_list", values.words),
    "compactionCqMappedFileSize": Binding("compaction_unit_file_size_bytes", values.positive),
    "compactionMappedFileSize": Binding("compaction_log_file_size_bytes", values.positive),
    "compactionScheduleInternal": Binding("compaction_interval_ms", values.positive),
    "compactionThreadNum": Binding("compaction_thread_count", values.positive),
    "enableCompaction": Binding("compaction_enable"),
    "maxOffsetMapSize": Binding("compaction_offset_map_bytes", values.positive),
    "dLegerSelfId": Binding("raft_self_id"),
    "dataReadAheadEnable": Binding("reads_ahead"),
    "defaultQueryMaxNum": Binding("default_query_max_count", values.positive),
    "defaultTopicQueueNums": Binding("default_topic_queue_count", values.positive),
    "enableMixedMessageType": Binding("mixed_types"),
    "litePullMessageEnable": Binding("lite_pull"),
    "startAcceptSendRequestTimeStamp": Binding("accepts_sends_from_ms", values.not_negative),
    "enableRetryTopicV2": Binding("pop_retry_v2"),
    "retrieveMessageFromPopRetryTopicV1": Binding("pop_reads_retry_v1"),
    "enablePropertyFilter": Binding("property_filter"),
    "enabledAppendPropCRC": Binding("stamps_crc"),
    "filterSupportRetry": Binding("filter_retries"),
    "deleteCommitLogFilesInterval": Binding("delete_log_pause_ms", values.not_negative),
    "deleteConsumeQueueFilesInterval": Binding("delete_queue_pause_ms", values.not_negative),
    "deleteFileBatchMax": Binding("delete_batch_max", values.positive),
    "deleteWhen": Binding("delete_hours", values.hours, values.show_hours),
    "destroyMapedFileIntervalForcibly": Binding("forced_delete_after_ms", values.not_negative),
    "clearRetryTopicWhenDeleteTopic": Binding("clear_retry_topics"),
    "defaultMessageRequestMode": Binding("default_request_mode"),
    "defaultPopShareQueueNum": Binding("default_pop_share_queues"),
    "diskMaxUsedSpaceRatio": Binding("disk_max_used_percent", values.percent),
    "diskSpaceCleanForciblyRatio": Binding("disk_forcible_percent", values.percent),
    "diskSpaceWarningLevelRatio": Binding("disk_warning_percent", values.percent),
    "fastFailIfNoBufferInStorePool": Binding("transient_pool_refuses"),
    "fileReservedTime": Binding("file_reserved_ms", _hours, lambda milliseconds: str(milliseconds // 3_600_000)),
    "flushCommitLogLeastPages": Binding("flush_least_pages", values.not_negative),
    "flushCommitLogThoroughInterval": Binding("flush_thorough_interval_ms", values.not_negative),
    "flushCommitLogTimed": Binding("flush_timed"),
    "enablePopMessageThreshold": Binding("pop_limits_open"),
    "enableNotifyAfterPopOrderLockRelease": Binding("pop_wakes_on_order_release"),
    "enableConsumeQueueExt": Binding("queue_ext"),
    "enableLmq": Binding("light_queues"),
    "enableMultiDispatch": Binding("multi_dispatch"),
    "flushConsumeQueueLeastPages": Binding("queue_sync_pages", values.positive),
    "flushConsumeQueueThoroughInterval": Binding("queue_thorough_sync_interval_ms", values.positive),
    "flushConsumerOffsetInterval": Binding("consumer_offset_persist_interval_ms", values.positive),
    "flushDiskType": Binding("flush_mode", FlushMode),
    "flushIntervalConsumeQueue": Binding("queue_sync_interval_ms", values.positive),
    "flushIntervalCommitLog": Binding("flush_interval_ms", values.positive),
    "flushLeastPagesWhenWarmMapedFile": Binding("warm_up_flush_pages", values.not_negative),
    "logicalDiskSpaceCleanForciblyThreshold": Binding("logical_disk_forcible_ratio", values.ratio),
    "initPopOffsetByCheckMsgInMem": Binding("pop_start_from_memory"),
    "longPollingEnable": Binding("long_polling"),
    "mappedFileSizeCommitLog": Binding("commit_log_file_size_bytes", values.positive),
    "mappedFileSizeConsumeQueue": Binding("consume_queue_file_size_bytes", values.whole_units),
    "mappedFileSizeTimerLog": Binding("timer_log_file_size_bytes", values.positive),
    "mappedFileSwapEnable": Binding("mapped_file_swap"),
    "maxHashSlotNum": Binding("index_slot_count", values.positive),
    "maxIndexNum": Binding("index_entry_count", values.positive),
    "mappedFileSizeConsumeQueueExt": Binding("queue_ext_file_size_bytes", values.positive),
    "mapperFileSizeBatchConsumeQueue": Binding("batch_queue_file_size_bytes", values.positive),
    "maxFilterMessageSize": Binding("filter_scan_bytes", values.positive),
    "maxLmqConsumeQueueNum": Binding("light_queue_max", values.not_negative),
    "maxMessageSize": Binding("max_message_size_bytes", values.positive),
    "maxMsgsNumBatch": Binding("query_max_count", values.positive),
    "maxPopPollingSize": Binding("pop_held_max", values.positive),
    "maxTopicLength": Binding("max_topic_length", values.positive),
    "maxTopics": Binding("max_topics", values.positive),
    "maxTransferBytesOnMessageInDisk": Binding("max_cold_pull_bytes", values.positive),
    "maxTransferCountOnMessageInDisk": Binding("max_cold_pull_count", values.positive),
    "maxTransferBytesOnMessageInMemory": Binding("max_pull_bytes", values.positive),
    "maxTransferCountOnMessageInMemory": Binding("max_pull_count", values.positive),
    "messageIndexEnable": Binding("index_enable"),
    "metricsExporterType": Binding("metrics_exporter", metric_values.metrics_exporter),
    "metricsInDelta": Binding("metrics_in_delta"),
    "metricsLabel": Binding("metrics_labels", metric_values.metric_labels, metric_values.show_metric_labels),
    "metricsOtelCardinalityLimit": Binding("metrics_label_sets_max", values.positive),
    "metricsPromExporterHost": Binding("metrics_host"),
    "metricsPromExporterPort": Binding("metrics_port", values.port),
    "messageIndexSafe": Binding("index_safe"),
    "namesrvAddr": Binding("namesrv_addrs", values.address_list),
    "popInflightMessageThreshold": Binding("pop_open_limit", values.not_negative),
    "popFromRetryProbability": Binding("pop_from_retry_percent", values.not_negative),
    "popPollingSize": Binding("pop_held_queue_max", values.positive),
    "popResponseReturnActualRetryTopic": Binding("pop_shows_retry_topic"),
    "preferredLeaderId": Binding("preferred_leader"),
    "raftElectionTimeout": Binding("raft_election_timeout_ms", values.positive),
    "raftHeartbeatInterval": Binding("raft_heartbeat_interval_ms", values.positive),
    "recallMessageEnable": Binding("recall_enable"),
    "regionId": Binding("region_id"),
    "registerBrokerTimeoutMills": Binding("register_timeout_ms", values.positive),
    "registerNameServerPeriod": Binding("register_interval_ms", values.register_interval),
    "rejectTransactionMessage": Binding("reject_transactions"),
    "replicasPerDiskPartition": Binding("replicas_per_disk", values.positive),
    "reviveQueueNum": Binding("pop_revive_queues", values.positive),
    "serverLoadBalancerEnable": Binding("server_allocates_queues"),
    "shortPollingTimeMills": Binding("short_polling_ms", values.positive),
    "slaveTimeout": Binding("replica_timeout_ms", values.positive),
    "storeReplyMessageEnable": Binding("store_replies"),
    "storePathCommitLog": Binding("commit_log_dir", _path),
    "storePathRootDir": Binding("store_dir", _path),
    "syncFlushTimeout": Binding("sync_flush_timeout_ms", values.positive),
    "timerCongestNumEachSlot": Binding("timer_slot_count_max", values.positive),
    "timerFlushIntervalMs": Binding("timer_flush_interval_ms", values.positive),
    "timerMaxDelaySec": Binding("timer_max_delay_s", values.positive),
    "timerPrecisionMs": Binding("timer_precision_ms", values.positive),
    "timerRollWindowSlot": Binding("timer_roll_window_slots", values.positive),
    "timerStopDequeue": Binding("timer_stop_dequeue"),
    "timerStopEnqueue": Binding("timer_stop_enqueue"),
    "timerWheelEnable": Binding("timer_wheel_enable"),
    "transactionCheckInterval": Binding("transaction_check_interval_ms", values.positive),
    "transactionCheckMax": Binding("transaction_check_max", values.not_negative),
    "transactionMetricFlushInterval": Binding("transaction_metrics_interval_ms", values.positive),
    "transactionOpBatchInterval": Binding("transaction_op_interval_ms", values.not_negative),
    "transactionOpMsgMaxSize": Binding("transaction_op_size_bytes", values.positive),
    "transactionTimeOut": Binding("transaction_timeout_ms", values.not_negative),
    "transientStorePoolEnable": Binding("transient_pool"),
    "transientStorePoolSize": Binding("transient_pool_count", values.positive),
    "wakeCommitWhenPutMessage": Binding("commit_wakes"),
    "wakeFlushWhenPutMessage": Binding("flush_wakes"),
    "traceOn": Binding("trace_on"),
    "warmMapedFileEnable": Binding("warms_up_files"),
}

NAMESRV_BINDINGS: Mapping[str, Binding] = {
    **_LISTENER,
    "maxRegistrationSize": Binding("max_registration_size_bytes", values.positive),
    "brokerHeartbeatTimeout": Binding("default_heartbeat_timeout_ms", values.positive),
    "configBlackList": Binding("config_black_list", values.words),
    "deleteTopicWithBrokerRegistration": Binding("delete_topic_with_registration"),
    "enableAllTopicList": Binding("all_topic_list_enable"),
    "enableTopicList": Binding("topic_list_enable"),
    "kvConfigPath": Binding("kv_config_path", _path),
    "maxRouteWait": Binding("max_route_wait_ms", values.not_negative),
    "needWaitForService": Binding("wait_for_service"),
    "notifyMinBrokerIdChanged": Binding("notify_min_broker_id"),
    "orderMessageEnable": Binding("order_message_enable"),
    "returnOrderTopicConfigToBroker": Binding("return_order_topic_config"),
    "scanNotActiveBrokerInterval": Binding("scan_interval_ms", values.positive),
    "supportActingMaster": Binding("support_acting_master"),
    "unRegisterBrokerQueueCapacity": Binding("unregister_queue_capacity", values.positive),
    "waitSecondsForService": Binding("wait_for_service_seconds", values.positive),
}
