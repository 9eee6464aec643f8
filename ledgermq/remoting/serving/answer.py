"""The answer that a request handler returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `ext` None: the header has no fields, as in RocketMQ's answer to that request."""

    ext: Mapping[str, str] | None = None
    body: bytes = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    def send(self, connection: Connection, command: Command) -> None:
        """Answer the command."""
        connection.respond(command, self.code, self.ext, self.body, remark=self.remark)


Handler = Callable[[Connection, Command], Answer | None]
"""Handles a request: returns the answer, or None when it follows later; raises `Refusal`."""
