"""Kinds of consume queues: which one a topic has.

    plain   consumequeue/        20-byte units                               the usual case
    ext     consumequeue/ and consumequeue_ext/    enableConsumeQueueExt
    batch   batchconsumequeue/   46-byte units                               topic attribute queue.type=BatchCQ
    light   consumequeue/        as plain; names in a record's property      enableMultiDispatch, enableLmq

What queues of another kind than plain ones are told of a record is in `store.queues.queue_entries`.

Source: apache/rocketmq `store/.../queue/BatchConsumeQueue.java`, `MultiDispatchUtils.java`, `LmqDispatch.java` (5.3.3).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

TopicAttributes = Callable[[str], Mapping[str, str]]

LIGHT_PREFIX = "%LMQ%"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKinds:
    """Which kinds there are.

    Attributes:
        ext: enableConsumeQueueExt; an extension that is there is read in any case.
        ext_file_size_bytes: mappedFileSizeConsumeQueueExt.
        batch_file_size_bytes: mapperFileSizeBatchConsumeQueue; rounded up to whole units.
        multi_dispatch: enableMultiDispatch; one record enters several queues.
        light: enableLmq; queues named %LMQ%... have the queue id 0 only.
        light_max: maxLmqConsumeQueueNum.
        topic_attributes: of a topic; empty where none are known.
    """

    ext: bool = False
    ext_file_size_bytes: int = 48 << 20
    batch_file_size_bytes: int = 13_800_000
    multi_dispatch: bool = False
    light: bool = False
    light_max: int = 20_000
    topic_attributes: TopicAttributes | None = None

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's queues are batch queues."""
        return self.topic_attributes is not None and self.topic_attributes(topic).get("queue.type") == "BatchCQ"


PLAIN_ONLY = QueueKinds()
