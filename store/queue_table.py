"""Queue table: from (topic, queue id) to its consume queue, by one look-up.

    consumequeue/<topic>/<queue id>/<20 digits>

Source: apache/rocketmq `store/.../queue/ConsumeQueueStore.java` (5.3.3).
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ledgermq.message.queue_unit import UNIT_SIZE
from store.consume_queue import ConsumeQueue
from store.errors import InvalidTopicError, StoreFormatError

QueueStarts = dict[str, dict[int, int]]
"""By topic and queue id, a queue offset."""

QUEUE_FILE_SIZE_BYTES = 6_000_000
TOPIC_LENGTH_MAX = 255


class QueueTable:
    """All consume queues of a store. Owned by the loop's thread.

    Args:
        directory: `consumequeue`; made when missing.
        file_size_bytes: of each queue file; rounded up to whole units, as RocketMQ does.

    Attributes:
        by_key: each queue twice, by its topic as text and as bytes; to be read only.
    """

    def __init__(self, directory: Path, file_size_bytes: int = QUEUE_FILE_SIZE_BYTES) -> None:
        self.directory = directory
        self._file_units = -(-file_size_bytes // UNIT_SIZE)
        self.by_key: dict[tuple[str | bytes, int], ConsumeQueue] = {}
        self._watched: set[str] = set()
        directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> None:
        """Open every queue on disk; `ConsumeQueue.recover` follows.

        Raises:
            StoreFormatError: a folder or file that is none of a queue's.
        """
        for topic_directory in sorted(self.directory.iterdir()):
            fault = _topic_fault(topic_directory.name) if topic_directory.is_dir() else "is not a folder"
            if fault is not None:
                raise StoreFormatError(topic_directory, fault)
            for directory in sorted(topic_directory.iterdir()):
                if not (directory.is_dir() and directory.name.isascii() and directory.name.isdigit()):
                    raise StoreFormatError(directory, "is not a folder named by a queue id")
                self.get(topic_directory.name, int(directory.name)).load()

    def get(self, topic: bytes | str, queue_id: int) -> ConsumeQueue:
        """The queue, made when missing (on disk only with its first unit).

        Raises:
            InvalidTopicError: the topic cannot name a folder, or the queue id is negative.
        """
        queue = self.by_key.get((topic, queue_id))
        return queue if queue is not None else self._add(topic, queue_id)

    def find(self, topic: bytes | str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it is there."""
        return self.by_key.get((topic, queue_id))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return (queue for (topic, _), queue in self.by_key.items() if isinstance(topic, str))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """The queues of one topic, by id."""
        return sorted((queue for queue in self if queue.topic == topic), key=lambda queue: queue.queue_id)

    def watch(self, topic: str) -> None:
        """Set `is_watched` on this topic's queues, those to come included."""
        self._watched.add(topic)
        for queue in self.of_topic(topic):
            queue.is_watched = True

    def starts(self, physical_offset: int) -> QueueStarts:
        """For each queue its first unit at or past `physical_offset`: where it begins in a log that begins there."""
        starts: QueueStarts = {}
        for queue in self:
            queue_ids = starts.setdefault(queue.topic, {})
            queue_ids[queue.queue_id] = queue.bisect(lambda unit: unit[0] < physical_offset)
        return starts

    def restart(self, starts: QueueStarts) -> None:
        """Empty all queues; each goes on with the number in `starts`, or its own next one.

        Raises:
            InvalidTopicError, DiskFullError, DiskFailedError: some queues are restarted, some are not.
        """
        for topic, queue_ids in starts.items():
            for queue_id in queue_ids:
                self.get(topic, queue_id)
        for queue in self:
            queue.restart(starts.get(queue.topic, {}).get(queue.queue_id, queue.max_offset))

    def delete(self, queue: ConsumeQueue) -> None:
        """Drop one queue, its files and its folder."""
        queue.clear()
        del self.by_key[queue.topic, queue.queue_id], self.by_key[queue.topic_bytes, queue.queue_id]
        folder = self.directory / queue.topic / str(queue.queue_id)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other queues of the topic are there
            folder.parent.rmdir()

    def delete_topic(self, topic: str) -> None:
        """Drop the queues of a topic and their files; its records stay in the log."""
        for queue in self.of_topic(topic):
            queue.clear()
            del self.by_key[topic, queue.queue_id], self.by_key[queue.topic_bytes, queue.queue_id]
        if _topic_fault(topic) is None and (self.directory / topic).exists():
            shutil.rmtree(self.directory / topic)

    def close(self) -> None:
        """Unmap all files."""
        for queue in self:
            queue.close()

    def _add(self, topic: bytes | str, queue_id: int) -> ConsumeQueue:
        try:
            text = topic.decode() if isinstance(topic, bytes) else topic
        except UnicodeDecodeError as error:
            raise InvalidTopicError(topic, "is not UTF-8") from error
        fault = _topic_fault(text) or ("has a negative queue id" if queue_id < 0 else None)
        if fault is not None:
            raise InvalidTopicError(topic, fault)
        queue = ConsumeQueue(text, queue_id, self.directory / text / str(queue_id), self._file_units)
        queue.is_watched = text in self._watched
        self.by_key[text, queue_id] = self.by_key[queue.topic_bytes, queue_id] = queue
        return queue


def _topic_fault(topic: str) -> str | None:
    """Why a topic cannot name a folder, or None."""
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not 0 < length <= TOPIC_LENGTH_MAX:
        return f"is empty or longer than {TOPIC_LENGTH_MAX} bytes"
    if "/" in topic or "\0" in topic or topic in {".", ".."}:
        return "names another folder"
    return None
