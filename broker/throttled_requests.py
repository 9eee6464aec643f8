"""Requests that read messages wait while there is no room for their answers: each may have up to 16 MiB.

    request --- room -----> served now
            '-- no room --> waits; its connection is looked at again and again, and it is served when there is room,
                            or when a further request of the connection comes, which then waits instead

There is no room while much was written to the connection in this turn of the loop, or while the peer, or all peers
together, have not read too much (`Connection.is_full`). Held pulls have the same rule of their own
(`broker/pull/held_pulls.py`).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.subsystem import Serve
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.time_slice import TimeSlice

_OF_CONNECTION_MAX: Final = 1024
_COUNT_MAX: Final = 16_384
_SLICE_S: Final = 0.002
_REST_S: Final = 0.02


class ThrottledRequests:
    """Requests that wait for room, by connection.

    Args:
        later: calls a function after a number of seconds.

    Attributes:
        serve_late: serves a request that has waited, and answers its errors: `BrokerRequestHandler.serve_late`.
    """

    serve_late: Callable[[Serve, Connection, Command], None]

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._waiting: dict[Connection, deque[tuple[Command, Serve]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return self._count

    def guard(self, serve: Serve) -> Serve:
        """Return a function that serves as `serve` does, but later if there is no room now.

        It raises a `Refusal`, BUSY, if 1024 requests of the connection, or 16,384 in all, wait already.
        """

        def serve_in_room(connection: Connection, command: Command) -> None:
            if connection.is_full:
                self._wait(connection, command, serve)
            elif connection in self._waiting:
                requests = self._waiting[connection]
                requests.append((command, serve))
                self._serve_first(connection, requests)
            else:
                serve(connection, command)

        return serve_in_room

    def _wait(self, connection: Connection, command: Command, serve: Serve) -> None:
        own = self._waiting.get(connection, ())
        if len(own) >= _OF_CONNECTION_MAX or self._count >= _COUNT_MAX:
            remark = f"[OVERLOAD]system busy: {self._count} requests wait until answers are read"
            raise Refusal(Cause.BUSY, remark, retry_after_ms=1000)
        if not self._waiting:
            self._later(0.0, self._serve_some)
        self._waiting.setdefault(connection, deque()).append((command, serve))
        self._count += 1

    def _serve_some(self) -> None:
        """Serve one request of each connection that has room, for a slice; the others come first the next time."""
        time_slice, served = TimeSlice(_SLICE_S), 0
        for connection in list(self._waiting):
            requests = self._waiting.pop(connection)
            if connection.is_closed:
                self._count -= len(requests)
                continue
            if not connection.is_full:
                served += 1
                self._count -= 1
                self._serve_first(connection, requests)
            if requests:
                self._waiting[connection] = requests
            if time_slice.is_over():
                break
        if self._waiting:
            self._later(0.0 if served else _REST_S, self._serve_some)

    def _serve_first(self, connection: Connection, requests: deque[tuple[Command, Serve]]) -> None:
        command, serve = requests.popleft()
        self.serve_late(serve, connection, command)
