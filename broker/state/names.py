"""Names of topics and groups: the rules for them, system topics, retry topics and dead-letter topics.

Source: apache/rocketmq `common/.../topic/TopicValidator.java`, `common/.../MixAll.java` (5.x).
"""

import re

from ledgermq.remoting.refusal import Cause, Refusal

TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
GROUP_LENGTH_MAX = 120

RETRY_PREFIX = "%RETRY%"
POP_RETRY_V2 = "+"
"""Divides group and topic in the newer names of POP's retry topics, which no client may send to."""
DEAD_LETTER_PREFIX = "%DLQ%"

TEMPLATE_TOPIC = "TBW102"
"""The default template: its INHERIT permission lets a send create the topic that it names."""

STATE_TOPIC = "rmq_sys_ledgermq_state"
"""Changes of topics, groups and consumer offsets are records of this topic, queue 0."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

_SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
_OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})
"""System topics in which messages wait for a time or a decision."""

NOT_SENDABLE_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECKED_OUT_TOPIC, _SELF_TEST_TOPIC, _OFFSET_MOVED_TOPIC}
)
_SYSTEM_TOPICS = NOT_SENDABLE_TOPICS | {TEMPLATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}
_SYSTEM_TOPIC_PREFIX = "rmq_sys_"

DELAY_PROGRESS_GROUP = "CID_RMQ_SYS_LEDGERMQ_DELAY"
"""The group whose offsets in SCHEDULE_TOPIC are the progress of the delay levels."""
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

_ALLOWED_TEXT = "^[%|a-zA-Z0-9_-]+$"
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")


def retry_topic(group: str) -> str:
    """Return the topic of messages that a consumer of `group` could not handle, to be delivered again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of messages that `group` could not handle after the greatest number of deliveries."""
    return DEAD_LETTER_PREFIX + group


def is_retry_or_dead_letter(topic: str) -> bool:
    """Return whether the topic is the retry or dead-letter topic of a group."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def reply_topic(cluster: str) -> str:
    """Return the topic in which replies to requests are stored."""
    return f"{cluster}_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    """Return whether users may neither change nor delete it."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_TOPIC_PREFIX)


def system_topics(cluster: str, broker: str) -> set[str]:
    """Return the system topics of a broker."""
    return {*_SYSTEM_TOPICS, cluster, broker, reply_topic(cluster), STATE_TOPIC}


def is_internal_topic(topic: str) -> bool:
    """Return whether users may neither write nor read the topic, since the cluster uses it for itself."""
    return topic.startswith("rmq_sys_ledgermq_")


def check_topic_name(topic: str, length_max: int = TOPIC_LENGTH_MAX) -> None:
    """Check the name of a topic.

    Args:
        topic: the name as the client wrote it.
        length_max: characters; retry and dead-letter topics may always have 255.

    Raises:
        Refusal: INVALID_PARAMETER, with the name and the rule it breaks.
    """
    if not topic.strip():
        raise Refusal(Cause.INVALID_PARAMETER, "The specified topic is blank.")
    if not _ALLOWED.fullmatch(topic):
        raise Refusal(
            Cause.INVALID_PARAMETER,
            f"The specified topic contains illegal characters, allowing only {_ALLOWED_TEXT}: {topic!r}",
        )
    if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        length_max = RETRY_TOPIC_LENGTH_MAX
    if len(topic) > length_max:
        raise Refusal(
            Cause.INVALID_PARAMETER,
            f"The specified topic is longer than topic max length. {topic} has {len(topic)} characters,"
            f" the limit is {length_max}",
        )


def check_group_name(group: str) -> None:
    """Check the name of a group.

    Raises:
        Refusal: INVALID_PARAMETER, with the name and the rule it breaks.
    """
    if not group.strip():
        raise Refusal(Cause.INVALID_PARAMETER, "The specified group is blank.")
    if not _ALLOWED.fullmatch(group):
        raise Refusal(
            Cause.INVALID_PARAMETER,
            f"The specified group: {group!r}, contains illegal characters, allowing only {_ALLOWED_TEXT}",
        )
    if len(group) > GROUP_LENGTH_MAX:
        raise Refusal(
            Cause.INVALID_PARAMETER,
            f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX} (it has {len(group)})",
        )
