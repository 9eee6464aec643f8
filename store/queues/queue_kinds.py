"""Kinds of consume queues: which one a topic has.

    plain   consumequeue/        20-byte units                               the usual case
    ext     consumequeue/ and consumequeue_ext/    where RocketMQ kept an extension
    batch   batchconsumequeue/   46-byte units                               topic attribute queue.type=BatchCQ
    light   consumequeue/        as plain; names in a record's property      enableMultiDispatch, enableLmq

`store.queues.queue_entries` makes the entries of the kinds that are not plain.

Source: apache/rocketmq `store/.../queue/BatchConsumeQueue.java`, `MultiDispatchUtils.java`, `LmqDispatch.java` (5.3.3).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ledgermq.remoting.config_key import BOOL, NOT_NEGATIVE, POSITIVE, STORE, key

TopicAttributes = Callable[[str], Mapping[str, str]]

LIGHT_PREFIX = "%LMQ%"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKinds:
    """Kinds of queues that a store keeps."""

    ORIGIN: ClassVar[str] = STORE

    ext_file_size_bytes: int = key(
        "mappedFileSizeConsumeQueueExt", POSITIVE, 48 << 20, "Bytes of a file of a consume queue's extension."
    )
    batch_file_size_bytes: int = key(
        "mapperFileSizeBatchConsumeQueue",
        POSITIVE,
        13_800_000,
        "Bytes of a file of a batch consume queue.",
        note="Rounded up to whole units of 46 bytes.",
    )
    multi_dispatch: bool = key("enableMultiDispatch", BOOL, False, "Put one message into several queues.")
    light: bool = key("enableLmq", BOOL, False, "Serve light queues.")
    light_max: int = key("maxLmqConsumeQueueNum", NOT_NEGATIVE, 20_000, "Most light queues.")
    topic_attributes: TopicAttributes | None = None
    """Attributes of a topic; empty where none are known."""

    def is_batch(self, topic: str) -> bool:
        """Return whether the queues of a topic are batch queues."""
        return self.topic_attributes is not None and self.topic_attributes(topic).get("queue.type") == "BatchCQ"


PLAIN_ONLY = QueueKinds()
