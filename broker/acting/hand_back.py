"""A master that is back asks its slaves what they delivered meanwhile, before it delivers anything itself.

    master, before its deliveries --STAND_BACK {from}--> slave: stands back, waits for its sends --> entries; again

An entry counts if this log has a message of the same birth at its offset. A slave of RocketMQ's does not know
STAND_BACK: its progress (43, 45 and 60) is read instead. RocketMQ's master reads the progress of every slave, ours
included (`BrokerPreOnlineService`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from broker.acting.journal import Delivered, entry_of
from broker.acting.routes import MemberRoutes
from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries
from broker.passing.leader_link import UnknownGreetingError, open_link
from broker.passing.member_requests import STAND_BACK
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import decode_record
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.route import LEADER_ID
from store.errors import StoreError

ENTRIES_AT_ONCE: Final = 2000

_WAIT_S: Final = 10.0
"""How long deliveries wait for a slave that nameservers know and that does not answer."""

_PAUSE_S: Final = 0.2

_log = logging.getLogger(__name__)


class HandBack:
    """The master's end.

    Args:
        ask_rocketmq: asks RocketMQ's slave at an address, and returns when its progress is taken over.
    """

    def __init__(
        self,
        context: BrokerContext,
        deliveries: Deliveries,
        routes: MemberRoutes,
        ask_rocketmq: Callable[[str], Awaitable[None]],
    ) -> None:
        self._loop = context.loop
        self._store = context.store
        self._limits: Limits = context.config.limits
        self._deliveries = deliveries
        self._routes = routes
        self._ask_rocketmq = ask_rocketmq
        self._secrets: Secrets = ()
        self.client: RemotingClient | None = None

    def open(self, client: RemotingClient, secrets: Secrets) -> None:
        """Set the client by which slaves are asked, and the secrets of masters and slaves."""
        self.client, self._secrets = client, secrets

    async def ask_slaves(self) -> None:
        """Ask each living slave what it delivered; return when all have answered, or after ten seconds.

        A slave that has not answered stops its deliveries only when it finds its master: messages may be delivered
        twice.
        """
        deadline, asked = self._loop.time() + _WAIT_S, set[str]()
        why = "no nameserver answers"
        while True:
            groups = await self._routes.members()
            slaves = {address for group in groups for number, address in group.items() if number != LEADER_ID}
            for address in slaves - asked:
                try:
                    await self._ask(address)
                    asked.add(address)
                except (RemotingError, Refusal, ValueError) as error:
                    why = f"the slave at {address}: {error}"
            if groups and not slaves - asked:
                return
            if self._loop.time() >= deadline:
                _log.warning("deliveries begin without the answer of every slave that delivered meanwhile: %s", why)
                return
            await asyncio.sleep(_PAUSE_S)

    async def _ask(self, address: str) -> None:
        """Ask one slave, page by page.

        Raises:
            RemotingError, Refusal, ValueError: no answer, or none that can be read.
        """
        assert self.client is not None
        try:
            link = await open_link(self.client, address, self._secrets, self._limits)
        except UnknownGreetingError:
            await self._ask_rocketmq(address)
            return
        taken = position = 0
        while position >= 0:
            answer = await link.ask(Command(STAND_BACK, ext={"from": str(position)}))
            if answer.code != ResponseCode.SUCCESS:
                raise ValueError(f"request {STAND_BACK} is answered with {answer.code}: {answer.remark}")
            entries = orjson.loads(answer.body)
            if not isinstance(entries, list) or len(entries) > ENTRIES_AT_ONCE:
                raise ValueError("its deliveries are no list")
            taken += sum(self.take(entry_of(values)) for values in entries)
            following = integer(answer.ext, "next")
            position = following if following > position else -1
        if taken:
            _log.info("the slave at %s delivered %d messages while this master was away", address, taken)

    def take(self, entry: Delivered) -> bool:
        """Count an entry as delivered, if it is about a message of this log."""
        try:
            found = self._store.reader.look_up(entry.origin)
            if found is None or decode_record(found).born_timestamp != entry.born_ms:
                return False
        except (StoreError, CorruptRecordError):
            return False
        entry.add_to(self._deliveries)
        return True
