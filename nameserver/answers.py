"""The results and types of request handlers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with code 0. `ext` None: the header has no fields, as in RocketMQ's answer to that request."""

    ext: Mapping[str, str] | None = None
    body: bytes = b""


Handler = Callable[[Connection, Command], Answer | None]
"""Handles a request: returns the answer, or None when it follows later; raises `Refusal`."""
