"""How many messages of a stretch of a queue a filter takes: counted where that is cheap, else guessed from a part.

Source: apache/rocketmq `store/ConsumeQueue.java`, `store/queue/BatchConsumeQueue.java` (estimateMessageCount, 5.3.3).
"""

from store.consume_queue import ConsumeQueue
from store.queue_reader import TagsFilter

SCAN_MAX = 20_000
"""maxConsumeQueueScan: units after which the rest is guessed."""

MATCH_MAX = 5000
"""sampleCountThreshold: messages taken after which the rest is guessed."""


def estimate_count(
    queue: ConsumeQueue,
    start: int,
    end: int,
    accepts: TagsFilter | None = None,
    *,
    scan_max: int = SCAN_MAX,
    match_max: int = MATCH_MAX,
) -> int:
    """About how many of the messages `[start, end)` the filter takes; exact when few units have to be looked at.

    Offsets outside of the queue count for nothing; RocketMQ answers -1 where it has no file for them.
    """
    start, end = max(start, queue.min_offset), min(end, queue.max_offset)
    if accepts is None or start >= end:
        return max(end - start, 0)
    matched = looked_at = 0
    for units, (first, behind, unit) in enumerate(queue.records_from(start, end - start), 1):
        if first >= end:
            break
        messages = min(behind, end) - max(first, start)
        looked_at += messages
        code = queue.tags_code(unit)
        if code is None or accepts(code):
            matched += messages
        if units >= scan_max or matched > match_max:
            return matched * (end - start) // looked_at
    return matched
