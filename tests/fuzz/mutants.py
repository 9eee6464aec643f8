"""`python -m tests.fuzz.mutants FAULT broker|nameserver -c FILE`: a node with a planted fault for fuzzing to find."""

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from broker.offset_requests import OffsetRequests
from cli.main import main
from ledgermq.remoting.command import Command
from ledgermq.remoting.connection import Connection
from nameserver.client_requests import ClientRequests

Serve = Callable[[OffsetRequests, Connection, Command], None]
_min_offset: Serve = OffsetRequests.min_offset
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


def growth(requests: OffsetRequests, connection: Connection, command: Command) -> None:
    """A processor keeps something of every request."""
    _kept.append(bytearray(b"x" * (4 << 20)))
    _min_offset(requests, connection, command)


def route_error(requests: ClientRequests, connection: Connection, command: Command) -> Any:
    """The nameserver fails on a topic's name."""
    return command.ext["topic"].encode("ascii")


FAULTS: Final[dict[str, tuple[type[Any], str, Callable[..., Any]]]] = {
    "key-error": (OffsetRequests, "min_offset", key_error),
    "no-answer": (OffsetRequests, "min_offset", no_answer),
    "two-answers": (OffsetRequests, "min_offset", two_answers),
    "hang": (OffsetRequests, "min_offset", hang),
    "growth": (OffsetRequests, "min_offset", growth),
    "route-error": (ClientRequests, "answer_route", route_error),
}

if __name__ == "__main__":
    owner, name, fault = FAULTS[sys.argv[1]]
    setattr(owner, name, fault)
    sys.exit(main(sys.argv[2:]))
