"""Orderly POP: a queue is blocked for a group until the messages it gave are acknowledged or visible again. Pure.

Source: apache/rocketmq `broker/.../offset/ConsumerOrderInfoManager.java`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

IDLE_MS: Final = 24 * 3_600_000
"""Age in ms after which an order is removed."""


@dataclass(frozen=True, slots=True)
class OrderedBatch:
    """The messages of a queue that a group took last, in order.

    Attributes:
        attempt_id: the attempt id of the request; a repetition of the attempt is not blocked, unless the id is empty.
        offsets: queue offsets, rising.
        visible_ms: by queue offset, the times that differ from `pop_ms + invisible_ms`, ms since the epoch.
        counts: by queue offset, how often a message was delivered before, if it was.
        acked: bit i: message i is acknowledged.
    """

    attempt_id: str
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    visible_ms: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    acked: int = 0

    def free_ms(self, now_ms: int) -> int | None:
        """Return when the first blocking message is visible again, ms since the epoch; None if the queue is free."""
        for index, offset in enumerate(self.offsets):
            visible_ms = self.visible_ms.get(offset, self.pop_ms + self.invisible_ms)
            if not self.acked >> index & 1 and now_ms < visible_ms:
                return visible_ms
        return None

    @property
    def next_offset(self) -> int:
        """The first offset that is not acknowledged; if all are, the one behind the last."""
        for index, offset in enumerate(self.offsets):
            if not self.acked >> index & 1:
                return offset
        return self.offsets[-1] + 1

    def to_json(self) -> dict[str, Any]:
        """Return JSON members with RocketMQ's names."""
        first = self.offsets[0]
        return {
            "a": self.attempt_id,
            "popTime": self.pop_ms,
            "i": self.invisible_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])],
            "ot": self.visible_ms,
            "oc": self.counts,
            "cm": self.acked,
        }

    @classmethod
    def from_json(cls, value: Any) -> "OrderedBatch":
        """Read what `to_json` returned; raises KeyError, ValueError, TypeError or IndexError for anything else."""
        first, *distances = map(int, value["o"])
        return cls(
            str(value["a"]),
            int(value["popTime"]),
            int(value["i"]),
            (first, *(first + distance for distance in distances)),
            {int(offset): int(time) for offset, time in value["ot"].items()},
            {int(offset): int(count) for offset, count in value["oc"].items()},
            int(value["cm"]),
        )


def order_key(topic: str, group: str, queue_id: int) -> str:
    """Return the key of the order of a group at a queue."""
    return f"{topic}@{group}@{queue_id}"


class Orders:
    """The orders of all groups at all queues."""

    def __init__(self) -> None:
        self._batches: dict[str, OrderedBatch] = {}
        self._unsent: dict[str, None] = {}

    def load(self, table: Mapping[str, OrderedBatch]) -> None:
        """Replace the table by the log's."""
        self._batches = dict(table)
        self._unsent.clear()

    def clear(self) -> None:
        """Remove everything."""
        self.load({})

    def get(self, key: str) -> OrderedBatch | None:
        return self._batches.get(key)

    def is_blocked(self, key: str, attempt_id: str, now_ms: int) -> bool:
        """Return whether the queue is blocked for the group; never for a repetition of the last attempt."""
        batch = self._batches.get(key)
        if batch is None or (batch.attempt_id and batch.attempt_id == attempt_id):
            return False
        return batch.free_ms(now_ms) is not None

    def give(self, key: str, attempt_id: str, pop_ms: int, invisible_ms: int, offsets: Sequence[int]) -> OrderedBatch:
        """Record that the queue gives the group these messages; return the order, with earlier deliveries counted."""
        before = self._batches.get(key)
        counts: Mapping[int, int] = {}
        if before is not None:
            if attempt_id and before.attempt_id == attempt_id:
                counts = before.counts
            else:
                again = set(before.offsets).intersection(offsets)
                counts = {offset: before.counts.get(offset, 0) + 1 for offset in sorted(again)}
        batch = OrderedBatch(attempt_id, pop_ms, invisible_ms, tuple(offsets), counts=counts)
        self._set(key, batch)
        return batch

    def ack(self, key: str, offset: int, pop_ms: int) -> int | None:
        """Acknowledge a message; return the group's next queue offset, or None if it was delivered again since.

        Raises:
            LookupError: the queue did not give the group this message.
        """
        batch = self._batches.get(key)
        if batch is None:
            return offset + 1
        if pop_ms != batch.pop_ms:
            return None
        if offset not in batch.offsets:
            raise LookupError(offset)
        batch = replace(batch, acked=batch.acked | 1 << batch.offsets.index(offset))
        self._set(key, batch)
        return batch.next_offset

    def set_visible(self, key: str, offset: int, pop_ms: int, visible_ms: int) -> None:
        """Set when a message is visible again; does nothing when it was delivered again since."""
        batch = self._batches.get(key)
        if batch is not None and batch.pop_ms == pop_ms:
            self._set(key, replace(batch, visible_ms={**batch.visible_ms, offset: visible_ms}))

    def remove(self, key: str) -> None:
        """Remove an order, since the group's offset was reset."""
        if self._batches.pop(key, None) is not None:
            self._unsent[key] = None

    def clock_is(self, now_ms: int) -> None:
        """As of `Checkpoints`: what a clock gave that was ahead is visible within its invisible time from now on."""
        for key, batch in self._batches.items():
            if batch.pop_ms > now_ms:
                latest_ms, usual_ms = now_ms + batch.invisible_ms, batch.pop_ms + batch.invisible_ms
                visible = {offset: min(batch.visible_ms.get(offset, usual_ms), latest_ms) for offset in batch.offsets}
                if visible != batch.visible_ms:
                    self._set(key, replace(batch, visible_ms=visible))

    def expire(self, now_ms: int) -> None:
        """Remove orders above the greatest age."""
        for key in [key for key, batch in self._batches.items() if now_ms - batch.pop_ms > IDLE_MS]:
            self.remove(key)

    def forget_topic(self, topic: str) -> None:
        """Remove the topic's orders, which the log's tables have dropped, too."""
        for key in [key for key in self._batches if key.partition("@")[0] == topic]:
            del self._batches[key]
            self._unsent.pop(key, None)

    def has_changes(self) -> bool:
        """Return whether there are changes that the log does not have."""
        return bool(self._unsent)

    def take_changes(self) -> dict[str, OrderedBatch | None]:
        """Return the changes that the log does not have, by key; None: removed."""
        changes = {key: self._batches.get(key) for key in self._unsent}
        self._unsent.clear()
        return changes

    def send_again(self, keys: Iterable[str]) -> None:
        """Count these keys as changed again, since the log may not have them."""
        self._unsent.update(dict.fromkeys(keys))

    def forget_group(self, group: str) -> None:
        """Remove the group's orders, which the log's tables have dropped, too."""
        for key in [key for key in self._batches if key.split("@")[1] == group]:
            del self._batches[key]
            self._unsent.pop(key, None)

    def _set(self, key: str, batch: OrderedBatch) -> None:
        self._batches[key] = batch
        self._unsent[key] = None
