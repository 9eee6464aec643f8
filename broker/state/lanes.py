"""Lanes: messages that one producer has numbered, to one queue; which of them are stored. Pure.

    key `topic@queue@producer` -> the numbers of the last request, and where in the log its state record lies

The request's messages lie directly behind its state record, each with its number in a property. So what a failover has
left of a request is read from the log itself, and the table only says where to look.
"""

from dataclasses import dataclass
from typing import Any

SEPARATOR = "@"


@dataclass(frozen=True, slots=True)
class Lane:
    """The last request of a lane.

    Attributes:
        first, last: numbers of its first and last message; all numbers of the lane below `first` are stored.
        offset: physical offset of its state record; negative in that record itself, where it is not known yet.
        time_ms: store time of that record.
    """

    first: int
    last: int
    offset: int = -1
    time_ms: int = 0

    def to_json(self) -> list[int]:
        """Return the values in the order of the attributes."""
        return [self.first, self.last, self.offset, self.time_ms]

    @classmethod
    def from_json(cls, value: Any) -> "Lane":
        """Read what `to_json` returned; raises ValueError or TypeError for anything else."""
        first, last, offset, time_ms = map(int, value)
        return cls(first, last, offset, time_ms)

    def at(self, offset: int, time_ms: int) -> "Lane":
        """Return the lane with place and time of its state record, unless it has them."""
        return self if self.offset >= 0 else Lane(self.first, self.last, offset, time_ms)


def lane_key(topic: str, queue_id: int, producer: str) -> str:
    """Return the key of a lane in the table; topics have no `@` in their names."""
    return f"{topic}{SEPARATOR}{queue_id}{SEPARATOR}{producer}"


def topic_of(key: str) -> str:
    """Return the topic of a lane."""
    return key.partition(SEPARATOR)[0]
