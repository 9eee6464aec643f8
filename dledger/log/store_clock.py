"""The store times of a Raft log: the machine's clock without small steps back."""

import logging
from collections.abc import Callable
from typing import Final

from dledger.log.entry import HEADER_SIZE
from dledger.log.entry_log import EntryLog
from ledgermq.message.record import dispatch_fields

HOLD_MS: Final = 5_000

_log = logging.getLogger(__name__)


class StoreClock:
    """Gives the store time of the next records, in ms since the epoch.

    Invariant: times do not fall while the machine's clock is at most `HOLD_MS` behind the last time given. So readers
    do not see corrections of that size, or the difference between two leaders' clocks. A clock further behind means
    that the last time came from a clock that had jumped ahead; it is followed back at once. Otherwise every record
    would get the same time until the clock has caught up, and delayed messages would be late by as much.

    Args:
        clock: the machine's clock, in ms.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return the machine's time, or the last one given if that is a little later."""
        now_ms = self._clock()
        behind_ms = self._last_ms - now_ms
        if 0 < behind_ms <= HOLD_MS:
            return self._last_ms
        if behind_ms > 0:
            _log.warning("store times go back by %d ms: the last one came from a clock that was ahead", behind_ms)
        self._last_ms = now_ms
        return now_ms

    def go_past(self, log: EntryLog) -> None:
        """Take the store time of the last record in `log` as the last one given: its leader's clock may be ahead.

        If the last one given came from a clock that had jumped ahead, it is forgotten: its record may have been cut.
        """
        if log.last_index >= log.first_index and not log.integrity.is_damaged(log.last_index):
            position, size, _ = log.units[log.last_index]
            stored_ms = dispatch_fields(log.data.slice(position, size), HEADER_SIZE)[5]
            is_followed = self._last_ms - self._clock() <= HOLD_MS
            self._last_ms = max(self._last_ms, stored_ms) if is_followed else stored_ms
