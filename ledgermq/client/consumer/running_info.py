"""A consumer's answer to administrators (307): its settings, queues and rates.

Source: apache/rocketmq `remoting/.../protocol/body/{ConsumerRunningInfo,ProcessQueueInfo}.java`.
"""

import asyncio
import io
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.group.subscription import Subscription
from ledgermq.remoting.codec.java_json import QueueId, queue_map, text_map
from ledgermq.remoting.route import MessageQueue

_MIB = 1024 * 1024


def running_info(
    properties: Mapping[str, str],
    subscriptions: Iterable[Subscription],
    readers: Iterable[QueueReader],
    locked: frozenset[MessageQueue],
    figures: TopicFigures,
    stacks: str | None,
) -> bytes:
    """The body of the answer: RocketMQ's ConsumerRunningInfo.

    Args:
        properties: the consumer's settings by name.
        subscriptions: its subscriptions.
        readers: the readers of its queues.
        locked: the queues whose locks it holds.
        figures: its rates by topic.
        stacks: the stacks of its tasks, if they were asked for.
    """
    subscriptions = list(subscriptions)
    queues = queue_map((QueueId(*reader.queue), queue_info(reader, reader.queue in locked)) for reader in readers)
    parts: dict[str, bytes] = {
        "mqPopTable": b"{}",
        "mqTable": queues,
        "properties": orjson.dumps(dict(properties)),
        "statusTable": orjson.dumps({one.topic: figures.to_wire(one.topic) for one in subscriptions}),
        "subscriptionSet": orjson.dumps([one.to_wire() for one in subscriptions]),
        "userConsumerInfo": b"{}",
    }
    if stacks is not None:
        parts["jstack"] = orjson.dumps(stacks)
    return text_map(sorted(parts.items()))


def queue_info(reader: QueueReader, is_locked: bool) -> dict[str, Any]:
    """RocketMQ's ProcessQueueInfo; times that are not kept are 0."""
    backlog = reader.backlog
    waiting = [*backlog.in_hand.values(), *backlog.buffer]
    return {
        "cachedMsgCount": len(waiting),
        "cachedMsgMaxOffset": waiting[-1].queue_offset if waiting else 0,
        "cachedMsgMinOffset": waiting[0].queue_offset if waiting else 0,
        "cachedMsgSizeInMiB": sum(message.record.size for message in waiting) // _MIB,
        "commitOffset": -1 if reader.committed is None else reader.committed,
        "droped": backlog.is_dropped,
        "lastConsumeTimestamp": reader.times.consumed_ms,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": reader.times.pulled_ms,
        "locked": is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def task_stacks() -> str:
    """The stacks of all tasks of this loop and of all threads, like `jstack` for Java."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    for thread, frame in sys._current_frames().items():
        text.write(f"Thread {thread}:\n{''.join(traceback.format_stack(frame))}\n")
    return text.getvalue()
