"""SimNetwork: connections between members that delay, lose, duplicate and reorder messages, go silent and break.

A connection of two members is up or down; both ends learn when it breaks and when it is up again. What was sent on
one connection never arrives on a later one, as with TCP. A *cut* is silent: packets of one direction are lost, and
neither end learns of it. Loss, duplication and reordering within a connection are harder than TCP, on purpose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from chaos.sim.clock import SimClock

Pair = tuple[str, str]


@dataclass(slots=True)
class Conditions:
    """The present behaviour of the network.

    Rates are probabilities in `[0, 1)`; latencies vary up to three times their value, unless `is_even`.
    """

    latency_us: int = 300
    drop_rate: float = 0.0
    double_rate: float = 0.0
    reorder_rate: float = 0.0
    is_even: bool = False


class Lines:
    """Cuts, delays and losses between pairs of nodes.

    Attributes:
        cut: (source, target) pairs between which nothing arrives.
        slow_us: by such a pair, the additional latency in us.
    """

    def __init__(self) -> None:
        self.conditions = Conditions()
        self.cut: dict[Pair, None] = {}
        self.slow_us: dict[Pair, int] = {}

    def heal(self) -> None:
        """End all losses, cuts and slow links."""
        self.conditions = Conditions(self.conditions.latency_us, is_even=self.conditions.is_even)
        self.cut.clear()
        self.slow_us.clear()


class SimNetwork(Lines):
    """All connections of the group.

    `deliver(source, target, message)`, `tell_lost(node, peer)` and `tell_joined(node, peer)` are the cluster's.
    """

    def __init__(
        self,
        clock: SimClock,
        rng: Random,
        deliver: Callable[[str, str, Any], None],
        tell_lost: Callable[[str, str], None],
        tell_joined: Callable[[str, str], None],
        is_alive: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._tell_lost = tell_lost
        self._tell_joined = tell_joined
        self._is_alive = is_alive
        self._epochs: dict[Pair, int] = {}  # number of changes by sorted pair: odd while the connection is up
        self._last_us: dict[Pair, int] = {}

    def send(self, source: str, target: str, message: Any) -> None:
        """Send a message; it may arrive once, twice or never."""
        epoch = self._epochs.get(_pair(source, target), 0)
        conditions, rng = self.conditions, self._rng
        if epoch % 2 == 0 or (source, target) in self.cut:
            return
        if conditions.drop_rate and rng.random() < conditions.drop_rate:
            return
        self._arrive_later(source, target, message, epoch)
        if conditions.double_rate and rng.random() < conditions.double_rate:
            self._arrive_later(source, target, message, epoch)

    def _arrive_later(self, source: str, target: str, message: Any, epoch: int) -> None:
        conditions, rng, link = self.conditions, self._rng, (source, target)
        share = 1.0 if conditions.is_even else 0.5 + 2.5 * rng.random()
        time_us = self._clock.now_us + int(conditions.latency_us * share)
        if not (conditions.reorder_rate and rng.random() < conditions.reorder_rate):
            time_us = max(time_us, self._last_us.get(link, 0) + 1)
            self._last_us[link] = time_us
        self._clock.call_at(time_us, partial(self._arrive, source, target, message, epoch))

    def _arrive(self, source: str, target: str, message: Any, epoch: int) -> None:
        if self._epochs.get(_pair(source, target), 0) == epoch and (source, target) not in self.cut:
            self._deliver(source, target, message)

    def is_up(self, one: str, other: str) -> bool:
        """Return whether the two are connected."""
        return self._epochs.get(_pair(one, other), 0) % 2 == 1

    def break_link(self, one: str, other: str, *, is_silent: bool = False) -> None:
        """Break a connection; the ends learn it at once, or with `is_silent` only when it is up again."""
        if not self.is_up(one, other):
            return
        self._epochs[_pair(one, other)] += 1
        if not is_silent:
            self._tell_lost(one, other)
            self._tell_lost(other, one)

    def connect(self, one: str, other: str) -> None:
        """Try to connect two members; nothing happens if a direction is cut or an end is not there."""
        can = self._is_alive(one) and self._is_alive(other)
        if self.is_up(one, other) or not can or (one, other) in self.cut or (other, one) in self.cut:
            return
        self._epochs[_pair(one, other)] = self._epochs.get(_pair(one, other), 0) + 1
        self._tell_joined(one, other)
        self._tell_joined(other, one)


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one < other else (other, one)
