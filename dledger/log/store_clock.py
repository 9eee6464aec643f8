"""Store times: they never go back, neither with this node's clock nor from one leader to the next."""

from collections.abc import Callable

from dledger.log.entry import HEADER_SIZE
from dledger.log.entry_log import EntryLog
from ledgermq.message.record import dispatch_fields


class StoreClock:
    """Gives the time of the next records, ms since the epoch.

    Args:
        clock: of the machine.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last_ms = 0

    def now_ms(self) -> int:
        """At least what was given before."""
        self._last_ms = now_ms = max(self._clock(), self._last_ms)
        return now_ms

    def go_past(self, log: EntryLog) -> None:
        """From now on at least the time of the last record in `log`, whose leader's clock may be ahead of this one."""
        if log.last_index >= log.first_index and not log.care.is_damaged(log.last_index):
            position, size, _ = log.units[log.last_index]
            self._last_ms = max(self._last_ms, dispatch_fields(log.data.slice(position, size), HEADER_SIZE)[5])
