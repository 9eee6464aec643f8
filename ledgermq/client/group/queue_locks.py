"""Locks of queues that are handled in order: a broker grants a lock to one member of a group at a time (41, 42).

A lock expires at the broker 60 s after its last renewal; it is renewed every 20 s. A new leader knows the locks of the
former one.

A lock that the broker has granted and that this member does not know of would keep every other member off the queue
for those 60 s. So a queue that is given up is unlocked whenever a request may have locked it: also when the request
was cancelled before its answer, and when a renewal that was under way is answered after the queue was released.

Source: apache/rocketmq `client/.../impl/consumer/RebalanceImpl.java` (lockAll, unlock), `LockBatchRequestBody.java`.
"""

import asyncio
import collections
import logging
from collections.abc import Iterable
from typing import Final

import orjson

from ledgermq.client.core.answers import read_body
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.route import MessageQueue, parse_queue

_log: Final = logging.getLogger(__name__)

RENEWAL_S: Final = 20.0
ASK_AGAIN_S: Final = 0.5
LOG_EVERY_S: Final = 10.0  # interval of requests for a lock that another member holds
UNLOCK_DEADLINE_S: Final = 2.0


class QueueLocks:
    """The locks of one member.

    Attributes:
        held: queues whose locks are known to be ours.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._loop = asyncio.get_running_loop()
        self.held: set[MessageQueue] = set()
        self._requested: set[MessageQueue] = set()  # requested locks that may be ours without our knowledge

    async def acquire(self, queue: MessageQueue) -> None:
        """Return once this member holds the queue's lock; asks every 0.5 s; logs that it waits at once, and every 10 s.

        When it is cancelled, the lock may be ours all the same: call `release` for the queue.
        """
        self._requested.add(queue)
        began_at = self._loop.time()
        log_at = 0.0
        while not await self._lock_some(queue.broker, [queue]):
            now = self._loop.time()
            if now >= log_at:
                waited_s = now - began_at
                _log.warning("group %s: %s has waited for its lock for %.0f s", self._group, queue, waited_s)
                log_at = now + LOG_EVERY_S
            await asyncio.sleep(ASK_AGAIN_S)
        self._requested.discard(queue)
        self.held.add(queue)

    async def renew(self) -> list[MessageQueue]:
        """Renew all that are held; returns those that another member has now, which are held no more.

        A broker that does not answer has not refused: its locks are kept, since the broker keeps them for longer.
        """
        by_broker = collections.defaultdict(list)
        for queue in sorted(self.held):
            by_broker[queue.broker].append(queue)
        granted = await asyncio.gather(*(self._lock_some(broker, queues) for broker, queues in by_broker.items()))
        asked = set().union(*by_broker.values())
        # locks released meanwhile: the renewal may have arrived after the release
        await self._unlock(asked - self.held - self._requested)
        lost = [
            queue
            for queues, given in zip(by_broker.values(), granted)
            for queue in queues
            if given is not None and queue not in given and queue in self.held
        ]
        self.held.difference_update(lost)
        return lost

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release these locks; a broker that cannot be told keeps them until they expire."""
        ours = (self.held | self._requested).intersection(queues)
        self.held -= ours
        self._requested -= ours
        await self._unlock(ours)

    async def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        by_broker = collections.defaultdict(list)
        for queue in sorted(queues):
            by_broker[queue.broker].append(queue)
        await asyncio.gather(*(self._unlock_some(broker, some) for broker, some in by_broker.items()))

    async def _unlock_some(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, queues, UNLOCK_DEADLINE_S)
        except LedgerMQError as failure:
            _log.warning("group %s: locks at broker %s could not be released: %s", self._group, broker, failure)

    async def _lock_some(self, broker: str, queues: list[MessageQueue]) -> set[MessageQueue] | None:
        """Return the queues of one broker whose locks this member holds now; None when the broker does not answer."""
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, queues, None)
            return read_body(broker, "locks", answer, lambda body: set(map(parse_queue, body["lockOKMQSet"])))
        except LedgerMQError as failure:
            _log.warning("group %s: no answer about locks at broker %s: %s", self._group, broker, failure)
            return None

    async def _call(self, code: int, broker: str, queues: list[MessageQueue], deadline_s: float | None) -> bytes:
        body = {
            "clientId": self._session.client_id,
            "consumerGroup": self._group,
            "mqSet": [to_wire(queue) for queue in queues],
            "onlyThisBroker": False,
        }
        answered = await self._session.calls.at_leader(
            queues[0].topic, broker, code, {}, body=orjson.dumps(body), deadline_s=deadline_s
        )
        return bytes(answered.response.body)


def to_wire(queue: MessageQueue) -> dict[str, object]:
    """Return RocketMQ's MessageQueue."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}
