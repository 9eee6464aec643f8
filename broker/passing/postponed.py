"""Postpones one-way requests of members' clients whose quota is used up, until it is paid off.

A client that is connected here is not read meanwhile; a member is, since it has other clients. Requests with an answer
are refused, so that the member's client asks again; a one-way request would be lost.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from broker.passing.relayed import RelayedClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.rate_limited_log import RateLimitedLog

_COUNT_MAX: Final = 10_000
_BYTES_MAX: Final = 16 << 20

_log = logging.getLogger(__name__)


class Postponed:
    """The requests by client, in the order of arrival: at most 10,000, with 16 MiB of bodies.

    Attributes:
        dropped: number of requests that were not served because of these bounds, or whose client went first.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._waiting: dict[RelayedClient, deque[Command]] = {}
        self._count = 0
        self._bytes = 0
        self._drops = RateLimitedLog(_log)

    def add(self, client: RelayedClient, command: Command) -> None:
        """Keep a request of a client that is throttled; drop it when too much is kept."""
        size = len(command.body)
        if self._count >= _COUNT_MAX or self._bytes + size > _BYTES_MAX:
            self.dropped += 1
            self._drops.warning(
                "%s: a one-way request is dropped, its client's quota is used up and %d such requests wait",
                client.address,
                self._count,
            )
            return
        command.body = bytes(command.body)  # a view would keep all of what was received with it
        self._count += 1
        self._bytes += size
        if client not in self._waiting:
            self._waiting[client] = deque()
            self._serve_later(client)
        self._waiting[client].append(command)

    def forget(self, client: RelayedClient) -> None:
        """Drop what waits of a client that has gone."""
        waiting = self._waiting.pop(client, ())
        self.dropped += len(waiting)
        self._count -= len(waiting)
        self._bytes -= sum(len(command.body) for command in waiting)

    def _serve_later(self, client: RelayedClient) -> None:
        asyncio.get_running_loop().call_at(client.throttled_until, self._serve, client)

    def _serve(self, client: RelayedClient) -> None:
        waiting = self._waiting.get(client)
        while waiting and not client.is_throttled:
            command = waiting.popleft()
            self._count -= 1
            self._bytes -= len(command.body)
            client.serve(command)
        if waiting:
            self._serve_later(client)
        else:
            self._waiting.pop(client, None)
