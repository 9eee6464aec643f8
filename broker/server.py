"""From request code to the function that serves it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.admin.unserved import not_served
from broker.append.appender import Appender
from broker.auth.guard import Guard
from broker.counting.calls import SEND_CODES
from broker.counting.counting import Counting
from broker.groups.clients import ClientTable
from broker.header_forms import FORMS
from broker.long_requests import LongRequests
from broker.passing.member_requests import GREETING
from broker.state import names
from broker.state.metadata import Metadata
from broker.subsystem import Serve, Steps
from broker.turns import TurnQueue
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.quotas import Quotas
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFailedError, DiskFullError, DiskReadError, StoreError
from store.log.refusals import refusal_of

log = logging.getLogger(__name__)

_TOPIC_CODES = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
_GROUP_CODES = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
_WATCHED_CODES = frozenset(_TOPIC_CODES + _GROUP_CODES)
_SHARED: Final = "isShared"
"""Attribute of a connection on which requests of more than one user have come."""

_DISK_ERRORS: Final = (DiskReadError, DiskFailedError, DiskFullError)


class BrokerRequestHandler:
    """Serves every connection of the broker.

    Args:
        guard: asked first, if it is needed.
        turns: take the steps of long requests, and of what a connection in many groups leaves behind.
        metadata: counts what requests create.
        appender: knows how much of what they change is not committed.
        quotas: of users, and of what is created.

    Attributes:
        refusals: how often each cause was given, by its slug.
        client_closed: called with each connection that has ended, before its clients are forgotten.
    """

    def __init__(
        self,
        clients: ClientTable,
        guard: Guard,
        counting: Counting,
        turns: TurnQueue,
        metadata: Metadata,
        appender: Appender,
        quotas: Quotas,
    ) -> None:
        self._served: dict[int, Serve] = {}
        self._diverted: dict[int, Serve] = {}
        self._table: dict[int, Serve] = {}  # what is served, with what is diverted
        self._counting = counting
        self._calls = counting.calls
        self._guard = guard if guard.is_needed else None
        self._clients = clients
        self._turns = turns
        self._metadata = metadata
        self._quotas = quotas
        self._of_user = Counter[str]()  # open connections
        self._long = LongRequests(
            turns, self._fail, lambda: metadata.uncounted, self._count_created, lambda: appender.unsettled_bytes
        )
        self.refusals: Counter[str] = Counter()
        self.client_closed: Callable[[Connection], None] = lambda _: None

    def serve(self, table: Mapping[int, Serve]) -> None:
        """Serve these request codes from now on.

        Raises:
            ValueError: one of them is served already.
        """
        if twice := sorted(self._served.keys() & table.keys()):
            raise ValueError(f"request codes that two subsystems serve: {', '.join(map(str, twice))}")
        self._served |= _measured(table)
        self._table = self._served | self._diverted

    def divert(self, table: Mapping[int, Serve]) -> None:
        """Have these functions serve their codes until the next call; an empty table ends that."""
        self._diverted = _measured(table)
        self._table = self._served | self._diverted

    def serve_again(self, connection: Connection, command: Command) -> None:
        """Serve a request that was diverted, now or later; see `serve_late`."""
        self.serve_late(self._served[command.code], connection, command)

    def serve_late(self, serve: Serve, connection: Connection, command: Command) -> None:
        """Serve a request that has waited; it was checked before, and a refusal is answered here."""
        uncounted = self._metadata.uncounted
        try:
            steps = serve(connection, command)
            if steps is not None:
                self._long.begin(connection, command, steps)
        except Exception as error:
            self._fail(connection, command, error)
        finally:
            if self._metadata.uncounted != uncounted:
                self._count_created(connection, uncounted)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are served."""
        return frozenset(self._served)

    def on_connected(self, connection: Connection) -> None:
        """Do nothing: a connection has no state before its first request."""

    def on_request(self, connection: Connection, command: Command) -> None:
        """Serve one request. Refusals, those of the disk too, are counted here and answered by the connection."""
        uncounted = self._metadata.uncounted
        try:
            if self._guard is not None and command.code != GREETING:  # which only the secret of members makes good
                user = self._guard.check(command, connection.peer[0])
                if user != connection.user:
                    self._signed_by(connection, user)
            serve = self._table.get(command.code)
            if serve is None:
                raise not_served(command.code)
            steps = serve(connection, command)
            if steps is not None:
                self._long.begin(connection, command, steps)
        except Refusal as refusal:
            self._count_refused(command, refusal)
            raise
        except _DISK_ERRORS as error:
            raise self._disk_refusal(connection, command, error) from error
        finally:
            if self._metadata.uncounted != uncounted:
                self._count_created(connection, uncounted)

    def _signed_by(self, connection: Connection, user: str | None) -> None:
        """Note who signs the requests of a connection.

        One on which several users sign, as a proxy's or another member's, counts for none of them from then on.

        Raises:
            Refusal: BUSY, the user has as many connections as one may have; this one is closed.
        """
        if connection.user is not None and user is not None:
            self._leaves(connection)
            connection.attributes[_SHARED] = True
        if connection.is_relayed or _SHARED in connection.attributes:  # a relayed connection is counted by its member
            connection.user = user
            return
        most = self._quotas.connections_of_user
        if user is not None and most and self._of_user[user] >= most:
            close = partial(connection.close, f"user {user!r} has {most} connections")
            asyncio.get_running_loop().call_soon(close)  # when the refusal is queued
            raise Refusal(Cause.BUSY, f"[OVERLOAD]user {user} has {most} connections (maxConnectionsPerUser)")
        self._leaves(connection)
        connection.user = user
        if user is not None:
            self._of_user[user] += 1

    def _leaves(self, connection: Connection) -> None:
        user, connection.user = connection.user, None
        if user is not None and not connection.is_relayed and _SHARED not in connection.attributes:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]

    def _count_created(self, connection: Connection, before: int) -> None:
        """Count what the connection's request has created since `Metadata.uncounted` was `before`.

        A long request counts its first slice inside `on_request`, which then finds nothing more to count.
        """
        count = self._metadata.uncounted - before
        self._metadata.uncounted = before
        connection.throttle(self._quotas.created(connection.block, connection.user, count, time.monotonic()))

    def _fail(self, connection: Connection, command: Command, error: Exception) -> None:
        """Answer with what a request raised later."""
        if isinstance(error, _DISK_ERRORS):
            error = self._disk_refusal(connection, command, error)
        elif isinstance(error, Refusal):
            self._count_refused(command, error)
        connection.fail(command, error)

    def _disk_refusal(self, connection: Connection, command: Command, error: StoreError) -> Refusal:
        log.error("request %d of %s failed because of the disk: %s", command.code, connection.address, error)
        refusal = refusal_of(error)
        self._count_refused(command, refusal)
        return refusal

    def on_answered(self, command: Command, code: int) -> None:
        """See `AnswerWatcher`. Times of sends are taken per batch instead."""
        request = command.code
        if request in SEND_CODES or not hasattr(command, "since"):
            return
        self._calls.answered(command, code)
        if request not in _WATCHED_CODES:
            return
        if request in _TOPIC_CODES:
            is_system = names.is_system_topic(command.ext.get("topic", ""))
            self._counting.events.topic_created(is_system, code == ResponseCode.SUCCESS, command.since)
        else:
            self._counting.events.group_created(code == ResponseCode.SUCCESS, command.since)

    def _count_refused(self, command: Command, refusal: Refusal) -> None:
        self.refusals[refusal.cause.slug] += 1
        if command.code in SEND_CODES:
            self._counting.calls.refused(command, refusal.code)

    def on_closed(self, connection: Connection) -> None:
        """Remove the clients of a closed connection."""
        self.client_closed(connection)
        self._turns.run_steps(self._clients.connection_closed(connection))
        self._leaves(connection)


def _measured(table: Mapping[int, Serve]) -> dict[int, Serve]:
    """Return the table with functions that take the times of requests; those of sends are taken per batch."""
    return {code: serve if code in SEND_CODES else _timed(code, serve) for code, serve in table.items()}


def _timed(code: int, serve: Serve) -> Serve:
    """Return a function that checks the header, notes the start time and calls `serve`."""
    form = FORMS.get(code)

    def run(connection: Connection, command: Command) -> Steps | None:
        command.since = time.monotonic()
        command.is_held = False
        if form is not None:
            form.check(command.ext)
        return serve(connection, command)

    return run
