"""The way out of an open producer: every kind of send goes through here.

check -> lane of its key -> compress -> plan -> room in flight -> calls (retries, redirects) -> results
"""

from collections.abc import Mapping

from ledgermq.client.core.calls import Calls
from ledgermq.client.core.compression import Compression
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.producer.assembly import PLAIN, Assembly, Kind
from ledgermq.client.producer.in_flight import InFlight
from ledgermq.client.producer.lanes import Lanes
from ledgermq.client.producer.outgoing import Body, Keys, check_body, order_text
from ledgermq.client.producer.send_plan import SendPlan, Where
from ledgermq.client.producer.sending import SendResult


class Outbox:
    """Sends for one producer.

    Args:
        assembly: makes plans.
        calls: runs them.
        in_flight: how much may be under way.
        compression: of large bodies.
    """

    def __init__(self, assembly: Assembly, calls: Calls, in_flight: InFlight, compression: Compression) -> None:
        self.assembly = assembly
        self.calls = calls
        self.in_flight = in_flight
        self.lanes = Lanes()
        self.compression = compression

    async def send(
        self,
        topic: str,
        body: Body,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        attempts_max: int | None = None,
        kind: Kind = PLAIN,
    ) -> SendResult:
        """Send one message; arguments as `Producer.send` and `Assembly.single`.

        Raises:
            LedgerMQError: as in `Producer.send`.
        """
        where = self.assembly.where(topic, queue, order_key)
        check_body(body)
        if order_key is None:
            if self.compression.wants(len(body)):
                with self.in_flight.coming():
                    return await self._send_packed(
                        topic, body, tags, keys, properties, where, deadline_s, attempts_max, kind
                    )
            plan = self.assembly.single(topic, body, tags, keys, properties, where, kind)
            return (await self.run(plan, deadline_s, attempts_max))[0]
        kind = kind._replace(own=kind.own + order_text(order_key, properties))
        with self.in_flight.coming():
            async with self.lanes.lane((topic, order_key)):
                return await self._send_packed(
                    topic, body, tags, keys, properties, where, deadline_s, attempts_max, kind
                )

    async def _send_packed(
        self, topic: str, body: Body, tags: str | None, keys: Keys | None, properties: Mapping[str, str] | None,
        where: Where | None, deadline_s: float | None, attempts_max: int | None, kind: Kind,
    ) -> SendResult:  # fmt: skip
        flag = 0
        if self.compression.wants(len(body)):
            body, flag = await self.compression.pack(body)
        plan = self.assembly.single(topic, body, tags, keys, properties, where, kind, flag)
        return (await self.run(plan, deadline_s, attempts_max))[0]

    async def run(
        self, plan: SendPlan, deadline_s: float | None = None, attempts_max: int | None = None
    ) -> list[SendResult]:
        """The results of a plan, once there is room for it."""
        size = plan.size
        await self.in_flight.enter(size)
        try:
            answered = await self.calls.run(plan, deadline_s=deadline_s, attempts_max=attempts_max)
        finally:
            self.in_flight.leave(size)
        return plan.results(answered)

    async def run_in_order(
        self, plan: SendPlan, order_key: str | None, deadline_s: float | None, attempts_max: int | None
    ) -> list[SendResult]:
        """As `run`, after the sends of the same key before it."""
        if order_key is None:
            return await self.run(plan, deadline_s, attempts_max)
        with self.in_flight.coming():
            async with self.lanes.lane((plan.topic, order_key)):
                return await self.run(plan, deadline_s, attempts_max)
