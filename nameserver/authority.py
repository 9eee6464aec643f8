"""Which requests change a nameserver's tables, and which registrations' Raft terms count."""

from typing import Final

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.authority import IS_PROVEN

GUARDED: Final = frozenset(
    {
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT),
        *(RequestCode.QUERY_DATA_VERSION, RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER),
        *(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
    }
)
"""Requests that change something; a broker's heartbeats (322, 904) keep it alive and are among them."""


def terms_count(connection: Connection) -> bool:
    """Return whether the Raft term counts in the registration that this connection has just sent."""
    return bool(connection.attributes[IS_PROVEN])
