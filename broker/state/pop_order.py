"""Taking in order: a queue gives nothing more to a group until what it gave is acknowledged or visible again. Pure.

Source: apache/rocketmq `broker/.../offset/ConsumerOrderInfoManager.java`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

IDLE_MS: Final = 24 * 3_600_000
"""Age from which on what was given says nothing any more."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a queue gave a group last.

    Attributes:
        attempt_id: the request's; who repeats it gets the same again, empty: nobody does.
        offsets: queue offsets, rising.
        visible_ms: by queue offset, where another time than `pop_ms + invisible_ms` was set.
        counts: by queue offset, how often it was given before; only those that were.
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
        """When the first message that blocks the queue no longer does; None when nothing blocks it now."""
        for index, offset in enumerate(self.offsets):
            visible_ms = self.visible_ms.get(offset, self.pop_ms + self.invisible_ms)
            if not self.acked >> index & 1 and now_ms < visible_ms:
                return visible_ms
        return None

    @property
    def next_offset(self) -> int:
        """The first offset that is not acknowledged, or the one behind the last."""
        for index, offset in enumerate(self.offsets):
            if not self.acked >> index & 1:
                return offset
        return self.offsets[-1] + 1

    def to_json(self) -> dict[str, Any]:
        """Members as RocketMQ names them."""
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
    def from_json(cls, value: Any) -> "Given":
        """Read what `to_json` gave; raises KeyError, ValueError, TypeError or IndexError on anything else."""
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
    """Names what a group was given of a queue."""
    return f"{topic}@{group}@{queue_id}"


class Orders:
    """What every queue gave every group that takes in order."""

    def __init__(self) -> None:
        self._given: dict[str, Given] = {}
        self._unsent: dict[str, None] = {}

    def load(self, table: Mapping[str, Given]) -> None:
        """Begin with what the log has."""
        self._given = dict(table)
        self._unsent.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.load({})

    def get(self, key: str) -> Given | None:
        return self._given.get(key)

    def is_blocked(self, key: str, attempt_id: str, now_ms: int) -> bool:
        """Whether the queue gives nothing to the group now, unless the same attempt is made again."""
        given = self._given.get(key)
        if given is None or (given.attempt_id and given.attempt_id == attempt_id):
            return False
        return given.free_ms(now_ms) is not None

    def give(self, key: str, attempt_id: str, pop_ms: int, invisible_ms: int, offsets: Sequence[int]) -> Given:
        """The queue gives the group these messages; returns that, with the counts of what it gave before."""
        before = self._given.get(key)
        counts: Mapping[int, int] = {}
        if before is not None:
            if attempt_id and before.attempt_id == attempt_id:
                counts = before.counts
            else:
                again = set(before.offsets).intersection(offsets)
                counts = {offset: before.counts.get(offset, 0) + 1 for offset in sorted(again)}
        given = Given(attempt_id, pop_ms, invisible_ms, tuple(offsets), counts=counts)
        self._set(key, given)
        return given

    def ack(self, key: str, offset: int, pop_ms: int) -> int | None:
        """A message is done; returns where the group goes on, or None when this was given again since.

        Raises:
            LookupError: the queue did not give the group this message.
        """
        given = self._given.get(key)
        if given is None:
            return offset + 1
        if pop_ms != given.pop_ms:
            return None
        if offset not in given.offsets:
            raise LookupError(offset)
        given = replace(given, acked=given.acked | 1 << given.offsets.index(offset))
        self._set(key, given)
        return given.next_offset

    def set_visible(self, key: str, offset: int, pop_ms: int, visible_ms: int) -> None:
        """A message blocks until another time; nothing when it was given again since."""
        given = self._given.get(key)
        if given is not None and given.pop_ms == pop_ms:
            self._set(key, replace(given, visible_ms={**given.visible_ms, offset: visible_ms}))

    def remove(self, key: str) -> None:
        """The group was moved: what it was given blocks nothing."""
        if self._given.pop(key, None) is not None:
            self._unsent[key] = None

    def expire(self, now_ms: int) -> None:
        """Forget what was given long ago."""
        for key in [key for key, given in self._given.items() if now_ms - given.pop_ms > IDLE_MS]:
            self.remove(key)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, here as in the log."""
        for key in [key for key in self._given if key.partition("@")[0] == topic]:
            del self._given[key]
            self._unsent.pop(key, None)

    def has_changes(self) -> bool:
        """Whether the log lacks anything."""
        return bool(self._unsent)

    def take_changes(self) -> dict[str, Given | None]:
        """What the log does not have yet; None: removed."""
        changes = {key: self._given.get(key) for key in self._unsent}
        self._unsent.clear()
        return changes

    def send_again(self, keys: Iterable[str]) -> None:
        """Changes of these may not have reached the log."""
        self._unsent.update(dict.fromkeys(keys))

    def forget_group(self, group: str) -> None:
        """The group is gone, here as in the log."""
        for key in [key for key in self._given if key.split("@")[1] == group]:
            del self._given[key]
            self._unsent.pop(key, None)

    def _set(self, key: str, given: Given) -> None:
        self._given[key] = given
        self._unsent[key] = None
