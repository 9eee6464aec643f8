"""Refusals of a server: the cause, its response code, when to retry, and who leads.

Every rejection of a request, wherever it arises (log, store, processor), is a `Refusal`. Its remark names the one cause
and the numbers behind it; its code is one that RocketMQ's clients know, chosen so that they retry exactly where a retry
can help (the Java producer retries on 1, 2, 14, 16, 17, 204 and 205; `client/.../DefaultMQProducer`).
"""

import enum
from dataclasses import dataclass


class Cause(enum.Enum):
    """Why a request was refused; the value is the RocketMQ response code that clients see.

    Members are `(code, slug)`, so that causes with the same code stay distinct.
    """

    # this node cannot serve it now; another node, or this one later, can
    NOT_LEADER = (14, "not-leader")
    LEADER_CHANGED = (14, "leader-changed")  # deposed after the append: the message may or may not survive
    NO_QUORUM = (14, "no-quorum")  # on too few nodes in time: the message may or may not survive
    RECOVERING = (14, "recovering")
    SHUTTING_DOWN = (14, "shutting-down")
    DISK_FULL = (14, "disk-full")
    DISK_FAILED = (14, "disk-failed")  # perhaps after the append: the message may or may not survive
    FLUSH_TIMEOUT = (10, "flush-timeout")  # stored, but perhaps not durable yet
    SLAVE_NOT_AVAILABLE = (11, "slave-not-available")  # stored, but on no slave that is in sync
    REPLICA_TIMEOUT = (12, "replica-timeout")
    IN_SYNC_REPLICAS_NOT_ENOUGH = (1, "in-sync-replicas-not-enough")  # not stored
    BUSY = (2, "busy")
    # the request cannot succeed as it is
    MESSAGE_ILLEGAL = (13, "message-illegal")
    NO_PERMISSION = (16, "no-permission")
    TOPIC_NOT_EXIST = (17, "topic-not-exist")
    GROUP_NOT_EXIST = (26, "group-not-exist")
    INVALID_PARAMETER = (29, "invalid-parameter")
    SUBSCRIPTION_PARSE_FAILED = (23, "subscription-parse-failed")
    SUBSCRIPTION_NOT_EXIST = (24, "subscription-not-exist")
    SUBSCRIPTION_NOT_LATEST = (25, "subscription-not-latest")
    FILTER_DATA_NOT_EXIST = (27, "filter-data-not-exist")
    QUERY_NOT_FOUND = (22, "query-not-found")
    POLLING_TIMEOUT = (210, "polling-timeout")
    NOT_SUPPORTED = (3, "not-supported")
    MALFORMED_FIELD = (1, "malformed-field")  # the code of Java's exception when it cannot read a header field
    SYSTEM_ERROR = (1, "system-error")
    # a controller's refusals
    CONTROLLER_FENCED_MASTER_EPOCH = (2000, "controller-fenced-master-epoch")
    CONTROLLER_FENCED_SET_EPOCH = (2001, "controller-fenced-set-epoch")
    CONTROLLER_INVALID_MASTER = (2002, "controller-invalid-master")
    CONTROLLER_INVALID_REPLICAS = (2003, "controller-invalid-replicas")
    CONTROLLER_MASTER_NOT_AVAILABLE = (2004, "controller-master-not-available")
    CONTROLLER_INVALID_REQUEST = (2005, "controller-invalid-request")
    CONTROLLER_BROKER_NOT_ALIVE = (2006, "controller-broker-not-alive")
    CONTROLLER_NOT_LEADER = (2007, "controller-not-leader")
    CONTROLLER_METADATA_NOT_EXIST = (2008, "controller-metadata-not-exist")
    CONTROLLER_INVALID_CLEAN = (2009, "controller-invalid-clean")
    CONTROLLER_NOT_REGISTERED = (2010, "controller-not-registered")
    CONTROLLER_MASTER_STILL_EXISTS = (2011, "controller-master-still-exists")
    CONTROLLER_ELECTION_FAILED = (2012, "controller-election-failed")
    CONTROLLER_ALTER_FAILED = (2013, "controller-alter-failed")
    CONTROLLER_ID_INVALID = (2014, "controller-id-invalid")

    @property
    def code(self) -> int:
        """RocketMQ response code."""
        return self.value[0]

    @property
    def slug(self) -> str:
        """Stable text for metrics and tests."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """The last known leader.

    Attributes:
        node_id: such as `n0` or `broker-a/0`.
        address: `host:port` for clients.
        inside_address: `host:port` for the other members, if it is known to differ; else empty.
    """

    node_id: str
    address: str
    inside_address: str = ""


class Refusal(Exception):
    """A request was refused; nothing of it was stored unless the cause says it may have been.

    Args:
        cause: the one cause.
        remark: a sentence with the offending values; what the user reads.
        retry_after_ms: when a retry may succeed; None when it cannot or nothing is known.
        leader_hint: where to go instead, if known.
    """

    def __init__(
        self, cause: Cause, remark: str, *, retry_after_ms: int | None = None, leader_hint: LeaderHint | None = None
    ) -> None:
        super().__init__(remark)
        self.cause = cause
        self.remark = remark
        self.retry_after_ms = retry_after_ms
        self.leader_hint = leader_hint

    @property
    def code(self) -> int:
        """RocketMQ response code."""
        return self.cause.code

    @property
    def ext(self) -> dict[str, str]:
        """The answer's header fields: `cause`, and where known `retryAfterMs`, `leaderHint` (address), `leaderId`."""
        fields = {"cause": self.cause.slug}
        if self.retry_after_ms is not None:
            fields["retryAfterMs"] = str(self.retry_after_ms)
        if self.leader_hint is not None:
            fields["leaderHint"] = self.leader_hint.address
            fields["leaderId"] = self.leader_hint.node_id
        return fields
