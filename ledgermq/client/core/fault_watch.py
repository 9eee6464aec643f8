"""What a producer's tries tell its fault strategy, and the probes of brokers that could not be reached.

    answered, or refused for what it is      its latency counts, nothing else
    refused for a reason that passes         isolated
    no answer                                isolated, and unreachable until a probe is answered (if it probes)
    not the leader                           nothing: the route is what is behind, and another node answers for the name

RocketMQ isolates a broker for every refusal, for an illegal message, too; here only for what another try may mend.

Source: apache/rocketmq `client/.../impl/producer/DefaultMQProducerImpl.java` (sendDefaultImpl, 5.3.3).
"""

import asyncio
import time
from typing import Final

from ledgermq.client.core.calls import Target
from ledgermq.client.core.fault_strategy import FaultStrategy
from ledgermq.client.core.routes import Routes
from ledgermq.client.errors import LedgerMQError, NotLeaderError, UnreachableError
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError

ROUND_S: Final = 3.0
PROBE_TIMEOUT_S: Final = 0.2


class FaultWatch:
    """Feeds one strategy."""

    def __init__(self, strategy: FaultStrategy) -> None:
        self.strategy = strategy
        self._probes: asyncio.Task[None] | None = None

    @property
    def now_ms(self) -> float:
        """A clock that only goes forward."""
        return time.monotonic() * 1000

    def on_try(self, target: Target, latency_s: float, failure: LedgerMQError | None) -> None:
        """One try has ended."""
        if target.queue_id < 0 or isinstance(failure, NotLeaderError):
            return
        isolate = failure is not None and failure.is_retryable
        reachable = not (isinstance(failure, UnreachableError) and self.strategy.probe)
        self.strategy.observe(target.broker, latency_s * 1000, self.now_ms, isolate=isolate, reachable=reachable)

    def start(self, remoting: RemotingClient, routes: Routes) -> None:
        """Probe from now on, if the strategy wants it."""
        if self.strategy.probe:
            self._probes = asyncio.create_task(self._run(remoting, routes), name="probes of brokers")

    async def close(self) -> None:
        """Stop."""
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
