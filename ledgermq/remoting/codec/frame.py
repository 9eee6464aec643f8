"""Encodes and parses frames, the form of every request and response.

    | length L: i32 | type: 8 bits, header length H: 24 bits | header: H bytes | body: L - 4 - H bytes |

L does not count itself. Type 0 is a JSON header, 1 the binary one (`headers`). A body of 0 bytes counts as no body.

`FrameParser` gets the received bytes in pieces of any size. A frame inside one piece is not copied: its body is a view
of that piece. Input that is not a frame raises `FrameError`; after that the connection cannot be used.

Source: apache/rocketmq `remoting/.../protocol/RemotingCommand.java`, `remoting/netty/NettyDecoder.java`.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import (
    BINARY_HEADER,
    JSON_HEADER,
    OUR_LANGUAGE,
    OUR_VERSION,
    RESPONSE_FLAG,
    Command,
    NoFields,
)
from ledgermq.remoting.codec.headers import decode_binary_header, decode_odd_json_header, encode_binary_header
from ledgermq.remoting.codec.repeated_headers import LEARN_AFTER, LEARN_EVERY, PATTERNS_MAX, HeaderPattern, pattern_of
from ledgermq.remoting.errors import FrameError, JsonError

FRAME_LENGTH_MAX: Final = 16 * 1024 * 1024
"""Bytes of a whole frame, its length field included."""

HEADER_LENGTH_MAX: Final = 256 * 1024
"""Bytes of a header; the largest legal one holds 32767 bytes of properties, six characters each when escaped."""

FIELDS_MAX: Final = 128
"""Fields of a header; a send has 20."""

PREFIX_LENGTH: Final = 8
"""Bytes before the header."""

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_LENGTH_MASK: Final = 0xFFFFFF
_HTTP: Final = int.from_bytes(b"HTTP")
_TLS_ALERT: Final = 0x15
_TLS_HANDSHAKE: Final = 0x16
_WORDS: Final = struct.Struct(">iI")
_INTS: Final = struct.Struct(">iiii")
_loads: Final = orjson.loads
_dumps: Final = orjson.dumps
_join: Final = "".join


def encode(command: Command) -> bytes:
    """Return the frame of a command, with the kind of header in `command.header_type`.

    Raises:
        ValueError: the binary header cannot hold it.
    """
    body = command.body
    if command.header_type == BINARY_HEADER:
        header = encode_binary_header(command)
    else:
        header = _dumps(_json_fields(command))
    length = len(header)
    return b"".join((_WORDS.pack(4 + length + len(body), command.header_type << 24 | length), header, body))


def _json_fields(command: Command) -> dict[str, Any]:
    """Return the header's members in the order in which Java writes them."""
    fields: dict[str, Any] = {"code": command.code}
    if command.ext or type(command.ext) is not NoFields:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    return fields


def frame_of(header: bytes, body: bytes | memoryview) -> list[bytes | memoryview]:
    """Return the pieces of a frame with an encoded JSON header."""
    length = len(header)
    head = _WORDS.pack(4 + length + len(body), length) + header
    return [head, body] if body else [head]


def encode_response_head(
    opaque: int,
    code: int,
    ext: Mapping[str, str] | None,
    remark: str | None,
    body_length: int,
    header_type: int = JSON_HEADER,
) -> bytes:
    """Return the frame of an answer without its body of `body_length` bytes, which the caller must send next.

    `header_type` is the request's: a client that sends the binary header saves the cost of JSON both ways.
    """
    if header_type == BINARY_HEADER:
        answer = Command(code, opaque, RESPONSE_FLAG, dict(ext or {}), b"", remark, OUR_LANGUAGE, OUR_VERSION)
        header = encode_binary_header(answer)
        return _WORDS.pack(4 + len(header) + body_length, BINARY_HEADER << 24 | len(header)) + header
    fields: dict[str, Any] = {"code": code}
    if ext is not None:
        fields["extFields"] = ext
    fields["flag"] = RESPONSE_FLAG
    fields["language"] = OUR_LANGUAGE
    fields["opaque"] = opaque
    if remark is not None:
        fields["remark"] = remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = OUR_VERSION
    header = _dumps(fields)
    length = len(header)
    return _WORDS.pack(4 + length + body_length, length) + header


class FrameParser:
    """Splits one connection's input into commands. Keeps at most one unfinished frame.

    Args:
        limit: largest size of a whole frame in bytes.
        header_limit: largest size of a header in bytes.
        fields_limit: largest number of fields of a header.
    """

    def __init__(
        self, limit: int = FRAME_LENGTH_MAX, header_limit: int = HEADER_LENGTH_MAX, fields_limit: int = FIELDS_MAX
    ) -> None:
        self._length_max = limit - 4
        self._header_max = header_limit
        self._fields_max = fields_limit
        self._fed = 0  # bytes of the connection so far
        self._held = bytearray()  # start of an unfinished frame
        self._patterns: dict[int, HeaderPattern] = {}  # by the length of their headers
        self._learn_in = LEARN_AFTER

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished frame received so far; 0 between frames."""
        return len(self._held)

    def forget(self) -> None:
        """Free the unfinished frame, since the connection ends."""
        self._held = bytearray()
        self._patterns.clear()

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands completed by this piece of input, in order.

        Bodies are views of `data`, or of the buffer in which a divided frame was gathered: they stay valid.

        Raises:
            FrameError: the input is not a frame; its `parsed` has the commands before the bad one.
        """
        commands: list[Command] = []
        base = self._fed
        self._fed = base + len(data)
        try:
            at = self._complete(data, base, commands) if self._held else 0
            at = self._parse(data, at, base, commands)
        except FrameError as error:
            error.parsed = commands
            raise
        if at < len(data):
            self._held = bytearray(memoryview(data)[at:])
        return commands

    def _complete(self, data: bytes, base: int, commands: list[Command]) -> int:
        """Fill up the held frame; return how much of `data` that took."""
        held = self._held
        start = base - len(held)
        at = 0
        while len(held) < (needed := self._frame_size(held, start)):
            if at == len(data):
                return at
            piece = data[at : at + needed - len(held)]
            held += piece
            at += len(piece)
        self._held = bytearray()  # the view of the body keeps the old one alive
        self._parse(held, 0, start, commands)
        return at

    def _frame_size(self, held: bytearray, start: int) -> int:
        """Return the size of the frame that begins with `held`, as far as it is known."""
        if len(held) < PREFIX_LENGTH:
            return PREFIX_LENGTH
        length, word = _WORDS.unpack_from(held)
        header_length = word & _LENGTH_MASK
        if not 4 + header_length <= length <= self._length_max or header_length > self._header_max or word >> 25:
            raise self._refusal(start, length, word)
        size: int = 4 + length
        return size

    def _parse(self, data: bytes | bytearray, at: int, base: int, commands: list[Command]) -> int:
        """Append the whole frames from `at` on; return where they end. `base` is the stream offset of `data`.

        One loop without Python calls, since this runs for each message.
        """
        size = len(data)
        view = memoryview(data)
        length_max, header_max = self._length_max, self._header_max
        pattern_for = self._patterns.get
        while size - at >= PREFIX_LENGTH:
            length, word = _WORDS.unpack_from(data, at)
            header_length = word & _LENGTH_MASK
            if not 4 + header_length <= length <= length_max or header_length > header_max or word >> 25:
                raise self._refusal(base + at, length, word)
            end = at + 4 + length
            if end > size:
                break
            body_at = at + PREFIX_LENGTH + header_length
            body = view[body_at:end] if end > body_at else b""
            pattern = pattern_for(word)  # the type of a JSON header is 0
            if pattern is not None:
                parts = pattern.unpack_from(data, at + PREFIX_LENGTH)
                if parts[::2] == pattern.constants and (repeated := pattern.command(parts, body)) is not None:
                    commands.append(repeated)
                    at = end
                    continue
            header = data[at + PREFIX_LENGTH : body_at]
            if word >> 24 == JSON_HEADER:
                try:
                    fields = _loads(header)
                    code, opaque, flag, version = fields["code"], fields["opaque"], fields["flag"], fields["version"]
                    ext, remark, language = fields.get("extFields"), fields.get("remark"), fields["language"]
                    # two C calls that fail unless these are four 32-bit ints, and all text
                    _INTS.pack(code, opaque, flag, version)
                    if ext is not None:
                        _join(ext.values())
                    if type(language) is not str or (remark is not None and type(remark) is not str):
                        raise TypeError("language and remark must be text")
                    command = Command(code, opaque, flag, ext, body, remark, language, version)
                except (ValueError, TypeError, KeyError, AttributeError, struct.error):
                    command = self._decode_odd(header, base + at, body)
            else:
                command = self._decode_binary(header, base + at, body)
            if len(command.ext) > self._fields_max:
                many = f"header with {len(command.ext)} fields, must be at most {self._fields_max}"
                raise FrameError(base + at, many)
            if command.code == _SEND:
                self._learn_in -= 1
                if not self._learn_in:
                    self._learn(bytes(header), command)
            commands.append(command)
            at = end
        return at

    def _learn(self, header: bytes, command: Command) -> None:
        """Make a pattern of a header, since many like it may follow."""
        self._learn_in = LEARN_EVERY
        pattern = pattern_of(header, command) if command.header_type == JSON_HEADER else None
        if pattern is None:
            return
        if len(self._patterns) >= PATTERNS_MAX:
            self._patterns.clear()
        elif len(header) not in self._patterns:
            self._learn_in = LEARN_AFTER
        self._patterns[len(header)] = pattern

    def _decode_odd(self, header: bytes | bytearray, start: int, body: bytes | memoryview) -> Command:
        try:
            command = decode_odd_json_header(bytes(header))
        except (ValueError, JsonError) as error:
            raise FrameError(start, f"header of {len(header)} bytes: {error}") from error
        command.body = body
        return command

    def _decode_binary(self, header: bytes | bytearray, start: int, body: bytes | memoryview) -> Command:
        try:
            command = decode_binary_header(bytes(header))
        except ValueError as error:
            raise FrameError(start, str(error)) from error
        command.body = body
        return command

    def _refusal(self, start: int, length: int, word: int) -> FrameError:
        header_length = word & _LENGTH_MASK
        if length >> 24 == _TLS_ALERT:
            return FrameError(start, "a TLS alert on a connection without TLS: the other end expects TLS")
        if length >> 24 == _TLS_HANDSHAKE:
            return FrameError(start, "a TLS handshake on a connection without TLS")
        if length == _HTTP:
            return FrameError(start, "an HTTP answer: this is an HTTP server's port")
        if not 4 <= length <= self._length_max:
            return FrameError(start, f"frame length {length}, must be 4 to {self._length_max}")
        if word >> 25:
            return FrameError(start, f"header type {word >> 24}, must be {JSON_HEADER} or {BINARY_HEADER}")
        most = min(length - 4, self._header_max)
        return FrameError(start, f"header length {header_length}, must be at most {most} in a frame of {length}")
