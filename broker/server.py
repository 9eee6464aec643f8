"""From request code to the function that serves it."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from broker.auth.guard import Guard
from broker.clients import ClientTable
from broker.unserved import not_served
from ledgermq.remoting.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.errors import DiskFailedError, DiskFullError, DiskReadError
from store.refusals import refusal_of

log = logging.getLogger(__name__)

Serve = Callable[[Connection, Command], None]


class BrokerRequestHandler:
    """Serves every connection of the broker.

    Args:
        guard: asked first, if it is needed.

    Attributes:
        refusals: how often each cause was given, by its slug.
    """

    def __init__(self, table: Mapping[int, Serve], clients: ClientTable, guard: Guard) -> None:
        self._table = dict(table)
        self._guard = guard if guard.is_needed else None
        self._clients = clients
        self.refusals: Counter[str] = Counter()

    def serve(self, code: int, serve: Serve) -> None:
        """Serve one more request code."""
        self._table[code] = serve

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are served."""
        return frozenset(self._table)

    def on_connected(self, connection: Connection) -> None:
        """Nothing is kept of a connection before it asks."""

    def on_request(self, connection: Connection, command: Command) -> None:
        """Serve one request; a refusal, the disk's too, is counted, and answered by the connection."""
        try:
            if self._guard is not None:
                self._guard.check(command, connection.peer[0])
            serve = self._table.get(command.code)
            if serve is None:
                raise not_served(command.code)
            serve(connection, command)
        except Refusal as refusal:
            self.refusals[refusal.cause.slug] += 1
            raise
        except (DiskReadError, DiskFailedError, DiskFullError) as error:
            log.error("request %d of %s meets a refusal of the disk: %s", command.code, connection.address, error)
            answer = refusal_of(error)
            self.refusals[answer.cause.slug] += 1
            raise answer from error

    def on_closed(self, connection: Connection) -> None:
        """The clients behind it are gone."""
        self._clients.connection_closed(connection)
