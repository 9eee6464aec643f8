"""The broker's settings under RocketMQ's names, as the properties text of GET_BROKER_CONFIG (26).

Every known key is shown with the value in force, as the command line's configuration knows it; what the broker itself
decides, or was built with in code, stands above that.
"""

from broker.config import BrokerConfig, LogMode
from broker.role import Role


def properties_text(config: BrokerConfig, role: Role) -> bytes:
    """`key=value` lines, sorted."""
    values: dict[str, object] = {**config.properties, **_values(config)}
    values |= {"brokerId": role.broker_id, "brokerRole": "SYNC_MASTER" if role.writable else "SLAVE"}
    if config.mode is LogMode.STANDALONE:
        values["brokerRole"] = "ASYNC_MASTER"
    return "".join(f"{key}={_text(value)}\n" for key, value in sorted(values.items())).encode()


def _values(config: BrokerConfig) -> dict[str, object]:
    return {
        "accessMessageInMemoryMaxRatio": 40,
        "autoCreateSubscriptionGroup": config.auto_create_group,
        "autoCreateTopicEnable": config.auto_create_topic,
        "brokerClusterName": config.cluster_name,
        "brokerIP1": config.advertised_host,
        "brokerIP2": config.inside_host,
        "brokerName": config.broker_name,
        "brokerPermission": config.broker_permission,
        "dLegerGroup": config.raft_group,
        "dLegerPeers": ";".join(map(str, config.raft_peers)),
        "dLegerSelfId": config.raft_self_id,
        "defaultTopicQueueNums": config.default_topic_queue_count,
        "enableDLegerCommitLog": config.mode is LogMode.RAFT,
        "enablePropertyFilter": config.property_filter,
        "filterSupportRetry": config.filter_retries,
        "flushConsumerOffsetInterval": config.consumer_offset_persist_interval_ms,
        "flushDiskType": config.flush_mode.value,
        "flushIntervalCommitLog": config.flush_interval_ms,
        "listenPort": config.listen_port,
        "longPollingEnable": config.long_polling,
        "mappedFileSizeCommitLog": config.commit_log_file_size_bytes,
        "mappedFileSizeConsumeQueue": config.consume_queue_file_size_bytes,
        "maxMessageSize": config.max_message_size_bytes,
        "maxTransferBytesOnMessageInMemory": config.max_pull_bytes,
        "maxTransferCountOnMessageInMemory": config.max_pull_count,
        "namesrvAddr": ";".join(config.namesrv_addrs),
        "regionId": config.region_id,
        "registerNameServerPeriod": config.register_interval_ms,
        "shortPollingTimeMills": config.short_polling_ms,
        "storePathRootDir": config.store_dir,
        "syncFlushTimeout": config.sync_flush_timeout_ms,
        "traceOn": config.trace_on,
        "traceTopicEnable": config.trace_topic is not None,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
