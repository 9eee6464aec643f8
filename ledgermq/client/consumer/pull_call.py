"""One pull at a time of one queue, which can be broken off while a broker holds it."""

import asyncio

from ledgermq.client.consumer.pulling import PULL_CODES, TIMEOUT_S, Pulled, pull_command, read_pulled
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.errors import LedgerMQError, UndecodableError, refusal_from, unreachable_from
from ledgermq.client.group.subscription import Subscription
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError


class PullCall:
    """Pulls.

    Attributes:
        address: who is being asked, or was last.
    """

    def __init__(self, remoting: RemotingClient, group: str, queue: MessageQueue, subscription: Subscription) -> None:
        self.address: str | None = None
        self._remoting = remoting
        self._group = group
        self._queue = queue
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._under_way: asyncio.Task[Command] | None = None

    def break_off(self) -> None:
        """Do not wait for an answer any longer."""
        if self._under_way is not None:
            self._under_way.cancel()

    async def run(self, address: str, offset: int) -> Pulled | LedgerMQError | None:
        """What a pull brings, how it failed, or None when it was broken off."""
        command = pull_command(self._group, self._queue, offset, self._subscription)
        self.address = address
        self._under_way = pull = self._loop.create_task(self._remoting.request(address, command, TIMEOUT_S))
        try:
            await asyncio.wait((pull,))
        finally:
            self._under_way = None
            pull.cancel()
        if pull.cancelled():
            return None
        failure = pull.exception()
        if isinstance(failure, RemotingError):
            return unreachable_from(address, failure)
        if failure is not None:
            raise failure
        answer = pull.result()
        if answer.code not in PULL_CODES:
            return refusal_from(address, answer.code, answer.remark, answer.ext)
        try:
            return read_pulled(address, self._queue, offset, self._subscription, answer)
        except UndecodableError as error:
            return error
