"""Reading back what a test has sent."""

import asyncio
import uuid

from ledgermq.client import Consumer, Message
from tests.limits import WAIT_S


def fresh(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def read(namesrv: str, topic: str, count: int) -> list[Message]:
    """The first messages of a topic."""
    async with Consumer(namesrv, fresh("g"), topic) as consumer, asyncio.timeout(WAIT_S):
        return [await anext(consumer) for _ in range(count)]
