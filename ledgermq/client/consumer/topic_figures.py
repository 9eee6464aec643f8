"""A consumer's rates of the last minute by topic, as administrators read them (307)."""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SLICE_S: Final = 10.0
SLICES: Final = 6
_RATE_S: Final = SLICE_S * SLICES


@dataclass(slots=True)
class _Slice:
    """The counts of one topic in ten seconds."""

    began_at: float
    ok: int = 0
    failed: int = 0
    spent_s: float = 0.0
    pulls: int = 0
    pulled: int = 0
    spent_pulling_s: float = 0.0


class TopicFigures:
    """Counts pulls and handled messages by topic.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slices: dict[str, collections.deque[_Slice]] = {}
        self._failed: collections.Counter[str] = collections.Counter()

    def handled(self, topic: str, spent_s: float, is_ok: bool) -> None:
        """Count a handler that ended after `spent_s` seconds."""
        now = self._now(topic)
        now.spent_s += spent_s
        if is_ok:
            now.ok += 1
        else:
            now.failed += 1
            self._failed[topic] += 1

    def pulled(self, topic: str, spent_s: float, count: int) -> None:
        """Count a pull that took `spent_s` seconds and brought `count` messages."""
        now = self._now(topic)
        now.pulls += 1
        now.pulled += count
        now.spent_pulling_s += spent_s

    def to_wire(self, topic: str) -> dict[str, float]:
        """Return RocketMQ's ConsumeStatus: rates per second, times in milliseconds, failures since the start."""
        oldest = self._clock() - _RATE_S
        slices = [one for one in self._slices.get(topic, ()) if one.began_at >= oldest]
        handled = sum(one.ok + one.failed for one in slices)
        pulls = sum(one.pulls for one in slices)
        return {
            "consumeFailedMsgs": self._failed[topic],
            "consumeFailedTPS": sum(one.failed for one in slices) / _RATE_S,
            "consumeOKTPS": sum(one.ok for one in slices) / _RATE_S,
            "consumeRT": 1000 * sum(one.spent_s for one in slices) / handled if handled else 0.0,
            "pullRT": 1000 * sum(one.spent_pulling_s for one in slices) / pulls if pulls else 0.0,
            "pullTPS": sum(one.pulled for one in slices) / _RATE_S,
        }

    def _now(self, topic: str) -> _Slice:
        slices = self._slices.setdefault(topic, collections.deque(maxlen=SLICES))
        now = self._clock()
        if not slices or now >= slices[-1].began_at + SLICE_S:
            slices.append(_Slice(now))
        return slices[-1]
