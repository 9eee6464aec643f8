"""Checkpoints: messages that POP has given and that are not acknowledged yet. Pure: no I/O, the time is an argument.

    add --> open --ack of every message--> closed
              '-- due (pop time + invisible time): the caller delivers the open messages again --> closed

`take_changes` returns what the log does not have yet, as absolute values; a checkpoint that was added and closed in
between is not among them.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Checkpoint(NamedTuple):
    """Messages of one queue that were taken together.

    Attributes:
        topic: the topic of the queue; a retry topic for messages that were revived.
        start: queue offset at which the search for them began.
        pop_ms: when they were taken, ms since the epoch.
        offsets: their queue offsets, rising.
        acked: bit i: message i is acknowledged.
    """

    topic: str
    group: str
    queue_id: int
    start: int
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    acked: int = 0

    @property
    def key(self) -> str:
        return checkpoint_key(self.topic, self.group, self.queue_id, self.start, self.pop_ms)

    @property
    def due_ms(self) -> int:
        """When the open messages are delivered again, ms since the epoch."""
        return self.pop_ms + self.invisible_ms

    @property
    def open_offsets(self) -> list[int]:
        """Queue offsets of the messages that are not acknowledged."""
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    @property
    def open_count(self) -> int:
        """Number of messages that are not acknowledged."""
        return len(self.offsets) - self.acked.bit_count()

    def to_json(self) -> list[Any]:
        """Return the members that are not part of the key."""
        return [self.invisible_ms, self.acked, [offset - self.start for offset in self.offsets]]

    @classmethod
    def from_json(cls, key: str, value: Any) -> "Checkpoint":
        """Read what `to_json` returned; raises ValueError or TypeError for anything else."""
        topic, group, queue_id, start, pop_ms = key.split("@")
        invisible_ms, acked, distances = value
        offsets = tuple(int(start) + int(distance) for distance in distances)
        return cls(topic, group, int(queue_id), int(start), int(pop_ms), int(invisible_ms), offsets, int(acked))


def checkpoint_key(topic: str, group: str, queue_id: int, start: int, pop_ms: int) -> str:
    """Return the key of a checkpoint; none of its parts contains `@`."""
    return f"{topic}@{group}@{queue_id}@{start}@{pop_ms}"


class Checkpoints:
    """All open checkpoints."""

    def __init__(self) -> None:
        self._open: dict[str, Checkpoint] = {}
        self._due: list[tuple[int, str]] = []
        self._sooner: dict[str, int] = {}  # when those are due that a clock gave that was ahead, by key
        self._unsent: dict[str, None] = {}
        self._in_log: set[str] = set()  # keys that the log may have
        self._counts: dict[tuple[str, str, int], int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def load(self, table: Mapping[str, Checkpoint]) -> None:
        """Replace the table by the log's."""
        self._open, self._in_log = {}, set(table)
        self._counts.clear()
        self._sooner.clear()
        for key, checkpoint in table.items():
            self._set(key, checkpoint)
        self._unsent.clear()
        self._due = [(checkpoint.due_ms, key) for key, checkpoint in table.items()]
        heapq.heapify(self._due)

    def clear(self) -> None:
        """Remove everything."""
        self.load({})

    def clock_is(self, now_ms: int) -> None:
        """Another clock counts from now on, or it was set back: what it has not reached yet was given by one ahead.

        Such messages are due within their invisible time from now on. The log keeps the checkpoint as it is, so that
        the next clock judges by the time that was asked for.
        """
        for key, checkpoint in self._open.items():
            due_ms = now_ms + checkpoint.invisible_ms
            if due_ms < self._due_ms(key, checkpoint):
                self._sooner[key] = due_ms
                heapq.heappush(self._due, (due_ms, key))

    def _due_ms(self, key: str, checkpoint: Checkpoint) -> int:
        return self._sooner.get(key, checkpoint.due_ms)

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; open messages of an earlier one with the same key stay open in it."""
        key = checkpoint.key
        before = self._open.get(key)
        if before is not None:
            offsets = tuple(sorted({*before.open_offsets, *checkpoint.offsets}))
            checkpoint = checkpoint._replace(offsets=offsets, acked=0)
        self._set(key, checkpoint)
        heapq.heappush(self._due, (checkpoint.due_ms, key))

    def ack(self, key: str, offset: int) -> bool:
        """Acknowledge the message at a queue offset; return False if it is not open."""
        checkpoint = self._open.get(key)
        if checkpoint is None:
            return False
        offsets = checkpoint.offsets
        index = offset - offsets[0]  # its index if there are no gaps
        if not 0 <= index < len(offsets) or offsets[index] != offset:
            if offset not in offsets:
                return False
            index = offsets.index(offset)
        return self._acknowledge(key, checkpoint, 1 << index) > 0

    def ack_all(self, key: str, bits: int) -> int:
        """Acknowledge the messages at `start + i` for each bit i; return how many of them were open."""
        checkpoint = self._open.get(key)
        if checkpoint is None:
            return 0
        offsets, start = checkpoint.offsets, checkpoint.start
        if start <= offsets[0] and offsets[-1] - offsets[0] == len(offsets) - 1:
            mine = bits >> (offsets[0] - start) & ((1 << len(offsets)) - 1)
        else:
            places = enumerate(offsets)
            mine = sum(1 << index for index, offset in places if offset >= start and bits >> (offset - start) & 1)
        return self._acknowledge(key, checkpoint, mine)

    def _acknowledge(self, key: str, checkpoint: Checkpoint, bits: int) -> int:
        bits &= ~checkpoint.acked
        if not bits:
            return 0
        acked = checkpoint.acked | bits
        self._count(checkpoint, -bits.bit_count())
        if acked == (1 << len(checkpoint.offsets)) - 1:
            del self._open[key]
            self._sooner.pop(key, None)
        else:
            self._open[key] = Checkpoint._make((*checkpoint[:-1], acked))
        self._unsent[key] = None
        return bits.bit_count()

    def open_count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages of a queue that the group has taken and not acknowledged."""
        return self._counts.get((topic, group, queue_id), 0)

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest checkpoint is due, ms since the epoch; None without checkpoints."""
        due = self._due
        while due and not self._is_due_then(*due[0]):
            heapq.heappop(due)
        return due[0][0] if due else None

    def take_due(self, now_ms: int, count_max: int) -> list[Checkpoint]:
        """Close and return due checkpoints, the oldest first; the caller revives their messages or puts them back."""
        taken: list[Checkpoint] = []
        while len(taken) < count_max and (due_ms := self.next_due_ms) is not None and due_ms <= now_ms:
            _, key = heapq.heappop(self._due)
            taken.append(self._open[key])
            self._set(key, None)
        return taken

    def put_back(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Open a checkpoint of `take_due` again, due at `due_ms`: its messages could not be revived."""
        invisible_ms = due_ms - checkpoint.pop_ms
        self.add(checkpoint._replace(invisible_ms=invisible_ms))

    def forget_topic(self, topic: str) -> None:
        """Remove the topic's checkpoints, which the log's tables have dropped, too."""
        self._forget([key for key in self._open if key.partition("@")[0] == topic])

    def forget_group(self, group: str) -> None:
        """Remove the group's checkpoints, which the log's tables have dropped, too."""
        self._forget([key for key in self._open if key.split("@")[1] == group])

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            self._set(key, None)
            self._unsent.pop(key, None)
            self._in_log.discard(key)

    def has_changes(self) -> bool:
        """Return whether there are changes that the log does not have."""
        return bool(self._unsent)

    def take_changes(self) -> dict[str, Checkpoint | None]:
        """Return the changes that the log does not have, by key; None: closed."""
        changes = {key: self._open.get(key) for key in self._unsent if key in self._open or key in self._in_log}
        self._unsent.clear()
        self._in_log.update(changes)
        self._in_log.difference_update(key for key, value in changes.items() if value is None)
        return changes

    def send_again(self, keys: Iterable[str]) -> None:
        """Count these keys as changed again, since the log may not have them."""
        for key in keys:
            self._in_log.add(key)
            self._unsent[key] = None

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._open.values())

    def _set(self, key: str, checkpoint: Checkpoint | None) -> None:
        before = self._open.pop(key, None)
        self._sooner.pop(key, None)
        if before is not None:
            self._count(before, -before.open_count)
        if checkpoint is not None:
            self._count(checkpoint, checkpoint.open_count)
            self._open[key] = checkpoint
        self._unsent[key] = None

    def _count(self, checkpoint: Checkpoint, more: int) -> None:
        place = checkpoint[:3]  # topic, group, queue
        count = self._counts.get(place, 0) + more
        if count:
            self._counts[place] = count
        else:
            self._counts.pop(place, None)

    def _is_due_then(self, due_ms: int, key: str) -> bool:
        checkpoint = self._open.get(key)
        return checkpoint is not None and self._due_ms(key, checkpoint) == due_ms
