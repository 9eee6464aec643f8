"""What others sent, made into checked values: header fields (text by the protocol) and members of JSON bodies.

A bad one is refused by its name and value; nothing here is asserted.
"""

import re
from collections.abc import Mapping
from typing import Any

from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.lenient_json import loads
from ledgermq.remoting.refusal import Cause, Refusal

_I64 = 1 << 63
_DECIMAL = re.compile(r"-?[0-9]{1,19}")
_SHOWN = 100


def text(ext: Mapping[str, str], name: str) -> str:
    """A header field that must be there and not be empty.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field.
    """
    value = ext.get(name)
    if not value:
        raise Refusal(Cause.INVALID_PARAMETER, f"field {name} is missing")
    return value


def integer(ext: Mapping[str, str], name: str, default: int | None = None, *, low: int = -_I64) -> int:
    """A header field that is a decimal number in `[low, 2^63)`; `default` stands for a missing one.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field and its value.
    """
    value = ext.get(name)
    if value is None and default is not None:
        return default
    value = text(ext, name)
    if not _DECIMAL.fullmatch(value):
        raise Refusal(Cause.INVALID_PARAMETER, f"field {name} is not a number: {value[:_SHOWN]!r}")
    number = int(value)
    if not low <= number < _I64:
        raise Refusal(Cause.INVALID_PARAMETER, f"field {name} is out of range: {number} is below {low} or too large")
    return number


def boolean(ext: Mapping[str, str], name: str) -> bool | None:
    """A header field that is `true` or `false` in any case; None when it is missing.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field and its value.
    """
    value = ext.get(name)
    if value is None:
        return None
    if value.lower() not in ("true", "false"):
        raise Refusal(Cause.INVALID_PARAMETER, f"field {name} is not true or false: {value[:_SHOWN]!r}")
    return value.lower() == "true"


def address(ext: Mapping[str, str], name: str) -> str:
    """A header field that is `host:port`.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field and its value.
    """
    value = text(ext, name)
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise Refusal(Cause.INVALID_PARAMETER, f"field {name} is not host:port: {value[:_SHOWN]!r}")
    return value


def json_body(body: bytes | memoryview, what: str) -> Mapping[str, Any]:
    """A body that is one JSON object; errors as `json_value`."""
    value = json_value(body, what)
    if not isinstance(value, dict):
        raise bad_body(what, value, "a JSON object")
    return value


def json_value(body: bytes | memoryview, what: str) -> Any:
    """A body that is JSON, standard or as Java writes it.

    Raises:
        Refusal: SYSTEM_ERROR, as RocketMQ answers it, with the place of the fault.
    """
    try:
        return loads(body)
    except JsonError as error:
        raise Refusal(Cause.SYSTEM_ERROR, f"{what}: {error}") from error


def bad_body(what: str, value: object, wanted: str) -> Refusal:
    """The refusal of a body member that is not what it should be."""
    return Refusal(Cause.SYSTEM_ERROR, f"{what} is {str(value)[:_SHOWN]!r}, not {wanted}")
