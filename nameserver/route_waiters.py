"""Route requests that wait for a change of the topic's route, or until their time is up."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection

Key = tuple[Connection, int]
"""The connection and the number of the request."""

_Name = TypeVar("_Name")
_MOST = 100_000
"""Requests that wait, of all connections; each takes about 1 KiB."""


class _Held(NamedTuple):
    command: Command
    topic: str
    known_version: int | None
    timer: asyncio.TimerHandle


class RouteWaiters:
    """The held requests of one nameserver.

    A change costs a check of each topic that is waited for; the end of a connection, one of its own requests.

    Args:
        version: returns the present version of a topic's route.
        is_led: whether every broker name of a topic's route has its leader, or expects none soon.
        answer: answers a request now.
    """

    def __init__(
        self,
        version: Callable[[str], int],
        is_led: Callable[[str], bool],
        answer: Callable[[Connection, Command], None],
    ) -> None:
        self._version = version
        self._is_led = is_led
        self._answer = answer
        self._held: dict[Key, _Held] = {}
        self._by_topic: dict[str, dict[Key, None]] = {}
        self._by_connection: dict[Connection, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self, connection: Connection, command: Command, topic: str, known_version: int | None, wait_s: float
    ) -> None:
        """Answer later: when the route has another version than the known one, or after `wait_s`.

        None as version: when the route is led. A second request of the same number answers the first one.

        When `_MOST` requests wait already, the one that has waited longest is answered now.
        """
        key = (connection, command.opaque)
        self._release(key)
        if len(self._held) >= _MOST:
            self._release(next(iter(self._held)))
        timer = asyncio.get_running_loop().call_later(wait_s, self._release, key)
        self._held[key] = _Held(command, topic, known_version, timer)
        self._by_topic.setdefault(topic, {})[key] = None
        self._by_connection.setdefault(connection, {})[key] = None

    def wake(self) -> None:
        """Answer the requests whose routes have changed."""
        for topic, keys in list(self._by_topic.items()):
            version, is_led = self._version(topic), self._is_led(topic)
            for key in list(keys):
                known = self._held[key].known_version
                if is_led if known is None else known != version:
                    self._release(key)

    def forget(self, connection: Connection) -> None:
        """Forget the requests of a closed connection."""
        for key in list(self._by_connection.get(connection, ())):
            self._take(key)

    def release_all(self) -> None:
        """Answer everything now, because the nameserver stops."""
        for key in list(self._held):
            self._release(key)

    def _release(self, key: Key) -> None:
        held = self._take(key)
        if held is not None:
            self._answer(key[0], held.command)

    def _take(self, key: Key) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            held.timer.cancel()
            _remove(self._by_topic, held.topic, key)
            _remove(self._by_connection, key[0], key)
        return held


def _remove(index: dict[_Name, dict[Key, None]], name: _Name, key: Key) -> None:
    keys = index[name]
    del keys[key]
    if not keys:
        del index[name]
