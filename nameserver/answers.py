"""What a request's handler gives back, and what it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with code 0. `ext` None means that the header has no fields, as RocketMQ's answer to that request."""

    ext: Mapping[str, str] | None = None
    body: bytes = b""


Handler = Callable[[Connection, Command], Answer | None]
"""Answers a request; raises `Refusal`; or returns None when the answer comes later."""
