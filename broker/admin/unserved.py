"""Requests of RocketMQ that this broker does not serve, with the reason; they are answered with code 3."""

from collections.abc import Mapping
from typing import Final

from ledgermq.remoting.codec.codes import RequestCode as Code
from ledgermq.remoting.refusal import Cause, Refusal

_NEVER: Final = "RocketMQ's own broker does not serve it"
_CONTAINER: Final = "a process is one broker here, there are no containers of brokers"
_CONTROLLER: Final = "controllers serve it"
_OF_CONTROLLERS: Final = "controllers of RocketMQ ask it of themselves, where they use JRaft"
_NO_CONTROLLER_MODE: Final = "only a broker with enableControllerMode=true has a master that controllers elect"
_STATIC: Final = (
    "static topics are not served: mqadmin writes the places of their queues into one broker after the other, and "
    "nothing makes the brokers agree if it stops half way; make an ordinary topic"
)
_CLIENT: Final = "brokers ask it of clients"
_NAMESERVER: Final = "nameservers serve it"

REASONS: Final[Mapping[int, str]] = {
    **dict.fromkeys((13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302), _NEVER),
    **dict.fromkeys((Code.ADD_BROKER, Code.REMOVE_BROKER), _CONTAINER),
    **dict.fromkeys((*range(1001, 1007), *range(1009, 1014)), _CONTROLLER),
    **dict.fromkeys(range(1014, 1019), _OF_CONTROLLERS),
    Code.NOTIFY_BROKER_ROLE_CHANGED: _NO_CONTROLLER_MODE,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _STATIC,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "there is no RocksDB store that could be compared with the files",
    **dict.fromkeys(
        (
            *(Code.CHECK_TRANSACTION_STATE, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.RESET_CONSUMER_CLIENT_OFFSET),
            *(Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.PUSH_REPLY_MESSAGE_TO_CLIENT),
        ),
        _CLIENT,
    ),
    **dict.fromkeys(
        (
            *(Code.PUT_KV_CONFIG, Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE),
            *(Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.BROKER_HEARTBEAT, Code.QUERY_DATA_VERSION),
            *(Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, Code.GET_BROKER_MEMBER_GROUP),
            *(Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER),
            *(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS),
            *(Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
            *(Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG),
            *(Code.DELETE_TOPIC_IN_NAMESRV, Code.REGISTER_TOPIC_IN_NAMESRV),
        ),
        _NAMESERVER,
    ),
}
"""Reasons by request code; a code that is in no table is unknown."""


def not_served(code: int) -> Refusal:
    """Return the refusal of a request that the broker does not serve; it begins like RocketMQ's, with the blank."""
    reason = REASONS.get(code)
    remark = f" request type {code} not supported"
    return Refusal(Cause.NOT_SUPPORTED, remark if reason is None else f"{remark}: {reason}")
