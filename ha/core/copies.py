"""The copies of a master's log: what each slave has, which slaves count, and what is confirmed and acknowledged.

    report --> `Copy` (validated) --> in sync? --> `Copies.promise(local)`: confirmed up to, acknowledged up to

There is no state per message: a report raises one offset, and the waiting batches below it are complete.

Times are seconds of a monotonic clock, offsets physical.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ha.core.stream import FRAME_LIMIT_BYTES, Report
from ha.errors import HaProtocolError

ALONE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """The copies for which a master waits.

    Attributes:
        wanted: number of copies, the master's own included, for which an acknowledgement waits; 1 waits for no slave.
        least: number of copies in sync, the own included, below which records are refused.
        is_adaptive: whether to wait for fewer than `wanted`, down to `least`, while fewer are in sync.
        counts_durable: whether only what is durable on a slave counts.
        gap_max_bytes: a slave further behind than this is not in sync.
        catch_up_s: a slave that has not reached the master's end for this time is not in sync either.
    """

    wanted: int = ALONE
    least: int = ALONE
    is_adaptive: bool = False
    counts_durable: bool = False
    gap_max_bytes: int = 256 << 20
    catch_up_s: float = 15.0


class Promise(NamedTuple):
    """How far a master's promise holds.

    Attributes:
        confirmed: end of the records that may be read and dispatched.
        acknowledged: senders of records up to here are answered.
        lacks_slaves: whether these senders are told that no slave has their records.
    """

    confirmed: int
    acknowledged: int
    lacks_slaves: bool


class Copy:
    """One slave: what was sent to it, and what it reports.

    Args:
        name: identifies the slave, which counts once: a newer connection with the same name replaces the older one.
        address: the slave's end of the connection, for people.
        start: where sending begins.
        now_s: the time.
        window_bytes: most bytes that are sent and not reported.
        batch_bytes: most bytes of a frame.
        is_learner: whether it copies the log and never counts.
        serves_at: where it serves brokers of the group, `host:port`; empty where that is not known.
        broker_id: under which clients find it; -1: a slave of RocketMQ's, which may refuse readers.

    Attributes:
        sent: offset up to which the log was sent.
        received, durable: as last reported.
        reported_s: when it last reported.
        in_sync: whether it counts.
        caught_up_s: when its counted end last reached the master's end.
        moved_s: when its counted end last rose, or was equal to `sent`.
        stuck_looks: calls of `look` since then at which it lacked sent bytes that count here.
    """

    def __init__(
        self,
        name: str,
        address: str,
        start: int,
        now_s: float,
        *,
        window_bytes: int,
        batch_bytes: int,
        is_learner: bool = False,
        serves_at: str = "",
        broker_id: int = -1,
    ) -> None:
        self.name = name
        self.address = address
        self.sent = self.received = start
        self.durable = 0
        self.reported_s = self.caught_up_s = self.moved_s = now_s
        self.stuck_looks = 0
        self.in_sync = False
        self.is_learner = is_learner
        self.serves_at = serves_at
        self.broker_id = broker_id
        self._window_bytes = window_bytes
        self._batch_bytes = min(batch_bytes, FRAME_LIMIT_BYTES)
        # an end of the master's log that it has to reach, and when that was set
        self._mark: tuple[int, float] = (-1, now_s)

    def next_size(self, end: int, file_size: int) -> int:
        """Return the size of the next frame of a log that ends at `end`, with files of `file_size`; 0: none now.

        A frame lies in one file. Nothing is sent while more than the window is sent and not reported, in the file of
        the last report or behind it.
        """
        begin = self.received
        file_end = begin - begin % file_size + file_size
        if self.sent >= file_end:  # the blank may be as large as a record, and is reported with the next one
            begin = file_end
        window = begin + self._window_bytes - self.sent
        left = file_size - self.sent % file_size
        return max(min(end - self.sent, window, left, self._batch_bytes), 0)

    def on_sent(self, size: int) -> None:
        """Note that a frame of `size` bytes was sent."""
        self.sent += size

    def on_report(self, report: Report, end: int, now_s: float, *, durable: bool = False) -> None:
        """Apply a report; `end` is the present end of the master's log; `durable`: only what is durable counts.

        Raises:
            HaProtocolError: it names bytes that were never sent, or fewer than the report before.
        """
        if report.received > self.sent:
            raise HaProtocolError(f"a report of {report.received}, and only {self.sent} were sent")
        if report.received < self.received or report.durable < self.durable:
            raise HaProtocolError(f"a report of {report.received}, {report.durable} durable, after {self.received}")
        before = self.acked(durable=durable)
        self.received, self.durable, self.reported_s = report.received, report.durable, now_s
        acked = self.acked(durable=durable)
        if acked > before or acked == self.sent:
            self.moved_s = now_s
            self.stuck_looks = 0
        if acked >= self._mark[0]:  # the mark stays while reports come faster than new records
            self.caught_up_s = now_s if acked >= end else self._mark[1]
            self._mark = (end, now_s)

    def look(self, local: int, *, durable: bool) -> None:
        """Count a call at which the master waits for this slave alone, for bytes below `local`. Call it regularly.

        Calls are counted, not time, since the master itself may stand still. A call does not count while the master's
        own flush is not done, either: leaving out the slave would not help.
        """
        self.stuck_looks += self.acked(durable=durable) < min(self.sent, local)

    def acked(self, *, durable: bool) -> int:
        """Return the end of what counts."""
        return self.durable if durable else self.received


class Copies:
    """All slaves of a master.

    Attributes:
        slaves: by name.
    """

    def __init__(self, rules: CopyRules) -> None:
        self.rules = rules
        self.slaves: dict[str, Copy] = {}

    def join(self, copy: Copy) -> None:
        """Add a connected slave; it replaces an older connection of its name."""
        self.slaves[copy.name] = copy

    def leave(self, copy: Copy) -> None:
        """Remove a slave whose connection is closed."""
        if self.slaves.get(copy.name) is copy:
            del self.slaves[copy.name]

    def update_in_sync(self, end: int, confirmed: int, now_s: float) -> list[Copy]:
        """Decide again which slaves are in sync; return those that changed. Call it on reports and regularly.

        A slave comes into sync when it has everything confirmed and was at the master's end within `catch_up_s`; it
        falls out of sync by `gap_max_bytes` and `catch_up_s`.
        """
        rules, changed = self.rules, []
        for copy in self.slaves.values():
            acked = copy.acked(durable=rules.counts_durable)
            is_near = end - acked <= rules.gap_max_bytes
            is_well = acked >= end or now_s - copy.caught_up_s <= rules.catch_up_s
            in_sync = is_near and is_well and (copy.in_sync or acked >= confirmed)
            if in_sync != copy.in_sync:
                copy.in_sync = in_sync
                changed.append(copy)
        return changed

    @property
    def wanted(self) -> int:
        """Number of copies, the own included, for which an acknowledgement waits."""
        return self.rules.wanted

    @property
    def are_waited_for(self) -> bool:
        """Whether acknowledgements may have to wait for slaves."""
        return self.rules.wanted > ALONE

    @property
    def in_sync_count(self) -> int:
        """Number of copies that count, the own included."""
        return 1 + sum(copy.in_sync for copy in self.slaves.values())

    @property
    def takes_records(self) -> bool:
        """Whether enough copies are in sync to accept records."""
        return self.rules.least <= ALONE or self.in_sync_count >= self.rules.least

    def promise(self, local: int, acknowledged: int) -> Promise:
        """Return how far the promise holds.

        Args:
            local: end of the records for which this node's disk suffices.
            acknowledged: end of the records whose senders are answered already; the result is not below it.
        """
        rules = self.rules
        wanted = rules.wanted
        if wanted <= ALONE:
            return Promise(local, local, False)
        acks = [copy.acked(durable=rules.counts_durable) for copy in self.slaves.values() if copy.in_sync]
        there = ALONE + len(acks)
        if rules.is_adaptive:
            wanted = max(min(wanted, there), rules.least)
        if there >= wanted:
            confirmed = self._least(wanted, acks, local)
            return Promise(confirmed, confirmed, False)
        confirmed = self._least(there, acks, local)
        if there == ALONE:
            return Promise(confirmed, confirmed, True)
        return Promise(confirmed, min(acknowledged, confirmed), False)

    def copies_of(self, end: int) -> tuple[int, int]:
        """Return the number of slaves that have everything up to `end`, and of those that have it durably."""
        slaves = self.slaves.values()
        return sum(copy.received >= end for copy in slaves), sum(copy.durable >= end for copy in slaves)

    def needed_offset(self) -> int | None:
        """Return the offset from which on connected slaves need the log; None if none is connected."""
        return min((copy.received for copy in self.slaves.values()), default=None)

    @staticmethod
    def _least(count: int, acks: list[int], local: int) -> int:
        """Return the offset up to which `count` copies, the own one included, have the log."""
        if count <= ALONE:
            return local
        return min(local, sorted(acks)[ALONE - count])
