"""Requests of this broker to the nameservers with which it registers."""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from broker.config import BrokerConfig
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Refusal

T = TypeVar("T")

_log: Final = RateLimitedLog(logging.getLogger(__name__))


class OwnNameservers:
    """Asks one nameserver after the other.

    Attributes:
        addresses: `host:port` of each.
        client: makes the requests; without one, nobody answers.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.addresses = config.namesrv_addrs
        self.client: RemotingClient | None = None

    async def first(self, command: Command, timeout_s: float, parse: Callable[[bytes], T]) -> T | None:
        """Return the first answer that `parse` accepts; None if there is none. Errors of `parse` are logged."""
        for address in self.addresses:
            if (found := await self._ask(address, command, timeout_s, parse)) is not None:
                return found
        return None

    async def all(self, command: Command, timeout_s: float, parse: Callable[[bytes], T]) -> list[T]:
        """Return the parsed answers of all nameservers whose answer `parse` accepts."""
        found = [await self._ask(address, command, timeout_s, parse) for address in self.addresses]
        return [one for one in found if one is not None]

    async def _ask(self, address: str, command: Command, timeout_s: float, parse: Callable[[bytes], T]) -> T | None:
        if self.client is None:
            return None
        try:
            answer = await self.client.request(address, Command(command.code, ext=command.ext), timeout_s)
            return parse(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None
        except (RemotingError, Refusal, LookupError, ValueError, TypeError, AttributeError) as error:
            _log.warning("nameserver %s did not answer request %d: %s", address, command.code, error)
            return None
