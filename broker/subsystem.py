"""What every subsystem of the broker offers: the requests that it serves."""

from collections.abc import Callable

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection

Serve = Callable[[Connection, Command], None]
"""Serves a request: answers now or later, or raises a `Refusal`."""
