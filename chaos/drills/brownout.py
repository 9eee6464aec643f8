"""Brownout: the time for which clients were served worse than before the first fault."""

from chaos.checkers.timing import percentile
from chaos.drills.record import DrillRecord
from ledgermq.history import Outcome

_BIN_S = 0.5
_LEAST_SHARE = 0.9
_SLOWER = 10.0


def brownout_s(record: DrillRecord) -> float:
    """Return the seconds, in halves, in which sends began of which under 90 % were acknowledged, or p99 was high.

    High means ten times the p99 of the sends between the first steady acknowledgements and the first fault. Times
    before the first fault do not count; 0 without such traffic or without a fault.
    """
    first_s = min((one.begin_s for one in record.injections), default=float("inf"))
    before = [
        send.completed_s - send.invoked_s
        for send in record.acks
        if record.steady_s <= send.invoked_s and send.completed_s < first_s
    ]
    if not before:
        return 0.0
    limit_s = _SLOWER * percentile(before, 99)
    bins: dict[int, list[float]] = {}
    for send in record.sends:
        if send.invoked_s >= first_s:
            is_acked = send.outcome is Outcome.OK
            latency_s = send.completed_s - send.invoked_s if is_acked else float("inf")
            bins.setdefault(int((send.invoked_s - first_s) / _BIN_S), []).append(latency_s)
    return _BIN_S * sum(_is_brown(latencies, limit_s) for latencies in bins.values())


def _is_brown(latencies_s: list[float], limit_s: float) -> bool:
    acked = [latency_s for latency_s in latencies_s if latency_s != float("inf")]
    return len(acked) < _LEAST_SHARE * len(latencies_s) or percentile(acked, 99) > limit_s
