"""Messages through a cluster, by our own client: sent, consumed, counted by the broker they lie on."""

import asyncio
from collections import Counter
from typing import Protocol

from ledgermq.client import Admin, Consumer, LedgerMQError, Producer
from tests.limits import STRANGER_WAIT_S


class Door(Protocol):
    """Where clients ask for routes: a nameserver, or a proxy."""

    @property
    def address(self) -> str:
        """`host:port`."""


async def brokers(namesrv: Door) -> dict[str, dict[int, str]]:
    """Addresses by broker name and id, as the nameserver says; empty while it does not answer."""
    try:
        async with Admin(namesrv.address, deadline_s=5.0) as admin:
            info = await admin.cluster()
    except LedgerMQError:
        return {}
    return {name: dict(route.addresses) for name, route in info.brokers.items()}


async def create_topic(namesrv: Door, topic: str) -> None:
    """On all brokers, four queues each."""
    async with Admin(namesrv.address, deadline_s=STRANGER_WAIT_S) as admin:
        await admin.create_topic(topic, 4)


async def send(namesrv: Door, topic: str, bodies: list[bytes]) -> Counter[str]:
    """Send them; how many each broker name has taken."""
    async with Producer(namesrv.address, deadline_s=STRANGER_WAIT_S) as producer:
        results = await asyncio.gather(*(producer.send(topic, body) for body in bodies))
    return Counter(result.queue.broker for result in results)


async def consume(namesrv: Door, topic: str, group: str, count: int) -> set[bytes]:
    """As many different bodies of the topic, from its beginning."""
    found: set[bytes] = set()
    async with asyncio.timeout(STRANGER_WAIT_S), Consumer(namesrv.address, group=group, topics=[topic]) as consumer:
        while len(found) < count:
            found |= {message.body for message in await consumer.get_many(100, wait_s=1.0)}
    return found


async def round_trip(namesrv: Door, topic: str, count: int = 40) -> Counter[str]:
    """Make the topic, send so many messages, and get exactly those; how many each broker name has taken."""
    await create_topic(namesrv, topic)
    bodies = [b"%s %d" % (topic.encode(), number) for number in range(count)]
    taken = await send(namesrv, topic, bodies)
    assert await consume(namesrv, topic, f"{topic}-group", count) == set(bodies)
    return taken
