"""Header fields of a request: text on the wire, checked values here. A bad one is refused by its name.

Every value of extFields is text by the protocol; a JSON number or boolean that a lax client sent was turned into its
text by the frame parser.
"""

from collections.abc import Mapping
from typing import Final

from ledgermq.remoting.refusal import Cause, Refusal

I32_MAX = (1 << 31) - 1
I32_MIN = -(1 << 31)
I64_MAX = (1 << 63) - 1
I64_MIN = -(1 << 63)

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
"""One-letter names of the send header, and what they stand for."""


def text(fields: Fields, name: str) -> str:
    """A field that must be there.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field.
    """
    value = fields.get(name)
    if value is None:
        raise Refusal(Cause.INVALID_PARAMETER, f"field {_shown(name)} is missing")
    return value


def integer(fields: Fields, name: str, default: int | None = None, *, low: int = I32_MIN, high: int = I32_MAX) -> int:
    """A decimal number in `[low, high]`; `default` (when given) stands for a missing field.

    Raises:
        Refusal: INVALID_PARAMETER, naming the field and its value.
    """
    value = fields.get(name)
    if value is None:
        if default is not None:
            return default
        raise Refusal(Cause.INVALID_PARAMETER, f"field {_shown(name)} is missing")
    try:
        number = int(value)
    except ValueError:
        raise Refusal(Cause.INVALID_PARAMETER, f"field {_shown(name)} is not a number: {value[:100]!r}") from None
    if not low <= number <= high:
        remark = f"field {_shown(name)} is out of range: {number} is not in [{low}, {high}]"
        raise Refusal(Cause.INVALID_PARAMETER, remark)
    return number


def long(fields: Fields, name: str, default: int | None = None) -> int:
    """A decimal number of 64 bits; otherwise as `integer`."""
    return integer(fields, name, default, low=I64_MIN, high=I64_MAX)


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    """`true` in any case is true, a missing field is `default`, anything else is false, as Java reads it."""
    value = fields.get(name)
    return default if value is None else value.lower() == "true"


def _shown(name: str) -> str:
    return f"{name} ({SEND_NAMES[name]})" if name in SEND_NAMES else name
