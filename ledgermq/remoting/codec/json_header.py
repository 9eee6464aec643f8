"""JSON headers that differ from those of our own encoder, read as leniently as Java reads them.

Numbers and booleans among the ext fields become text, nulls are dropped; ints may be numeric text; unknown members are
ignored; a missing flag or version is 0; a language that is not a text is "OTHER".

Source: behaviour of `RemotingCommand.headerDecode` on com.alibaba.fastjson 1.2.83, as measured.
"""

import json
from typing import Any, Final

from ledgermq.remoting.codec.command import Command, NoFields
from ledgermq.remoting.codec.lenient_json import loads_numbers_as_text

_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1


def decode_odd_json_header(header: bytes) -> Command:
    """Return the command of this header, still without its body.

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
        _int(fields, "code"),
        _int(fields, "opaque"),
        _int(fields, "flag", 0),
        _ext(fields.get("extFields")),
        b"",
        None if remark is None else _as_text(remark),
        language if isinstance(language, str) and not language.isdigit() else "OTHER",
        _int(fields, "version", 0),
    )


def _int(fields: dict[str, Any], name: str, absent: int | None = None) -> int:
    value = fields.get(name)
    if value is None and absent is not None:
        return absent
    # numbers come as text, whether quoted or not; the length bound keeps int() cheap
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
