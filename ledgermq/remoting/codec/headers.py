"""Headers of commands: the binary one, and JSON headers that differ from those of our own encoder.

The binary header (ROCKETMQ), the compact alternative to JSON:

| field | type |
|---|---|
| code | i16 (the upper bits of larger codes are lost) |
| language, by ordinal | i8 |
| version | i16 |
| opaque | i32 |
| flag | i32 |
| remark length, remark | i32, UTF-8 |
| ext length: bytes of everything behind it | i32 |
| repeated: key length, key, value length, value | i16, UTF-8, i32, UTF-8 |

Text of length 0 means that it is absent, so an empty value cannot be sent.

JSON headers that differ from those of our own encoder are read as leniently as Java reads them. Numbers and booleans
among the ext fields become text, nulls are dropped; ints may be numeric text; unknown members are ignored; a missing
flag or version is 0; a language that is not a text is "OTHER".

Source: apache/rocketmq `remoting/.../protocol/RocketMQSerializable.java`; behaviour of `RemotingCommand.headerDecode`
on com.alibaba.fastjson 1.2.83, as measured.
"""

import json
import struct
from typing import Any, Final

from ledgermq.remoting.codec.command import BINARY_HEADER, LANGUAGES, Command, NoFields
from ledgermq.remoting.codec.lenient_json import loads_numbers_as_text

_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_HEAD: Final = struct.Struct(">hbhiii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_OTHER: Final = LANGUAGES.index("OTHER")
_ORDINALS: Final = {name: ordinal for ordinal, name in enumerate(LANGUAGES)}


def decode_binary_header(header: bytes) -> Command:
    """Return the command of this header, without a body.

    Raises:
        ValueError: a length points outside the header, or text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_length = _HEAD.unpack_from(header)
        ext_at = _end(header, _HEAD.size, remark_length)
        (ext_length,) = _INT.unpack_from(header, ext_at)
        end = _end(header, ext_at + _INT.size, ext_length)
        ext = _decode_ext(header, ext_at + _INT.size, end) if ext_length else NoFields()
    except struct.error as error:
        raise ValueError(f"binary header of {len(header)} bytes is incomplete: {error}") from error
    remark = header[_HEAD.size : ext_at].decode() or None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(code, opaque, flag, ext, b"", remark, name, version, BINARY_HEADER)


def _decode_ext(header: bytes, at: int, end: int) -> dict[str, str]:
    ext = {}
    while at < end:
        (key_length,) = _SHORT.unpack_from(header, at)
        value_at = at + _SHORT.size + key_length
        (value_length,) = _INT.unpack_from(header, value_at)
        after = value_at + _INT.size + value_length
        if key_length < 0 or value_length < 0 or after > end:
            raise ValueError(f"ext field at {at}: key length {key_length}, value length {value_length}, end {end}")
        if key_length and value_length:
            ext[header[at + _SHORT.size : value_at].decode()] = header[value_at + _INT.size : after].decode()
        at = after
    return ext


def _end(header: bytes, start: int, length: int) -> int:
    if not 0 <= length <= len(header) - start:
        raise ValueError(f"length {length} at {start} of a binary header of {len(header)} bytes")
    return start + length


def encode_binary_header(command: Command) -> bytes:
    """Return the header of `command`.

    Raises:
        ValueError: a code or version beyond 16 bits, or a key beyond 32767 bytes.
    """
    remark = (command.remark or "").encode()
    ext = b"".join(_encode_field(key, value) for key, value in command.ext.items())
    language = _ORDINALS.get(command.language, _OTHER)
    try:
        head = _HEAD.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except struct.error as error:
        raise ValueError(f"{command!r} cannot be encoded as a binary header: {error}") from error
    return b"".join((head, remark, _INT.pack(len(ext)), ext))


def _encode_field(key: str, value: str) -> bytes:
    raw_key, raw_value = key.encode(), value.encode()
    if len(raw_key) > 0x7FFF:
        raise ValueError(f"a key has {len(raw_key)} bytes, which its length field cannot hold")
    return b"".join((_SHORT.pack(len(raw_key)), raw_key, _INT.pack(len(raw_value)), raw_value))


def decode_odd_json_header(header: bytes) -> Command:
    """Return the command of this header, without a body.

    Raises:
        JsonError: not JSON.
        ValueError: not an object, no code, no opaque, or a number beyond 32 bits.
    """
    fields = loads_numbers_as_text(header)
    if not isinstance(fields, dict):
        raise ValueError("the header is not a JSON object")
    language = fields.get("language")
    remark = fields.get("remark")
    return Command(
        _int_field(fields, "code"),
        _int_field(fields, "opaque"),
        _int_field(fields, "flag", 0),
        _ext(fields.get("extFields")),
        b"",
        None if remark is None else _as_text(remark),
        language if isinstance(language, str) and not language.isdigit() else "OTHER",
        _int_field(fields, "version", 0),
    )


def _int_field(fields: dict[str, Any], name: str, absent: int | None = None) -> int:
    value = fields.get(name)
    if value is None and absent is not None:
        return absent
    # numbers are text here, whether they were quoted or not; the limit of the length keeps int() cheap
    if not isinstance(value, str) or len(value) > 11 or not value.removeprefix("-").isdecimal():
        raise ValueError(f"{name} is {str(value)[:40]!r}, not an int")
    number = int(value)
    if not _INT_MIN <= number <= _INT_MAX:
        raise ValueError(f"{name} is {number}, which does not fit into 32 bits")
    return number


def _ext(value: Any) -> dict[str, str]:
    if value is None:
        return NoFields()
    if not isinstance(value, dict):
        raise ValueError(f"extFields is {str(value)[:40]!r}, not an object")
    return {key: _as_text(item) for key, item in value.items() if item is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
