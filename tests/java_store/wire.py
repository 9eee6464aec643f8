"""A remoting client for tests: one connection, one request at a time, nothing of the client library's cleverness."""

import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledgermq.remoting.codec.lenient_json import loads
from tests.limits import WAIT_S

_TOO_BUSY: Final = "[TIMEOUT_CLEAN_QUEUE]"
"""What RocketMQ's broker says of a request that has waited for 200 ms, and that it has not looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a broker said."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, of Java's kind of JSON or of the standard's."""
        return loads(self.body)


class Wire:
    """A connection to one broker, `127.0.0.1:port`."""

    def __init__(self, port: int, limit_s: float = WAIT_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), limit_s)
        self._opaque = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Answer:
        """One request and its answer, whatever that says.

        Raises:
            OSError: the connection broke.
        """
        self._opaque += 1
        header = {"code": code, "flag": 0, "language": "JAVA", "version": 479, "serializeTypeCurrentRPC": "JSON"}
        header |= {"opaque": self._opaque, "extFields": {name: str(value) for name, value in (fields or {}).items()}}
        raw = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body)
        while True:
            frame = self._read(*struct.unpack(">I", self._read(4)))
            end = 4 + (struct.unpack_from(">I", frame)[0] & 0xFFFFFF)
            answer = json.loads(frame[4:end])
            if answer["flag"] & 1 and answer["opaque"] == self._opaque:
                said = answer.get("remark") or ""
                return Answer(answer["code"], said, answer.get("extFields") or {}, frame[end:])

    def must(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Answer:
        """`ask`, for what has to succeed; again while RocketMQ's broker is too busy for it."""
        deadline_s = time.monotonic() + WAIT_S
        while _TOO_BUSY in (answer := self.ask(code, fields, body)).remark and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert answer.code == 0, f"request {code} {fields}: {answer.code} {answer.remark[:300]}"
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("closed by the broker")
            data += part
        return bytes(data)
