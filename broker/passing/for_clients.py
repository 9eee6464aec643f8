"""Serves a leader's requests to this member: questions and notices for its clients, changes of queue locks."""

from collections.abc import Callable

from broker.groups.clients import ClientTable
from broker.groups.shared_locks import LOCKS, SharedLocks
from broker.passing.relayed import FOR_CLIENT, only_frame
from ledgermq.remoting.client import NoRequests
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import encode
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import FrameError, RemotingError
from ledgermq.remoting.refusal import Cause, Refusal

_ANSWER_TIMEOUT_S = 10.0


class ForClients(NoRequests):
    """Serves the requests of a leader on the connection that this member made to it.

    Args:
        on_closed: called when such a connection has ended.
    """

    def __init__(self, clients: ClientTable, locks: SharedLocks, on_closed: Callable[[Connection], None]) -> None:
        self._clients = clients
        self._locks = locks
        self._on_closed = on_closed

    def on_request(self, connection: Connection, command: Command) -> None:
        """Pass a leader's request on to the client that it is for.

        Raises:
            Refusal: NOT_SUPPORTED, another request; QUERY_NOT_FOUND, no such client; MALFORMED_FIELD.
        """
        if command.code == LOCKS:
            self._locks.learn(command)
            return
        if command.code != FOR_CLIENT:
            super().on_request(connection, command)
        to = command.ext.get("to", "")
        client = self._clients.connected_at(to)
        if client is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"no client is connected from {to[:80]!r}")
        try:
            asked = only_frame(command.body)
        except FrameError as error:
            raise Refusal(Cause.MALFORMED_FIELD, f"a request for the client at {to}: {error}") from error
        if asked.is_oneway:
            client.oneway(asked)
            return

        def answered(outcome: Command | RemotingError) -> None:
            if isinstance(outcome, Command):
                connection.respond(command, ResponseCode.SUCCESS, {}, encode(outcome))
            else:
                connection.respond(command, ResponseCode.SYSTEM_ERROR, remark=str(outcome))

        client.call(asked, _ANSWER_TIMEOUT_S, answered)

    def on_closed(self, connection: Connection) -> None:
        """Report the end of a connection to a leader."""
        self._on_closed(connection)
