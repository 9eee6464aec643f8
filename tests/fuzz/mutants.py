"""`python -m tests.fuzz.mutants FAULT broker|nameserver -c FILE`: a node with a planted fault for fuzzing to find."""

import asyncio
import dataclasses
import functools
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from broker.auth import guard
from broker.groups.offset_requests import OffsetRequests
from cli.main import main
from dledger.peers import wire
from ledgermq.message.hosts import Host
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.tls_listener import TlsListener
from nameserver.route_requests import RouteRequests

Serve = Callable[[OffsetRequests, Connection, Command], None]
_min_offset: Serve = OffsetRequests.min_offset
_let_in = TlsListener._let_in
_read_vote_request = wire._READERS[wire.VOTE_REQUEST]
_respond = Connection.respond
_kept: list[bytearray] = []


def key_error(requests: OffsetRequests, connection: Connection, command: Command) -> None:
    """A processor takes a field for granted that a client need not send."""
    command.ext["lo"]
    _min_offset(requests, connection, command)


def no_answer(requests: OffsetRequests, connection: Connection, command: Command) -> None:
    """A processor forgets to answer in one case."""
    if command.ext["queueId"] == "0":
        _min_offset(requests, connection, command)


def two_answers(requests: OffsetRequests, connection: Connection, command: Command) -> None:
    """A processor refuses, and goes on all the same."""
    if command.ext["queueId"] != "0":
        connection.respond(command, 1, remark="refused")
    _min_offset(requests, connection, command)


def hang(requests: OffsetRequests, connection: Connection, command: Command) -> None:
    """A processor counts up to a number that the client stated."""
    limit = time.thread_time() + 1.5
    while command.ext["queueId"] != "0" and time.thread_time() < limit:
        pass
    _min_offset(requests, connection, command)


def growth(connection: Connection, command: Command, *arguments: Any, **named: Any) -> None:
    """The broker and the nameserver keep something of every request that they answer."""
    _kept.append(bytearray(b"x" * (1 << 20)))
    _respond(connection, command, *arguments, **named)


def route_error(requests: RouteRequests, connection: Connection, command: Command) -> Any:
    """The nameserver fails on a topic's name."""
    return command.ext["topic"].encode("ascii")


def peer_error(meta: memoryview, data: memoryview, peer_id: str) -> Any:
    """A member of a group takes a field of another's for granted."""
    found: Any = _read_vote_request(meta, data, peer_id)
    return dataclasses.replace(found, last_index=[found.last_index][min(0, found.term)])


async def tls_error(door: TlsListener, visitor: socket.socket, is_tls: bool, client: Host | None) -> None:
    """What a handshake ends in is nobody's concern."""
    if is_tls and door._context is not None:
        loop, make = asyncio.get_running_loop(), functools.partial(door._make, client)
        await loop.connect_accepted_socket(make, visitor, ssl=door._context(), ssl_handshake_timeout=5)
    else:
        await _let_in(door, visitor, is_tls, client)


def every_right(*_: object) -> None:
    """Whoever is known has every right."""


def plant(fault: str) -> None:
    """Put it in."""
    if fault == "peer-error":
        wire._READERS[wire.VOTE_REQUEST] = peer_error
    else:
        owner, name, planted = FAULTS[fault]
        setattr(owner, name, planted)


FAULTS: Final[dict[str, tuple[Any, str, Callable[..., Any]]]] = {
    "key-error": (OffsetRequests, "min_offset", key_error),
    "no-answer": (OffsetRequests, "min_offset", no_answer),
    "two-answers": (OffsetRequests, "min_offset", two_answers),
    "hang": (OffsetRequests, "min_offset", hang),
    "growth": (Connection, "respond", growth),
    "route-error": (RouteRequests, "answer_route", route_error),
    "tls-error": (TlsListener, "_let_in", tls_error),
    "every-right": (guard, "check", every_right),
}
NODE_FAULTS: Final = tuple(name for name in FAULTS if name not in ("tls-error", "every-right"))

if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
