"""Locks of queues that are handled in order: a broker lends a queue to one member of a group at a time (41, 42).

A lock lasts 60 s at the broker from its last renewal; it is renewed every 20 s. A new leader knows no locks, and gives
them to whoever asks first.

Source: apache/rocketmq `client/.../impl/consumer/RebalanceImpl.java` (lockAll, unlock), `LockBatchRequestBody.java`.
"""

import asyncio
import collections
import logging
from collections.abc import Iterable
from typing import Final

import orjson

from ledgermq.client.core.leader_plan import LeaderPlan
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError, UndecodableError
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError

_log: Final = logging.getLogger(__name__)

RENEWAL_S: Final = 20.0
ASK_AGAIN_S: Final = 0.5
UNLOCK_DEADLINE_S: Final = 2.0


class QueueLocks:
    """The locks of one member."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self.held: set[MessageQueue] = set()

    async def acquire(self, queue: MessageQueue) -> None:
        """Return once the queue is ours; asks again and again."""
        while not await self._lock_some(queue.broker, [queue]):
            await asyncio.sleep(ASK_AGAIN_S)
        self.held.add(queue)

    async def renew(self) -> list[MessageQueue]:
        """Renew all that are held; returns those that another member has now, and are held no more.

        A broker that does not answer has not said no: its locks are kept, as the broker keeps them for longer.
        """
        by_broker = collections.defaultdict(list)
        for queue in self.held:
            by_broker[queue.broker].append(queue)
        granted = await asyncio.gather(*(self._lock_some(broker, queues) for broker, queues in by_broker.items()))
        lost = [
            queue
            for queues, given in zip(by_broker.values(), granted)
            for queue in (queues if given is not None else ())
            if given is not None and queue not in given
        ]
        self.held.difference_update(lost)
        return lost

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Let others have these; a broker that does not hear of it finds out when the locks run out."""
        by_broker = collections.defaultdict(list)
        for queue in self.held.intersection(queues):
            by_broker[queue.broker].append(queue)
        self.held.difference_update(queues)
        for broker, some in by_broker.items():
            try:
                await self._call(RequestCode.UNLOCK_BATCH_MQ, broker, some, UNLOCK_DEADLINE_S)
            except LedgerMQError as failure:
                _log.warning("group %s: locks at %s are not given back: %s", self._group, broker, failure)

    async def _lock_some(self, broker: str, queues: list[MessageQueue]) -> set[MessageQueue] | None:
        """Those of one broker that are ours now; None when it does not say."""
        try:
            return _granted(await self._call(RequestCode.LOCK_BATCH_MQ, broker, queues, None))
        except LedgerMQError as failure:
            _log.warning("group %s: locks at %s: %s", self._group, broker, failure)
            return None

    async def _call(self, code: int, broker: str, queues: list[MessageQueue], deadline_s: float | None) -> bytes:
        body = {
            "clientId": self._session.client_id,
            "consumerGroup": self._group,
            "mqSet": [to_wire(queue) for queue in queues],
            "onlyThisBroker": False,
        }
        plan = LeaderPlan(self._session.routes, queues[0].topic, broker, code, {}, body=orjson.dumps(body))
        return bytes((await self._session.calls.run(plan, deadline_s=deadline_s)).response.body)


def to_wire(queue: MessageQueue) -> dict[str, object]:
    """RocketMQ's MessageQueue."""
    return {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic}


def _granted(body: bytes) -> set[MessageQueue]:
    try:
        queues = loads(body)["lockOKMQSet"]
        return {MessageQueue(str(q["topic"]), str(q["brokerName"]), int(q["queueId"])) for q in queues}
    except (JsonError, KeyError, TypeError, ValueError) as error:
        raise UndecodableError(f"answer to a request for locks: {error!r}") from error
