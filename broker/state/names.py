"""Names of topics and groups: what is allowed, what belongs to the system, how retry and dead-letter topics are called.

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
"""Its INHERIT permission lets a send create the topic it names."""

STATE_TOPIC = "rmq_sys_ledgermq_state"
"""Changes of topics, groups and consumer offsets ride in the log as records of this topic, queue 0."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

_SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
_OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC})
"""Where messages wait for a time or a decision."""

NOT_SENDABLE_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECKED_OUT_TOPIC, _SELF_TEST_TOPIC, _OFFSET_MOVED_TOPIC}
)
_SYSTEM_TOPICS = NOT_SENDABLE_TOPICS | {TEMPLATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}
_SYSTEM_TOPIC_PREFIX = "rmq_sys_"

DELAY_PROGRESS_GROUP = "CID_RMQ_SYS_LEDGERMQ_DELAY"
"""The group whose offsets in SCHEDULE_TOPIC say how far each delay level is delivered."""
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
    """Where messages go that a consumer of `group` could not handle and wants again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where messages go that `group` could not handle however often they came."""
    return DEAD_LETTER_PREFIX + group


def is_retry_or_dead_letter(topic: str) -> bool:
    """Whether it holds what a group did not consume."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def reply_topic(cluster: str) -> str:
    """Where replies to requests are kept."""
    return f"{cluster}_REPLY_TOPIC"


def is_system_topic(topic: str) -> bool:
    """Whether users may neither change nor delete it."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_TOPIC_PREFIX)


def system_topics(cluster: str, broker: str) -> set[str]:
    """Topics of the system on a broker."""
    return {*_SYSTEM_TOPICS, cluster, broker, reply_topic(cluster), STATE_TOPIC}


def is_internal_topic(topic: str) -> bool:
    """Whether users may neither write nor read it: what the cluster tells itself through the log."""
    return topic.startswith("rmq_sys_ledgermq_")


def check_topic_name(topic: str, length_max: int = TOPIC_LENGTH_MAX) -> None:
    """Accept a name a topic may have.

    Args:
        topic: as the client wrote it.
        length_max: characters; retry and dead-letter topics may have 255 whatever it says.

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
    """Accept a name a group may have.

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
