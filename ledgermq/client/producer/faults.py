"""Latency fault tolerance: a producer passes over brokers that answer late or not at all for a while.

    latency, ms at least     50   100    550   1800   3000    5000   15000
    not available for, ms     0     0   2000   5000   6000   10000   30000        a failure counts as 10 000 ms

A queue is chosen among those of available brokers, else of reachable ones, else of any; within each group, not of the
broker that this send has just failed at. `FaultStrategy` is given the time (ms of any clock); `FaultWatch` feeds it:

    answered, or refused without a retry     its latency counts, nothing else
    refused for a reason that may pass       avoided like a failed broker
    no answer                                avoided, and unreachable until a probe is answered (if it probes)
    not the leader                           nothing: the route is old, and another node leads the broker name

RocketMQ avoids a broker after every refusal, also of an illegal message; here only after refusals that may pass.

Source: apache/rocketmq `client/.../latency/MQFaultStrategy.java`, `LatencyFaultToleranceImpl.java`,
`client/.../impl/producer/DefaultMQProducerImpl.java` (sendDefaultImpl, 5.3.3).
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.client.core.calls import Target
from ledgermq.client.core.checks import check_flag, listed
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError, NotLeaderError, UnreachableError
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError

LATENCY_MAX_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
NOT_AVAILABLE_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
ISOLATION_LATENCY_MS: Final = 10_000
PROBE_INTERVAL_MS: Final = 2_000


@dataclass(slots=True)
class _Fault:
    """Latency and faults of one broker name."""

    available_from_ms: float = 0.0
    probe_from_ms: float = 0.0
    is_reachable: bool = True


class FaultStrategy:
    """Decides which brokers to avoid, by the latencies and failures of sends to them.

    Args:
        latency_max_ms: thresholds in milliseconds, rising.
        not_available_ms: for each threshold, the milliseconds for which a broker with at least that latency is avoided.
        probe: whether a broker that cannot be reached stays unused until it answers a probe; without probes it is used
            again when its time is over.

    Raises:
        InvalidArgumentError: the two tables differ in length, or the thresholds do not rise.
    """

    def __init__(
        self,
        *,
        latency_max_ms: Sequence[int] = LATENCY_MAX_MS,
        not_available_ms: Sequence[int] = NOT_AVAILABLE_MS,
        probe: bool = False,
    ) -> None:
        check_flag(probe=probe)
        least = listed((int, float), "latency_max_ms", latency_max_ms)
        avoided = listed((int, float), "not_available_ms", not_available_ms)
        if len(least) != len(avoided) or least != sorted(set(least)):
            raise InvalidArgumentError(f"{latency_max_ms} and {not_available_ms} are no table of back-offs")
        self._rows = list(zip(least, avoided, strict=True))[::-1]
        self.probe = probe
        self._faults: dict[str, _Fault] = {}

    def not_available_ms(self, latency_ms: float, *, isolate: bool = False) -> int:
        """Return the ms for which a broker with that latency is avoided; with `isolate` as a failed one (10 s)."""
        counted = ISOLATION_LATENCY_MS if isolate else latency_ms
        return next((avoided for least, avoided in self._rows if counted >= least), 0)

    def observe(self, broker: str, latency_ms: float, now_ms: float, *, isolate: bool, reachable: bool) -> None:
        """Count a try at `broker` that took `latency_ms`. A later, faster try does not shorten an avoidance."""
        fault = self._faults.setdefault(broker, _Fault())
        avoided_ms = self.not_available_ms(latency_ms, isolate=isolate)
        if avoided_ms > 0:
            fault.available_from_ms = max(fault.available_from_ms, now_ms + avoided_ms)
        fault.is_reachable = reachable

    def is_available(self, broker: str, now_ms: float) -> bool:
        """Return whether the broker is not avoided at `now_ms`."""
        fault = self._faults.get(broker)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker: str) -> bool:
        """Return whether the last try or probe reached the broker; True before the first."""
        fault = self._faults.get(broker)
        return fault is None or fault.is_reachable

    def to_probe(self, now_ms: float) -> list[str]:
        """Return the brokers to probe now; each is due again after `PROBE_INTERVAL_MS`."""
        due = [broker for broker, fault in self._faults.items() if now_ms >= fault.probe_from_ms]
        for broker in due:
            self._faults[broker].probe_from_ms = now_ms + PROBE_INTERVAL_MS
        return due

    def probed(self, broker: str) -> None:
        """Note that the broker has answered a probe."""
        if broker in self._faults:
            self._faults[broker].is_reachable = True

    def forget(self, broker: str) -> None:
        """Forget a broker that no route names any more."""
        self._faults.pop(broker, None)


ROUND_S: Final = 3.0
PROBE_TIMEOUT_S: Final = 0.2


class FaultWatch:
    """Reports the outcome of each try to one strategy, and probes brokers for it."""

    def __init__(self, strategy: FaultStrategy) -> None:
        self.strategy = strategy
        self._probes: asyncio.Task[None] | None = None

    @property
    def now_ms(self) -> float:
        """Return monotonic milliseconds."""
        return time.monotonic() * 1000

    def on_try(self, target: Target, latency_s: float, failure: LedgerMQError | None) -> None:
        """Count one try: its target, its duration in seconds, and its error (None after an answer)."""
        if target.queue_id < 0 or isinstance(failure, NotLeaderError):
            return
        isolate = failure is not None and failure.is_retryable
        reachable = not (isinstance(failure, UnreachableError) and self.strategy.probe)
        self.strategy.observe(target.broker, latency_s * 1000, self.now_ms, isolate=isolate, reachable=reachable)

    def start(self, remoting: RemotingClient, routes: Routes) -> None:
        """Begin to probe, if the strategy has probes on."""
        if self.strategy.probe:
            self._probes = asyncio.create_task(self._run(remoting, routes), name="probes of brokers")

    async def close(self) -> None:
        """Stop probing."""
        if self._probes is not None:
            self._probes.cancel()
            await asyncio.gather(self._probes, return_exceptions=True)

    async def _run(self, remoting: RemotingClient, routes: Routes) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            for broker in self.strategy.to_probe(self.now_ms):
                await self._probe(broker, remoting, routes)

    async def _probe(self, broker: str, remoting: RemotingClient, routes: Routes) -> None:
        address = routes.leader(broker)
        if address is None:
            self.strategy.forget(broker)
            return
        question = Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "TBW102", "queueId": "0"})  # any answer will do
        try:
            await remoting.request(address, question, PROBE_TIMEOUT_S)
        except RemotingError:
            return
        self.strategy.probed(broker)
