"""Reads and checks the header fields of a request. The refusal of a bad field names it.

The protocol has text for every value of extFields; the frame parser turns JSON numbers and booleans of lax clients
into text.
"""

import re
from collections.abc import Mapping
from typing import Final

from ledgermq.remoting.addresses import is_port
from ledgermq.remoting.refusal import Cause, Refusal

I32_MAX: Final = (1 << 31) - 1
I32_MIN: Final = -(1 << 31)
I64_MAX: Final = (1 << 63) - 1
I64_MIN: Final = -(1 << 63)

Fields = Mapping[str, str]

SEND_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
"""One-letter names of the fields of a send, and their long names."""

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SHOWN_MAX: Final = 100


def text(fields: Fields, name: str) -> str:
    """Return a field that must be there.

    Raises:
        Refusal: MALFORMED_FIELD, names the field.
    """
    value = fields.get(name)
    if value is None:
        raise _missing(name)
    return value


def filled(fields: Fields, name: str) -> str:
    """Return a field that must be there and not be empty.

    Raises:
        Refusal: MALFORMED_FIELD, names the field.
    """
    value = fields.get(name)
    if not value:
        raise _missing(name)
    return value


def integer(fields: Fields, name: str, default: int | None = None, *, low: int = I32_MIN, high: int = I32_MAX) -> int:
    """Return a decimal number in `[low, high]`; a field that is missing or empty is `default`, if given.

    Raises:
        Refusal: MALFORMED_FIELD, names the field and its value.
    """
    value = fields.get(name)
    if not value:
        if default is not None:
            return default
        raise _missing(name)
    if not _DECIMAL.fullmatch(value):
        raise _bad(name, value, "not a number")
    number = int(value)
    if not low <= number <= high:
        remark = f"field {_shown(name)} is out of range: {number} is not in [{low}, {high}]"
        raise Refusal(Cause.MALFORMED_FIELD, remark)
    return number


def long(fields: Fields, name: str, default: int | None = None, *, low: int = I64_MIN) -> int:
    """Return a decimal number of 64 bits, at least `low`; otherwise as `integer`."""
    return integer(fields, name, default, low=low, high=I64_MAX)


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    """Return whether the field is `true` in any case, as Java reads it; a missing field is `default`."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"


def optional_boolean(fields: Fields, name: str) -> bool | None:
    """Return `true` or `false` in any case; None when it is missing.

    Raises:
        Refusal: MALFORMED_FIELD, names the field and its value.
    """
    value = fields.get(name)
    if value is None:
        return None
    if value.lower() not in ("true", "false"):
        raise _bad(name, value, "not true or false")
    return value.lower() == "true"


def address(fields: Fields, name: str) -> str:
    """Return a field that is `host:port`.

    Raises:
        Refusal: MALFORMED_FIELD, names the field and its value.
    """
    value = filled(fields, name)
    host, _, port = value.rpartition(":")
    if not host or not is_port(port):
        raise _bad(name, value, "not host:port")
    return value


def _missing(name: str) -> Refusal:
    return Refusal(Cause.MALFORMED_FIELD, f"field {_shown(name)} is missing")


def _bad(name: str, value: str, what: str) -> Refusal:
    return Refusal(Cause.MALFORMED_FIELD, f"field {_shown(name)} is {what}: {value[:_SHOWN_MAX]!r}")


def _shown(name: str) -> str:
    return f"{name} ({SEND_NAMES[name]})" if name in SEND_NAMES else name
