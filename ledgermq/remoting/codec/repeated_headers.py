"""Reads, without JSON, headers of sends that differ from an earlier one of their connection in a few values only.

    {"code":310,"extFields":{"b":"T","e":"3","g":"1700000000000","i":"UNIQ_KEY.7F..  WAIT.true",..},"opaque":12,..}
     ------- constant -----------v---v--------vvvvvvvvvvvvv------------------vvvv---------------------------vv----

A pattern is made of a header that was parsed as JSON. When it is made, a header of the same length with other letters
and digits at these places is parsed, too: the pattern is used only if the two differ in these values alone. Headers
that fit no pattern are parsed as JSON.
"""

import re
import string
import struct
from typing import Any, Final

import orjson

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command

PATTERNS_MAX: Final = 8
"""Most patterns of one connection; each is for headers of another length."""
LEARN_AFTER: Final = 8
"""Number of sends of a connection that fit no pattern before one is made."""
LEARN_EVERY: Final = 256
"""The same after one that could not be used or that replaced another, since making one costs as much as ten sends."""

_HEADER_MAX: Final = 1024
"""Largest header, in bytes, of which a pattern is kept: any connection, even unsigned, may have `PATTERNS_MAX`."""
_OPAQUE_MAX: Final = 2**31 - 1
_ZERO: Final = ord("0")
_NAMES: Final = ("opaque", "topic", "queue_id", "born", "key")
_PLACES: Final = re.compile(
    rb'"opaque":(?P<opaque>[1-9][0-9]{1,9})(?=[,}])|"b":"(?P<topic>[0-9A-Za-z_%-]{1,127})"'
    rb'|"e":"(?P<queue_id>[0-9]{1,5})"|"g":"(?P<born>[0-9]{1,15})"'
    rb'|UNIQ_KEY\\u0001(?P<key>[0-9A-Za-z]{1,64})(?=\\u0002|")'
)
_ALL: Final = string.digits + string.ascii_letters
_OTHER: Final = bytes.maketrans(_ALL.encode(), (_ALL[1:10] + "1" + _ALL[11:] + "a").encode())
_ALNUM: Final = bytes.maketrans(b"_%-", b"aaa")
"""Maps the characters `_%-` of a topic name to letters, so that only letters and digits remain."""
_LOWER: Final = bytes.maketrans(b"0123456789", b"1012345678")


class HeaderPattern:
    """A header of SEND_MESSAGE_V2 with the places of values that differ between messages.

    Attributes:
        unpack_from: divides a header of this length into constant and changing parts, in turn.
        constants: the constant parts.
        flag, language, version, ext: of the header from which it was made.
        derived: set by the server: what all sends of this pattern have in common; None at first.
    """

    __slots__ = (
        "_after",
        "_before",
        "_born_at",
        "_key_at",
        "_opaque_at",
        "_queue_id_at",
        "_topic_at",
        "constants",
        "derived",
        "ext",
        "flag",
        "language",
        "unpack_from",
        "version",
    )

    def __init__(self, sizes: list[int], header: bytes, names: list[str], command: Command) -> None:
        layout = struct.Struct(">" + "".join(f"{size}s" for size in sizes))
        self.unpack_from = layout.unpack_from
        self.constants: tuple[bytes, ...] = layout.unpack(header)[::2]
        self._opaque_at, self._topic_at, self._queue_id_at, self._born_at, self._key_at = (
            2 * names.index(name) + 1 for name in _NAMES
        )
        self.flag, self.language, self.version = command.flag, command.language, command.version
        self.ext = command.ext
        key = layout.unpack(header)[self._key_at].decode()
        self._before, _, self._after = command.ext.get("i", "").partition(f"UNIQ_KEY\x01{key}")
        self.derived: Any = None

    def command(self, parts: tuple[bytes, ...], body: bytes | memoryview) -> "RepeatedSend | None":
        """Return the command of a header with these parts; None if it must be parsed as JSON."""
        opaque, queue_id, born = parts[self._opaque_at], parts[self._queue_id_at], parts[self._born_at]
        key, topic = parts[self._key_at], parts[self._topic_at]
        if not (opaque + queue_id + born).isdigit() or not key.isalnum() or opaque[0] == _ZERO:
            return None
        number = int(opaque)
        if number > _OPAQUE_MAX or not topic.translate(_ALNUM).isalnum():
            return None
        return RepeatedSend(self, number, body, topic, queue_id, born, key, parts)

    def ext_of(self, topic: bytes, queue_id: bytes, born: bytes, key: bytes) -> dict[str, str]:
        """Return the header fields of a send with these values."""
        properties = f"{self._before}UNIQ_KEY\x01{key.decode()}{self._after}"
        return self.ext | {"b": topic.decode(), "e": queue_id.decode(), "g": born.decode(), "i": properties}


class RepeatedSend(Command):
    """A send whose header fits a pattern. Its fields are assembled only when they are read.

    Attributes:
        pattern: the pattern.
        topic: its name, letters, digits and `_%-`.
        queue_id: the number of the queue, digits.
        born: the time at the sender, digits.
        key: of the message.
    """

    __slots__ = ("_ext", "_parts", "born", "key", "pattern", "queue_id", "topic")

    def __init__(
        self,
        pattern: HeaderPattern,
        opaque: int,
        body: bytes | memoryview,
        topic: bytes,
        queue_id: bytes,
        born: bytes,
        key: bytes,
        parts: tuple[bytes, ...],
    ) -> None:
        self.code = RequestCode.SEND_MESSAGE_V2
        self.opaque = opaque
        self.flag = pattern.flag
        self.body = body
        self.remark = None
        self.language = pattern.language
        self.version = pattern.version
        self.header_type = 0
        self.pattern = pattern
        self.topic = topic
        self.queue_id = queue_id
        self.born = born
        self.key = key
        self._parts = parts
        self._ext: dict[str, str] | None = None

    @property
    def header(self) -> bytes:
        """The header as it was received."""
        return b"".join(self._parts)

    @property
    def ext(self) -> dict[str, str]:  # type: ignore[override]
        """The header fields."""
        if self._ext is None:
            self._ext = self.pattern.ext_of(self.topic, self.queue_id, self.born, self.key)
        return self._ext


def pattern_of(header: bytes, command: Command) -> HeaderPattern | None:
    """Return a pattern of the header of a send, given as received and as parsed; None if a value is missing."""
    if len(header) > _HEADER_MAX or command.remark is not None:
        return None
    found = list(_PLACES.finditer(header))
    names = [match.lastgroup or "" for match in found]
    if sorted(names) != sorted(_NAMES):
        return None
    sizes, pieces, at = [], [], 0
    for match, name in zip(found, names, strict=True):
        start, end = match.span(name)
        sizes += [start - at, end - start]
        value = header[start:end]
        other = value[:1] + value[1:].translate(_LOWER) if name == "opaque" else value.translate(_OTHER)
        pieces += [header[at:start], other]
        at = end
    pattern = HeaderPattern([*sizes, len(header) - at], header, names, command)
    # check the places: a header with other values at them must be parsed to these values, and to no other difference
    changed = b"".join(pieces) + header[at:]
    expected = pattern.command(pattern.unpack_from(changed), b"")
    try:
        fields, sample = orjson.loads(changed), orjson.loads(header)
    except ValueError:
        return None
    if expected is None or fields != sample | {"opaque": expected.opaque, "extFields": expected.ext}:
        return None
    return pattern if pattern.ext_of(*_values(pattern, header)) == command.ext else None


def _values(pattern: HeaderPattern, header: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    command = pattern.command(pattern.unpack_from(header), b"")
    return (b"", b"", b"", b"") if command is None else (command.topic, command.queue_id, command.born, command.key)
