"""Queue table: from (topic, queue id) to its consume queue, by one look-up.

    consumequeue/<topic>/<queue id>/<20 digits>           batchconsumequeue/ and consumequeue_ext/ alike

Source: apache/rocketmq `store/.../queue/ConsumeQueueStore.java` (5.3.3).
"""

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from ledgermq.message.batch_unit import BATCH_UNIT_SIZE
from ledgermq.message.queue_unit import UNIT_SIZE
from store.errors import InvalidTopicError, StoreFormatError
from store.files.folders import open_folder
from store.files.trash import Trash
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue
from store.queues.ext_queue import ExtQueue
from store.queues.held_units import HeldUnits, Holder
from store.queues.queue_ends import EndsFile, QueueEnds, changed_at
from store.queues.queue_file import QueueFile
from store.queues.queue_kinds import LIGHT_PREFIX, PLAIN_ONLY, QueueKinds
from store.queues.queue_mapping import MappedQueues

QueueStarts = dict[str, dict[int, int]]
"""Queue offsets by topic and queue id."""

QUEUE_FILE_SIZE_BYTES = 6_000_000
TOPIC_LENGTH_MAX = 255

_ROWS_AT_ONCE = 256
"""Queues of which the bounds are taken while the interpreter is held, some tenths of a millisecond."""


class QueueTable:
    """All consume queues of a store. Owned by the loop's thread.

    Args:
        directory: `consumequeue`; made when missing.
        file_size_bytes: of each queue file; rounded up to whole units, as RocketMQ does.
        kinds: kinds of queues to keep; batch queues and extensions have their own directories beside `directory`.
        hold_from: number of queues with mapped files from which on further plain ones hold their units in memory, for
            a caller that writes them (`ConsumeQueue.write_held`); None: none does.

    Attributes:
        by_key: each queue twice, by its topic as text and as bytes; for reading only.
        has_kinds: some queues may not be plain, so that units are put by `store.queues.queue_entries`.
        light_count: number of queues whose names begin with %LMQ%.
        on_deleted: called with each topic whose queues are dropped.
        removals: number of queues dropped so far; an earlier checkpoint still counts their units.
        changed: queues whose `max_offset` has changed since `take_changed` counted them; the caller that changes it
            adds the queue.
        removed_offset: physical offset of the last record by which queues were removed; -1: none that counts.
        unit_count: sum of `max_offset` of all queues, each as it was last counted.
        counted: queues that `take_changed` counted; the checkpointer empties it. Unused if some queues are not plain.
        ends_file: the file of the queues' bounds.
        cleaned_to: the min offset of the log at which the min offsets of all queues were set.
        held: the units held in memory.
    """

    def __init__(
        self,
        directory: Path,
        file_size_bytes: int = QUEUE_FILE_SIZE_BYTES,
        kinds: QueueKinds = PLAIN_ONLY,
        hold_from: int | None = None,
    ) -> None:
        self.directory = directory
        self.kinds = kinds
        self.has_kinds = kinds.multi_dispatch
        self.light_count = 0
        self._batch_directory = directory.with_name("batchconsumequeue")
        self._ext_directory = directory.with_name("consumequeue_ext")
        self._has_ext = self._ext_directory.is_dir()
        self._root = str(directory)
        self._file_units = -(-file_size_bytes // UNIT_SIZE)
        self._mapped = MappedQueues()
        self.held = HeldUnits(self._mapped, hold_from or 0)
        self._memory = None if hold_from is None else self.held
        self.by_key: dict[tuple[str | bytes, int], ConsumeQueue] = {}
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.on_deleted: list[Callable[[str], None]] = []
        self.removals = 0
        self.removed_offset = -1
        self.changed: dict[ConsumeQueue, None] = {}
        self.unit_count = 0
        self.counted: list[ConsumeQueue] = []
        self.ends_file = EndsFile(directory.parent)
        self.cleaned_to = 0
        self._watched: set[str] = set()
        self._trash = Trash(directory.parent)
        open_folder(directory)
        self._trash.empty()

    def load(self) -> None:
        """Open every queue on disk; the caller then calls `ConsumeQueue.recover` of each.

        Raises:
            StoreFormatError: a folder or file does not belong to a queue.
        """
        for topic, queue_id in _folders(self.directory):
            self._add(topic, queue_id, is_batch=False).load()
        if self._batch_directory.is_dir():
            for topic, queue_id in _folders(self._batch_directory):
                self._add(topic, queue_id, is_batch=True).load()

    def load_known(self, ends: QueueEnds) -> bool:
        """Open queues whose bounds are known, without a look at their files.

        Queues whose folders were changed since are loaded and recovered up to the dispatched offset of `ends`; after a
        clean stop those of further topics, too. They are in `changed` afterwards, the others are not. After a kill, all
        units of further queues belong to records behind that offset: the queues are made when these are dispatched.

        Returns:
            False if the queues have not as many units as `ends` says; then no queue is open.

        Raises:
            StoreFormatError: a folder or file does not belong to a queue.
        """
        if ends.file_units != self._file_units or (self._memory is None and any(row[-1] for row in ends.queues)):
            return False
        topics = set()
        for topic, queue_id, min_offset, max_offset, changed, held in ends.queues:
            queue = self._add(topic, queue_id, is_batch=False)
            topics.add(topic)
            if len(held) == max_offset * UNIT_SIZE:
                changed = -1  # its file has nothing that is not held
            elif changed_at(f"{self._root}/{topic}/{queue_id}") != changed:
                continue
            queue.load_known(min_offset, max_offset, changed, held)
            queue.counted_units = max_offset
            del self.changed[queue]
        if not ends.boot:
            for topic, queue_id in _folders(self.directory, without=topics):
                self._add(topic, queue_id, is_batch=False)
        self.unit_count = sum(queue.counted_units for queue in self)
        for queue in self.changed:
            queue.load()
            queue.recover(ends.dispatched_offset, scan=False)
        if self.unit_count + sum(queue.max_offset for queue in self.changed) == ends.unit_count:
            return True
        self.close()
        for table in (self.by_key, self._by_topic, self.changed, self.held.queues):
            table.clear()
        self.light_count = self.unit_count = self.held.count = 0
        return False

    def ends(
        self,
        dispatched_offset: int,
        queues: Iterable[ConsumeQueue] | None = None,
        held: Mapping[Holder, bytes] = MappingProxyType({}),
    ) -> QueueEnds:
        """Return the bounds of these queues (None: of all) as they were last counted, for `load_known`.

        May be called in any thread. The caller asks for them only while all queues are plain. `held` are units which
        the files of their queues need not have.
        """
        if queues is None:
            queues = [queue for (topic, _), queue in list(self.by_key.items()) if isinstance(topic, str)]
        rows = []
        for number, queue in enumerate(queues):
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
                time.sleep(0)  # let the loop's thread go on
            bounds = queue.min_offset, queue.counted_units
            rows.append((queue.topic, queue.queue_id, *bounds, queue.folder_changed, held.get(queue, b"")))
        return QueueEnds(self.cleaned_to, dispatched_offset, self.unit_count, self._file_units, tuple(rows))

    def get(self, topic: bytes | str, queue_id: int) -> ConsumeQueue:
        """Return the queue, which is made if it is missing; on disk it is made with its first unit.

        Raises:
            InvalidTopicError: the topic cannot name a folder, or the queue id is negative.
        """
        queue = self.by_key.get((topic, queue_id))
        return queue if queue is not None else self._add(topic, queue_id, is_batch=None)

    def find(self, topic: bytes | str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None."""
        return self.by_key.get((topic, queue_id))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return (queue for queues in self._by_topic.values() for queue in queues.values())

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, in order of their ids."""
        return [queue for _, queue in sorted(self._by_topic.get(topic, {}).items())]

    def watch(self, topic: str) -> None:
        """Set `is_watched` on all present and future queues of a topic."""
        self._watched.add(topic)
        for queue in self.of_topic(topic):
            queue.is_watched = True

    def starts(self, physical_offset: int) -> QueueStarts:
        """Return for each queue the offset of its first record at or past `physical_offset`."""
        starts: QueueStarts = {}
        for queue in self:
            queue_ids = starts.setdefault(queue.topic, {})
            queue_ids[queue.queue_id] = queue.bisect(lambda unit: unit[0] < physical_offset)
        return starts

    def restart(self, starts: QueueStarts) -> None:
        """Empty all queues; each continues with its queue offset in `starts`, or with 0 if it is not named there.

        Raises:
            InvalidTopicError, StoreFormatError, DiskFullError, DiskFailedError: only some of the queues are restarted.
        """
        self.ends_file.invalidate()
        self.removed_offset = -1
        for topic, queue_id in _folders(self.directory):
            if self.find(topic, queue_id) is None:  # see `load_known`
                self._trash.take(self.directory / topic / str(queue_id))
        for topic, queue_ids in starts.items():
            for queue_id in queue_ids:
                self.get(topic, queue_id)
        for queue in self:
            self.changed[queue] = None
            queue.restart(starts.get(queue.topic, {}).get(queue.queue_id, 0))

    def next_starts(self) -> QueueStarts:
        """Return for each queue its max offset, for `restart`."""
        starts: QueueStarts = {}
        for queue in self:
            starts.setdefault(queue.topic, {})[queue.queue_id] = queue.max_offset
        return starts

    def take_changed(self, limit: int | None = None) -> list[QueueFile]:
        """Count the units of at most `limit` changed queues; return their files that are to be synced."""
        files: list[QueueFile] = []
        changed = self.changed
        for _ in range(len(changed) if limit is None else min(limit, len(changed))):
            queue, _ = changed.popitem()
            self.unit_count += queue.max_offset - queue.counted_units
            queue.counted_units = queue.max_offset
            files += queue.take_unflushed()
            if not self.has_kinds:
                self.counted.append(queue)
        return files

    def cleaned(self, log_min_offset: int) -> None:
        """Note that the min offsets of all queues were set by this min offset of the log."""
        self.ends_file.invalidate()
        self.cleaned_to = log_min_offset

    def cut_at(self, physical_offset: int) -> None:
        """Cut every queue, see `ConsumeQueue.cut_at`; a queue that loses all its messages stays, empty.

        Raises:
            DiskFailedError: only some of the queues are cut.
        """
        self.ends_file.invalidate()
        self.removed_offset = min(self.removed_offset, physical_offset - 1)
        for queue in self:
            self.changed[queue] = None
            queue.cut_at(physical_offset)

    def delete(self, queue: ConsumeQueue) -> None:
        """Drop one queue with its files and its folder.

        Raises:
            DiskFailedError: the folder cannot be removed; the queue stays.
        """
        self.ends_file.invalidate()
        for root in self._roots:
            folder = root / queue.topic / str(queue.queue_id)
            self._trash.take(folder)
            with contextlib.suppress(OSError):  # the topic has other queues
                folder.parent.rmdir()
        self._remove(queue)

    def delete_topic(self, topic: str, removed_offset: int = -1) -> None:
        """Drop the queues of a topic with their files; the topic's records stay in the log.

        Args:
            topic: its name.
            removed_offset: physical offset of the record that removes the topic; -1 if the log cannot lose that.

        Raises:
            DiskFailedError: the folder cannot be removed; the queues stay.
        """
        self.ends_file.invalidate()
        self.removed_offset = max(self.removed_offset, removed_offset)
        for root in self._roots if topic_fault(topic) is None else ():
            self._trash.take(root / topic)
        for queue in self.of_topic(topic):
            self._remove(queue)
        for tell in self.on_deleted:
            tell(topic)

    def close(self) -> None:
        """Unmap all files."""
        for queue in self:
            queue.close()

    @property
    def roots(self) -> list[Path]:
        """Return the existing directories of queues."""
        return [root for root in self._roots if root.is_dir()]

    def _remove(self, queue: ConsumeQueue) -> None:
        queue.clear()
        queue.is_removed = True
        self.removals += 1
        self.unit_count -= queue.counted_units
        queue.counted_units = 0
        self.changed.pop(queue, None)
        self.light_count -= queue.topic.startswith(LIGHT_PREFIX)
        del self.by_key[queue.topic, queue.queue_id], self.by_key[queue.topic_bytes, queue.queue_id]
        of_topic = self._by_topic[queue.topic]
        del of_topic[queue.queue_id]
        if not of_topic:
            del self._by_topic[queue.topic]

    @property
    def _roots(self) -> tuple[Path, Path, Path]:
        return self.directory, self._batch_directory, self._ext_directory

    def _add(self, topic: bytes | str, queue_id: int, *, is_batch: bool | None) -> ConsumeQueue:
        try:
            text = topic.decode() if isinstance(topic, bytes) else topic
        except UnicodeDecodeError as error:
            raise InvalidTopicError(topic, "is not UTF-8") from error
        of_topic = self._by_topic.get(text, {})
        fault = None if of_topic else topic_fault(text)
        if fault is not None or queue_id < 0:
            raise InvalidTopicError(topic, fault or "has a negative queue id")
        sibling = next(iter(of_topic.values()), None)
        if sibling is not None:
            text = sibling.topic
        queue = self._make(text, queue_id, is_batch=self.kinds.is_batch(text) if is_batch is None else is_batch)
        if sibling is not None:
            queue.topic_bytes = sibling.topic_bytes  # one object for all queues of a topic
        queue.is_watched = text in self._watched
        self.by_key[text, queue_id] = self.by_key[queue.topic_bytes, queue_id] = queue
        self._by_topic[text] = of_topic
        of_topic[queue_id] = queue
        self.changed[queue] = None
        self.light_count += text.startswith(LIGHT_PREFIX)
        return queue

    def _make(self, topic: str, queue_id: int, *, is_batch: bool) -> ConsumeQueue:
        folder = f"{topic}/{queue_id}"
        if is_batch:
            self._has_a_kind()
            units = -(-self.kinds.batch_file_size_bytes // BATCH_UNIT_SIZE)
            return BatchQueue(topic, queue_id, self._batch_directory / folder, units, self._mapped)
        if self._has_ext and (extensions := self._ext_directory / folder).is_dir():
            self._has_a_kind()
            file_bytes = self.kinds.ext_file_size_bytes
            directory = self.directory / folder
            return ExtQueue(topic, queue_id, directory, self._file_units, extensions, file_bytes, self._mapped)
        return ConsumeQueue(topic, queue_id, f"{self._root}/{folder}", self._file_units, self._mapped, self._memory)

    def _has_a_kind(self) -> None:
        """Note that a queue is not plain: the file of the bounds tells nothing of such queues."""
        self.has_kinds = True
        self.ends_file.invalidate()
        self.counted.clear()


def _folders(root: Path, without: Container[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of each queue's folder, but for those of some topics.

    Raises:
        StoreFormatError: a folder or file does not belong to a queue.
    """
    for topic, is_folder in _entries(str(root)):
        if topic in without:
            continue
        fault = topic_fault(topic) if is_folder else "is not a folder"
        if fault is not None:
            raise StoreFormatError(root / topic, fault)
        for name, is_queue in _entries(f"{root}/{topic}"):
            if not (is_queue and name.isascii() and name.isdigit()):
                raise StoreFormatError(root / topic / name, "is not a folder named by a queue id")
            yield topic, int(name)


def _entries(folder: str) -> list[tuple[str, bool]]:
    """Return each entry's name and whether it is a folder, sorted."""
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries)


def topic_fault(topic: str) -> str | None:
    """Return why a topic is not valid as the name of a folder, or None."""
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not 0 < length <= TOPIC_LENGTH_MAX:
        return f"is empty or longer than {TOPIC_LENGTH_MAX} bytes"
    if "/" in topic or "\0" in topic or topic in {".", ".."}:
        return "names another folder"
    return None
