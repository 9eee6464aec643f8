"""Stores deliveries of a slave that stands in for its master: as sends to masters of other broker names.

    deliver(drafts) -> each: a master that has the topic --310--> stored: into the journal
                             none, or all refuse for a while:     left to the own master, which has it in its log

Order is not kept, since deliveries go side by side. A send of which no answer comes is repeated, and may come twice.

Source: apache/rocketmq `broker/.../failover/EscapeBridge.java`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from broker.acting.journal import Delivered, DeliveryJournal
from broker.acting.routes import MemberRoutes, OtherMaster
from broker.counting.calls import STORED_CODES
from broker.delay.deliveries import Delivered as Done
from broker.delay.deliveries import Deliveries, DeliveryKind
from broker.state.names import is_system_topic
from broker.timers import Spawn
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.properties import DELAY, decode_properties, encode_properties
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from store.log.drafts import QueuedDraft
from store.timer.timer_message import TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS

_SEND_S: Final = 3.0
_ATTEMPTS: Final = 5
_AT_ONCE: Final = 32
_STORED: Final = (ResponseCode.SUCCESS, *STORED_CODES)
_WAITED: Final = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Properties by which the other master would let the message wait once more."""

_log = RateLimitedLog(logging.getLogger(__name__))


class OtherMasters:
    """Sends deliveries elsewhere, see `broker.delay.deliveries.Elsewhere`.

    Attributes:
        pause_s: seconds between two attempts.
        client: sends to other masters; None: nothing is sent.
        stored: messages that other masters have stored.
        left: messages left to the own master.
    """

    def __init__(
        self,
        name: str,
        routes: MemberRoutes,
        journal: DeliveryJournal,
        spawn: Spawn,
        clock_ms: Callable[[], int],
    ) -> None:
        self._group = f"CID_RMQ_SYS_{name}_stand_in"
        self._routes = routes
        self._journal = journal
        self._spawn = spawn
        self._clock_ms = clock_ms
        self._sending = asyncio.Semaphore(_AT_ONCE)
        self._run: object | None = None  # of standing in: what waits to be sent is not sent in a later one
        self._under_way = 0
        self._idle = asyncio.Event()
        self.pause_s = 1.0
        self.client: RemotingClient | None = None
        self.stored = 0
        self.left = 0

    def open(self, deliveries: Deliveries) -> None:
        """Begin to take deliveries; those in the journal count as delivered already."""
        self._run = object()
        for entry in self._journal.entries:
            entry.add_to(deliveries)

    def stop(self) -> None:
        """Begin no further sends."""
        self._run = None

    async def settled(self) -> None:
        """Return when the sends under way have their answers, or none in time; after `stop`."""
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    def deliver(self, kind: DeliveryKind, drafts: Sequence[QueuedDraft], done: Done) -> None:
        """Send the drafts; `done(True)` when each is stored elsewhere or left to the own master."""
        self._spawn(self._deliver(kind, drafts, done, self._run))

    async def _deliver(self, kind: DeliveryKind, drafts: Sequence[QueuedDraft], done: Done, run: object | None) -> None:
        await asyncio.gather(*(self._send(kind, draft, run) for draft in drafts))
        if self._goes_on(run):
            done(True)

    def _goes_on(self, run: object | None) -> bool:
        return run is not None and run is self._run

    async def _send(self, kind: DeliveryKind, draft: QueuedDraft, run: object | None) -> None:
        topic = draft.topic.decode()
        why = "no other master has its topic"
        for attempt in range(0 if is_system_topic(topic) else _ATTEMPTS):  # RocketMQ's log of POP is one, too
            if attempt:
                await asyncio.sleep(self.pause_s)
            for master in await self._routes.masters_of(topic):
                if not self._goes_on(run):
                    return
                why = await self._try(master, self._command(kind, master, topic, draft), run)
                if not why:
                    self._note(kind, topic, draft)
                    return
        self.left += 1
        _log.warning("a message for topic %s that waited here is left to the master of this name: %s", topic, why)

    async def _try(self, master: OtherMaster, command: Command, run: object | None) -> str:
        """Send once; return why the message is not stored, or an empty text."""
        self._under_way += 1
        try:
            async with self._sending:
                if self.client is None or not self._goes_on(run):
                    return "the master is back"
                if not self._journal.make_room():
                    return "there is no room for the note of another delivery"
                answer = await self.client.request(master.address, command, _SEND_S)
        except RemotingError as error:
            return str(error)
        finally:
            self._under_way -= 1
            self._idle.set()
        return "" if answer.code in _STORED else f"{master.name} answers {answer.code}: {answer.remark}"

    def _note(self, kind: DeliveryKind, topic: str, draft: QueuedDraft) -> None:
        self.stored += 1
        origin, born_ms = draft.prepared_transaction_offset, draft.born_timestamp
        try:
            self._journal.add(Delivered(int(kind), origin, born_ms, self._clock_ms(), topic))
        except OSError as error:
            _log.warning("the note of a delivery cannot be written, a restart may deliver again: %s", error)

    def _command(self, kind: DeliveryKind, master: OtherMaster, topic: str, draft: QueuedDraft) -> Command:
        properties = decode_properties(bytes(draft.properties))
        for name in _WAITED if kind is not DeliveryKind.TRANSACTION else ():
            properties.pop(name, None)
        queue_id = draft.queue_id % master.queue_count if master.queue_count else 0
        fields = {
            "a": self._group,
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": str(draft.sys_flag & ~HOST_MASK),
            "g": str(draft.born_timestamp),
            "h": str(draft.flag),
            "i": encode_properties(properties).decode(),
            "j": str(draft.reconsume_times),
            "k": "false",
            "m": "false",
            "n": master.name,
        }
        return Command(RequestCode.SEND_MESSAGE_V2, ext=fields, body=bytes(draft.body))
