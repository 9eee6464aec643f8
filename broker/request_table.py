"""Which request is served by what: every code that this broker knows, but UPDATE_BROKER_CONFIG.

That one is served from when there is something to change, which `assembly` knows. Codes of POP, and of users and
policies, are listed where they are served.
"""

from collections.abc import Mapping

from broker.admin.broker_requests import BrokerRequests
from broker.admin.cleaning import CleaningRequests
from broker.admin.replica_requests import ReplicaRequests
from broker.admin.topic_requests import TopicRequests
from broker.admin.transfer import TRANSFER_LEADERSHIP, TransferRequests
from broker.auth.requests import AuthRequests
from broker.delay.levels import DelayService
from broker.delay.timer_requests import TimerRequests
from broker.forwarding import PassingOn
from broker.groups.client_requests import ClientRequests
from broker.groups.consumer_admin import ConsumerAdmin
from broker.groups.group_requests import GroupRequests
from broker.groups.offset_moves import OffsetMoves
from broker.groups.offset_requests import OffsetRequests
from broker.pop.service import PopService
from broker.pull.cold_data import ColdReads
from broker.pull.processor import PullProcessor
from broker.pull.query import QueryRequests
from broker.send.processor import SendProcessor
from broker.send.request_reply import RequestReply
from broker.send.send_back import SendBack
from broker.subsystem import Serve
from broker.transactions.requests import TransactionRequests
from ledgermq.remoting.codec.codes import RequestCode


def request_table(
    *,
    send: SendProcessor,
    request_reply: RequestReply,
    send_back: SendBack,
    pull: PullProcessor,
    pop: PopService,
    query: QueryRequests,
    offset_requests: OffsetRequests,
    client_requests: ClientRequests,
    transaction_requests: TransactionRequests,
    timer_requests: TimerRequests,
    delay: DelayService,
    topics: TopicRequests,
    groups: GroupRequests,
    broker: BrokerRequests,
    consumer_admin: ConsumerAdmin,
    offset_moves: OffsetMoves,
    cleaning: CleaningRequests,
    cold: ColdReads,
    replicas: ReplicaRequests,
    transfer: TransferRequests,
    auth: AuthRequests,
    passing_on: PassingOn,
) -> Mapping[int, Serve]:
    """What serves which request code."""
    code = RequestCode
    return {
        code.SEND_MESSAGE: send.send_v1,
        code.SEND_MESSAGE_V2: send.send_v2,
        code.SEND_BATCH_MESSAGE: send.send_batch,
        code.SEND_REPLY_MESSAGE: request_reply.reply,
        code.SEND_REPLY_MESSAGE_V2: request_reply.reply,
        code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        code.PULL_MESSAGE: pull.pull,
        code.LITE_PULL_MESSAGE: pull.pull,
        code.QUERY_CONSUMER_OFFSET: offset_requests.query_consumer_offset,
        code.UPDATE_CONSUMER_OFFSET: offset_requests.update_consumer_offset,
        code.GET_ALL_CONSUMER_OFFSET: offset_requests.all_consumer_offsets,
        code.SEARCH_OFFSET_BY_TIMESTAMP: offset_requests.search_offset,
        code.GET_MAX_OFFSET: offset_requests.max_offset,
        code.GET_MIN_OFFSET: offset_requests.min_offset,
        code.GET_EARLIEST_MSG_STORETIME: offset_requests.earliest_store_time,
        code.QUERY_MESSAGE: query.query,
        code.VIEW_MESSAGE_BY_ID: offset_requests.view_message,
        code.HEART_BEAT: client_requests.heartbeat,
        code.UNREGISTER_CLIENT: client_requests.unregister,
        code.GET_CONSUMER_LIST_BY_GROUP: client_requests.members,
        code.CHECK_CLIENT_CONFIG: client_requests.check_client_config,
        code.LOCK_BATCH_MQ: client_requests.lock,
        code.UNLOCK_BATCH_MQ: client_requests.unlock,
        code.GET_CONSUMER_CONNECTION_LIST: client_requests.consumer_connections,
        code.GET_PRODUCER_CONNECTION_LIST: client_requests.producer_connections,
        code.GET_CONSUMER_RUNNING_INFO: client_requests.running_info,
        code.CONSUME_MESSAGE_DIRECTLY: client_requests.consume_directly,
        code.END_TRANSACTION: transaction_requests.end,
        code.RECALL_MESSAGE: timer_requests.recall,
        code.GET_ALL_DELAY_OFFSET: delay.all_offsets,
        code.GET_TIMER_CHECK_POINT: timer_requests.check_point,
        code.GET_TIMER_METRICS: timer_requests.metrics,
        code.UPDATE_AND_CREATE_TOPIC: topics.update_topic,
        code.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_topics,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_topics,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_groups,
        code.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.group_forbidden,
        code.VIEW_BROKER_STATS_DATA: broker.view_statistics,
        code.GET_BROKER_HA_STATUS: replicas.status,
        code.GET_BROKER_EPOCH_CACHE: replicas.terms,
        code.NOTIFY_MIN_BROKER_ID_CHANGE: replicas.min_broker_changed,
        code.RESET_MASTER_FLUSH_OFFSET: replicas.reset_master_flush_offset,
        code.EXPORT_ROCKSDB_CONFIG_TO_JSON: replicas.nothing_elsewhere,
        code.POP_ROLLBACK: replicas.nothing_elsewhere,
        code.RESUME_CHECK_HALF_MESSAGE: transaction_requests.resume,
        code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: cold.set_thresholds,
        code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: cold.remove_threshold,
        code.GET_COLD_DATA_FLOW_CTR_INFO: cold.show,
        code.SET_COMMITLOG_READ_MODE: cold.set_read_ahead,
        code.DELETE_TOPIC_IN_BROKER: passing_on.led(topics.delete_topic),
        code.GET_ALL_TOPIC_CONFIG: topics.all_topics,
        code.GET_TOPIC_CONFIG: topics.topic_config,
        code.GET_TOPIC_STATS_INFO: topics.topic_stats,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_group,
        code.DELETE_SUBSCRIPTIONGROUP: groups.delete_group,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all_groups,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.group_config,
        code.GET_CONSUME_STATS: consumer_admin.consume_stats,
        code.INVOKE_BROKER_TO_RESET_OFFSET: offset_moves.reset_offset,
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_admin.consumer_status,
        code.QUERY_TOPIC_CONSUME_BY_WHO: consumer_admin.topic_consumers,
        code.QUERY_CONSUME_TIME_SPAN: consumer_admin.time_span,
        code.QUERY_CORRECTION_OFFSET: consumer_admin.correction_offsets,
        code.CLONE_GROUP_OFFSET: offset_moves.clone_offsets,
        code.GET_BROKER_CONSUME_STATS: consumer_admin.all_consume_stats,
        code.QUERY_CONSUME_QUEUE: consumer_admin.queue_units,
        code.QUERY_TOPICS_BY_CONSUMER: consumer_admin.topics_of_group,
        code.QUERY_SUBSCRIPTION_BY_CONSUMER: consumer_admin.subscription_of_group,
        code.GET_ALL_PRODUCER_INFO: consumer_admin.all_producers,
        code.CLEAN_EXPIRED_CONSUMEQUEUE: cleaning.expired_queues,
        code.CLEAN_UNUSED_TOPIC: cleaning.unused_topics,
        code.DELETE_EXPIRED_COMMITLOG: cleaning.expired_log,
        code.GET_BROKER_CONFIG: broker.broker_config,
        code.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
        TRANSFER_LEADERSHIP: transfer.transfer,
        **pop.requests(),
        **auth.table(),
    }
