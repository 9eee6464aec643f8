"""Store times of a Raft log: the machine's clock, held where it stands over small steps back."""

import logging
from collections.abc import Callable
from typing import Final

from dledger.log.entry import HEADER_SIZE
from dledger.log.entry_log import EntryLog
from ledgermq.message.record import dispatch_fields

HOLD_MS: Final = 5_000

_log = logging.getLogger(__name__)


class StoreClock:
    """Gives the store time of the next records, ms since the epoch.

    Times do not go back while the machine's clock is at most `HOLD_MS` behind the last time given: corrections of that
    size, and the difference of two leaders' clocks, are not seen by readers. A clock further behind means that the last
    time came from a clock that had jumped ahead. It is followed back at once: otherwise every record would get one time
    until the clock has caught up, and delayed messages would be late by as much.

    Args:
        clock: of the machine.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last_ms = 0

    def now_ms(self) -> int:
        """The machine's time, or the last one given when that is a little later."""
        now_ms = self._clock()
        behind_ms = self._last_ms - now_ms
        if 0 < behind_ms <= HOLD_MS:
            return self._last_ms
        if behind_ms > 0:
            _log.warning("store times go back by %d ms: the last one came from a clock that was ahead", behind_ms)
        self._last_ms = now_ms
        return now_ms

    def go_past(self, log: EntryLog) -> None:
        """Count the time of the last record in `log` as given; its leader's clock may be ahead of this one."""
        if log.last_index >= log.first_index and not log.care.is_damaged(log.last_index):
            position, size, _ = log.units[log.last_index]
            self._last_ms = max(self._last_ms, dispatch_fields(log.data.slice(position, size), HEADER_SIZE)[5])
