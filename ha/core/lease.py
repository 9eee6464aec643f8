"""The lease of a master: the time until which it may acknowledge, by the monotonic clocks of master and controllers.

    master      asks at a ----heartbeat----> leading controller, grants at g >= a
                holds until a + length       waits until g + length + drift before it names a successor

The master counts from before it asked, the controller from after it was asked. So the master's time ends first, if
their clocks run equally fast up to `DRIFT`. Readings of two clocks are never compared.

A controller that was deposed and does not know it yet could still grant leases. Therefore a controller grants only
while a majority has answered something that it sent less than `AUTHORITY_S` ago. A majority elects a new leader at some
time e, so the deposed one grants nothing later than e + `AUTHORITY_S`, and a new leader names no successor before e +
`AUTHORITY_S` + the longest lease. All times are seconds of a monotonic clock.
"""

from typing import Final

DRIFT: Final = 0.05
"""How much faster one clock may run than another, as a fraction."""

AUTHORITY_S: Final = 0.5
"""A controller grants nothing if a majority has answered nothing that it sent within so many seconds."""

_BEAT_S: Final = 0.06
_BEAT_MIN_S: Final = 0.01
_BEATS_A_LEASE: Final = 5


def beat_s(granted_s: float) -> float:
    """Return the seconds between a master's heartbeats to a controller that granted `granted_s` (0.0: no lease).

    During a lease of 50 ms or more five are sent, so that it does not end because one or two answers are late.
    """
    return min(_BEAT_S, max(_BEAT_MIN_S, granted_s / _BEATS_A_LEASE)) if granted_s else _BEAT_S


class Lease:
    """A master's own lease. It begins without one."""

    def __init__(self) -> None:
        self._ends_s = float("-inf")

    @property
    def ends_s(self) -> float:
        """When it ends; in the past when there is none."""
        return self._ends_s

    def grant(self, asked_s: float, length_s: float) -> None:
        """Note a lease of `length_s`, granted to a heartbeat sent at `asked_s`; answers may come in any order."""
        self._ends_s = max(self._ends_s, asked_s + length_s)

    def give_up(self) -> None:
        """Give up the lease: the holder is not master any more."""
        self._ends_s = float("-inf")

    def holds(self, now_s: float) -> bool:
        """Return whether the master may acknowledge, and move its confirm offset, now."""
        return now_s < self._ends_s


class Grants:
    """The leases that one controller granted, and the time from which on it may name successors.

    Args:
        length_s: of every lease, the same on all controllers.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._last: dict[str, tuple[int, float]] = {}  # by broker name: who holds the newest lease, and its end
        self._stopped_s: dict[str, float] = {}
        self._leads_since_s = float("inf")

    def leads(self, since_s: float) -> None:
        """Note that this controller leads, elected at `since_s` or before; forget the leases that it granted before."""
        self._leads_since_s = since_s
        self._last.clear()
        self._stopped_s.clear()

    def follows(self) -> None:
        """Note that this controller does not lead any more."""
        self._leads_since_s = float("inf")

    def stop(self, name: str, until_s: float) -> None:
        """Grant nothing to this broker name until `resume`: its master is about to be replaced."""
        self._stopped_s[name] = until_s

    def resume(self, name: str) -> None:
        """Grant again: the master was replaced, or stays."""
        self._stopped_s.pop(name, None)

    def give_back(self, name: str, broker_id: int) -> None:
        """Note that this master has resigned: it uses no granted lease any more, and asks for none."""
        if self._last.get(name, (None, 0.0))[0] == broker_id:
            del self._last[name]

    def grant(self, name: str, broker_id: int, now_s: float, answered_s: float) -> float:
        """Grant the lease to the master that asks; return its length in seconds, 0.0 if nothing is granted.

        Args:
            name: broker name of the master.
            broker_id: of the master.
            now_s: the time.
            answered_s: when the newest message was sent that a majority of the controllers has answered.
        """
        is_certain = self._leads_since_s <= now_s < answered_s + AUTHORITY_S
        if not is_certain or now_s < self._stopped_s.get(name, float("-inf")):
            return 0.0
        holder, ends_s = self._last.get(name, (broker_id, now_s))
        if holder != broker_id and now_s < ends_s:  # an election of long unknown outcome was won after all
            return 0.0
        self._last[name] = broker_id, now_s + self._length_s * (1 + DRIFT)
        return self._length_s

    def free_s(self, name: str, broker_id: int) -> float:
        """Return the time from which on a successor of this master may be elected, if the master uses leases."""
        by_others = self._leads_since_s + AUTHORITY_S + self._length_s * (1 + DRIFT)
        holder, ends_s = self._last.get(name, (broker_id, by_others))
        return max(by_others, ends_s) if holder == broker_id else by_others

    def forget(self, now_s: float) -> None:
        """Drop leases that have ended."""
        self._last = {name: last for name, last in self._last.items() if last[1] > now_s}
        self._stopped_s = {name: until_s for name, until_s in self._stopped_s.items() if until_s > now_s}
