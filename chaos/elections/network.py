"""Simulated time and network, the rules that a test breaks on purpose, and the record of what happened.

Times are seconds.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.sim.clock import SimClock
from chaos.sim.seeds import SeedOutcome
from chaos.sim.stack.loop import SimLoop
from ha.controller.core.commands import AlterSet, Elect, StateCommand
from ha.controller.core.model import Group
from ha.core.lease import DRIFT

_DELAY_S: Final = (0.0005, 0.02)
_SLOW: Final = 0.01
"""Probability that a message takes 20 times as long."""
SILENCE_MS: Final = 600
"""Silence in ms after which brokers want to count as dead."""


@dataclass(frozen=True)
class BrokenRules:
    """Rules that a test breaks on purpose; the simulation must report a violation for each.

    Attributes:
        ignores_lease: masters acknowledge without a lease.
        grows_early: a slave is proposed for the set before it has everything confirmed.
        confirms_past_the_set: a master confirms everything in its own log.
        counts_old_set: while the set grows, only members of the agreed set count.
        counts_new_set: while the set shrinks, only members of the proposed set count.
        elects_anybody: a replica outside of the in-sync set may be elected.
        trusts_cut_logs: a replica that lost power is a candidate like any other.
        trusts_any_set: such a replica is a candidate if it is the only member of its set, though its epoch never began.
        trusts_too_early: its doubt ends as soon as it copies from a master, whatever it still lacks.
        trusts_old_beats: it leads though it was elected by a heartbeat from before the power cut.
    """

    ignores_lease: bool = False
    grows_early: bool = False
    confirms_past_the_set: bool = False
    counts_old_set: bool = False
    counts_new_set: bool = False
    elects_anybody: bool = False
    trusts_cut_logs: bool = False
    trusts_any_set: bool = False
    trusts_too_early: bool = False
    trusts_old_beats: bool = False


@dataclass
class Seen(SeedOutcome[str]):
    """What was observed in a run so far, and its checks.

    Attributes:
        last_ack: by epoch of the master, the simulated time in seconds of its last acknowledgement.
        sets: by set epoch, each in-sync set on which the controllers agreed.
    """

    last_ack: dict[int, float] = field(default_factory=dict)
    sets: dict[int, frozenset[int]] = field(default_factory=dict)

    def struck(self, number: int, now_s: float, kind: str) -> None:
        """Note a fault."""
        self.strikes.append((number, now_s, kind))

    def acknowledged(self, epoch: int, first: int, records: list[str], now_s: float) -> None:
        """Note that a master of `epoch` acknowledges records from `first` on; check that no newer master did before."""
        if any(other > epoch for other in self.last_ack):
            newer = max(self.last_ack)
            self.violations.append(f"{now_s:.3f}: epoch {epoch} acknowledges, and epoch {newer} did before")
        self.last_ack[epoch] = now_s
        for offset, record in enumerate(records, first):
            if self.acked.setdefault(offset, record) != record:
                self.violations.append(f"{now_s:.3f}: offset {offset} is acknowledged twice, with two records")

    def cut(self, start: int, log: list[str], now_s: float) -> None:
        """Check that a slave that cuts its log at `start` loses no acknowledged record."""
        lost = sum(self.acked.get(offset) == record for offset, record in enumerate(log[start:], start))
        if lost:
            self.violations.append(f"{now_s:.3f}: {lost} acknowledged records are cut at {start}")

    def decided(self, command: StateCommand, before: Group | None, after: Group | None, now_s: float) -> None:
        """Check a command that the controllers have applied: it made `after` of the group `before`."""
        if before is None or after is None or before == after:
            return
        if self.sets.setdefault(after.set_epoch, after.in_sync) != after.in_sync:
            self.violations.append(f"{now_s:.3f}: the epoch {after.set_epoch} of the in-sync set has two sets")
        if isinstance(command, AlterSet) and command.set_epoch != before.set_epoch:
            text = f"the set of epoch {before.set_epoch} gives way to one proposed in place of {command.set_epoch}"
            self.violations.append(f"{now_s:.3f}: {text}")
        if isinstance(command, Elect) and not command.designated and not command.new_process:
            able = {one.broker_id for one in command.alive if one.doubt_epoch is None}
            if before.master_id in able & before.in_sync:
                text = f"an election without a reason: {before.master_id} lives, and {after.master_id} is elected"
                self.violations.append(f"{now_s:.3f}: {text}")

    def leads(self, epoch: int, log: list[str], now_s: float) -> None:
        """Check that the log of a new master has every acknowledged record."""
        self.leader_count += 1
        lost = [offset for offset, record in self.acked.items() if log[offset : offset + 1] != [record]]
        if lost:
            self.violations.append(f"{now_s:.3f}: the master of epoch {epoch} lacks {len(lost)} acknowledged records")


class Network:
    """Simulated time and messages. A seed always gives the same events.

    Args:
        names: of all senders and receivers.

    Attributes:
        is_sound: whether nothing is cut any more, for good.
        is_calm: whether no message is slow any more, and no agreement; a deposed controller notices soon.
    """

    def __init__(self, seed: int, faults: BrokenRules, names: Sequence[str]) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}
        self.faults = faults
        self.seen = Seen()
        self.names = names
        self.clock = SimClock(self.chance("order"))
        self._cut: set[frozenset[str]] = set()
        self.is_sound = self.is_calm = False
        self._last_us: dict[tuple[str, str], int] = {}

    def chance(self, consumer: str) -> random.Random:
        """Return the random stream of one consumer, which does not depend on what other consumers draw."""
        if consumer not in self._streams:
            self._streams[consumer] = random.Random(f"{consumer} {self._seed}")
        return self._streams[consumer]

    @property
    def now_s(self) -> float:
        """The simulated time."""
        return self.clock.now_us / 1e6

    def run_until(self, time_s: float, is_done: Callable[[], bool] | None = None) -> bool:
        """Run events up to this time, or until a rule is broken or `is_done`; return whether the run ended early."""
        broken = self.seen.violations
        ends = (lambda: bool(broken)) if is_done is None else (lambda: bool(broken) or is_done())
        return self.clock.run_until(int(time_s * 1e6), ends)

    def broken(self, text: str) -> None:
        """Note a violation."""
        self.seen.violations.append(f"{self.now_s:.3f}: {text}")

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after `delay_s` seconds."""
        self.clock.call_in(int(delay_s * 1e6), action)

    def send(self, sender: str, receiver: str, action: Callable[[], None], consumer: str = "delays") -> None:
        """Send a message: `action` runs when it arrives, in order, if the two can reach each other at both moments."""
        delays = self.chance(consumer)
        if self.reaches(sender, receiver):
            delay_s = delays.uniform(*_DELAY_S) * (20 if delays.random() < _SLOW and not self.is_calm else 1)
            arrives_us = max(self.clock.now_us + int(delay_s * 1e6), self._last_us.get((sender, receiver), -1) + 1)
            self._last_us[sender, receiver] = arrives_us
            self.clock.call_at(arrives_us, lambda: action() if self.reaches(sender, receiver) else None)

    def reaches(self, one: str, other: str) -> bool:
        """Return whether the two can reach each other."""
        return frozenset((one, other)) not in self._cut

    def cut(self, one: str, other: str, *, even_if_sound: bool = False) -> None:
        """Cut the connection of these two, both ways."""
        if not self.is_sound or even_if_sound:
            self._cut.add(frozenset((one, other)))

    def heal(self, *, for_good: bool = False) -> None:
        """Undo all cuts; from then on there are none if `for_good`."""
        self._cut.clear()
        self.is_sound = self.is_sound or for_good

    def isolate(self, name: str) -> None:
        """Cut one node off from all others."""
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def loop(self, rate: float, run: Callable[[Callable[[], object]], None]) -> SimLoop:
        """Make the event loop of a process without threads, whose clock has this rate; `run` runs each turn in it."""

        def no_thread(*_: Any) -> Any:
            raise AssertionError("a process gives work to a thread")

        clock = self.clock
        return SimLoop(
            clock, lambda: int(clock.now_us * rate), rate, lambda _, turn: run(turn), no_thread, no_thread,
            lambda: False,
        )  # fmt: skip

    def rate(self) -> float:
        """Return a random rate of a clock; two rates differ by no more than leases allow for."""
        return 1 + self.chance("clocks").uniform(0, DRIFT * 0.99)
