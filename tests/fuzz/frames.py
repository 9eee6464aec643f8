"""Frames that are nearly right: of every request, in both forms of header, each part of them drawn wrong at times."""

import json
import struct
from collections.abc import Callable
from typing import Final

from ledgermq.remoting.codec.command import BINARY_HEADER, JSON_HEADER, Command
from ledgermq.remoting.codec.frame import encode
from tests.fuzz.requests import REQUESTS, Field, Request
from tests.fuzz.values import Values

_EXTRA: Final = (
    "AccessKey", "Signature", "SecurityToken", "_UNIQUE_KEY_QUERY", "lo", "ns", "nsd", "bname", "oway", "__ZONE_NAME",
    "__ZONE_MODE", "waitMillis", "knownVersion", "term", "confirmOffset", "x", "", "\x00",
)  # fmt: skip
_JSON_BODIES: Final = frozenset({18, 34, 41, 42, 46, 103, 200, 217, 225, 322, 400, 401, 3001, 3002, 3006, 3007, 200151})
_CLIENT_CODES: Final = (39, 40, 220, 221, 307, 309, 326)
_OTHER_CODES: Final = (*_CLIENT_CODES, 0, -1, 9999, 32768, 51001, 51002, 51004, 1001, 1003, 500, 2147483647)
_LIVELY: Final = frozenset(
    {"subscription", "exp", "properties", "i", "expressionType", "expType", "extraInfo", "queueId", "e", "sysFlag", "f",
     "offset", "queueOffset", "commitOrRollback", "delayLevel", "commitLogOffset", "order"}
)  # fmt: skip
_OFTEN: Final = (10, 11, 36, 37, 310, 320, 200050, 200051, 103, 105)
"""Requests without which nothing lies in the broker for the others to find."""

SAFE_HOLD_MS: Final = 20


def by_server(server: str) -> tuple[Request, ...]:
    return tuple(request for request in REQUESTS if request.server == server)


class Frames:
    """Draws frames for one server, `B` or `N`."""

    def __init__(self, values: Values, server: str) -> None:
        self._values = values
        self._random = values.random
        self._requests = [r for r in by_server(server) for _ in range(4 if r.code in _OFTEN else 1)]

    def request(self, opaque: int) -> Command:
        """A command that can be encoded; whatever its fields are."""
        values, request = self._values, self._random.choice(self._requests)
        fault_rate = self._random.choice((0.0, 0.0, 0.04, 0.1, 0.4))
        ext = {name: value for field in request.fields for name, value in self._field(request, field, fault_rate)}
        for _ in range(self._random.choice((0, 0, 0, 1, 3))):
            ext[self._random.choice(_EXTRA)] = values.text()
        if values.chance(0.02):
            ext |= {f"f{n}": "v" for n in range(self._random.choice((100, 200, 4000)))}
        code = self._random.choice(_OTHER_CODES) if values.chance(0.05) else request.code
        command = Command(code, opaque, ext=_held_shortly(ext), body=self.body(request))
        command.flag = self._random.choice((0,) * 12 + (1, 2, 3, 4, -1))
        command.language = self._random.choice(("JAVA", "JAVA", "GO", "PYTHON", "CPP", "nonsense"))
        command.version = self._random.choice((479, 479, 431, 373, 0, 36, -1))
        if values.chance(0.3) and -(1 << 15) <= code < 1 << 15 and all(len(name) < 1000 for name in ext):
            command.header_type = BINARY_HEADER
        if values.chance(0.05):
            command.remark = values.text()
        return command

    def _field(self, request: Request, field: Field, fault_rate: float) -> list[tuple[str, str]]:
        values = self._values
        if values.chance(fault_rate / 3) or (not field.required and values.chance(0.3)):
            return []
        if values.chance(fault_rate):
            return [(field.name, values.number() if field.type in "il" else values.text())]
        if field.name in _LIVELY and values.chance(0.5):
            return [(field.name, self._lively(field.name))]
        return [(field.name, request.good[field.name])]

    def _lively(self, name: str) -> str:
        """A value that is rightly another one each time."""
        values, choice = self._values, self._random.choice
        draws: dict[str, Callable[[], str]] = {
            "subscription": values.sql, "exp": values.sql, "properties": values.properties, "i": values.properties,
            "expressionType": lambda: choice(("TAG", "SQL92", "SQL92", "x")),
            "expType": lambda: choice(("TAG", "SQL92")), "extraInfo": values.handle, "queueId": lambda: choice("0123"),
            "e": lambda: choice("0123"), "sysFlag": lambda: str(self._random.randrange(32)),
            "f": lambda: choice(("0", "1", "4", "8", "12")), "offset": lambda: str(self._random.randrange(50)),
            "queueOffset": lambda: str(self._random.randrange(50)),
            "commitOrRollback": lambda: choice(("0", "8", "12")),
            "delayLevel": lambda: choice(("-1", "0", "3", "18")), "order": lambda: choice(("true", "false")),
            "commitLogOffset": lambda: str(self._random.randrange(20_000)),
        }  # fmt: skip
        return draws[name]()

    def body(self, request: Request) -> bytes:
        """The body of a request; mostly of the right kind."""
        values, draw = self._values, self._random.random()
        if draw < 0.03:
            return self._random.randbytes(self._random.choice((1, 100, 70_000)))
        if request.code == 103 and draw < 0.4:
            return values.deflated()
        if request.code == 320:
            return values.batch()
        if draw < 0.4:
            return request.body
        if request.code in _JSON_BODIES:
            return values.json(request.body)
        return values.damaged(request.body) if request.body else request.body

    def bytes_of(self, command: Command) -> bytes:
        """Its frame; at times with the header or the lengths made wrong."""
        whole = self.whole(command)
        draw = self._random.random()
        if draw < 0.80:
            return whole
        if draw < 0.90:
            return self._odd_json(command)
        if draw < 0.95:
            return self._wrong_lengths(whole)
        return self._values.damaged(whole)

    def whole(self, command: Command) -> bytes:
        """Its frame, changed where it could not be written."""
        try:
            whole = encode(command)
        except (ValueError, TypeError):  # a half of a surrogate pair, and other things JSON and UTF-8 do not hold
            command.ext = {name: value.encode("ascii", "replace").decode() for name, value in command.ext.items()}
            command.remark, command.header_type = None, JSON_HEADER
            whole = encode(command)
        return whole

    def _odd_json(self, command: Command) -> bytes:
        header = {
            "code": command.code, "flag": command.flag, "language": command.language, "opaque": command.opaque,
            "version": command.version, "serializeTypeCurrentRPC": "JSON", "extFields": dict(command.ext),
        }  # fmt: skip
        raw = self._values.json(json.dumps(header).encode())
        kind = self._random.choice((0, 0, 0, 0, 1, 2, 255))
        body = bytes(command.body)
        return struct.pack(">iI", 4 + len(raw) + len(body), kind << 24 | len(raw)) + raw + body

    def _wrong_lengths(self, whole: bytes) -> bytes:
        length, word = struct.unpack_from(">iI", whole)
        choices = (0, 1, 3, 4, -1, length + 1, length - 1, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, -(1 << 31))
        if self._values.chance(0.5):
            length = self._random.choice(choices)
        else:
            word = self._random.choice((0, 0xFFFFFF, word + 1, word - 1, 1 << 24, 0xFFFFFFFF, 1 << 20)) & 0xFFFFFFFF
        return struct.pack(">iI", length, word) + whole[8:]

    def greeting(self) -> bytes:
        """The start of another protocol."""
        return self._random.choice((
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00", b"\x00\x00\x00", b"\xff" * 8, b"SSH-2.0-x\r\n", bytes(200),
            self._random.randbytes(100),
        ))  # fmt: skip


def _held_shortly(ext: dict[str, str]) -> dict[str, str]:
    """So that a good long poll does not make the fuzzer wait."""
    return {name: _short(value) if name in ("suspendTimeoutMillis", "pollTime", "waitMillis") else value
            for name, value in ext.items()}  # fmt: skip


def _short(value: str) -> str:
    return str(SAFE_HOLD_MS) if value.isdecimal() and value.isascii() and len(value) < 20 else value
