"""Message properties as text: `name 0x01 value 0x02` repeated, UTF-8; the last 0x02 may be missing.

If a name occurs twice, its last value counts; an empty name or value counts as absent. Java's parser has these rules,
so code that filters, indexes or de-duplicates by a property must have them, too.

Source: apache/rocketmq `common/message/MessageDecoder.java` (string2messageProperties, messageProperties2String);
names: `common/message/MessageConst.java`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ledgermq.message.errors import InvalidPropertyError

PROPERTIES_LENGTH_MAX: Final = 32767
"""Largest length in bytes; the length field is a signed 16-bit integer."""

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
SHARDING_KEY: Final = "__SHARDINGKEY"
NUMBER: Final = "LEDGERMQ_NUMBER"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the encoded properties, in the mapping's order.

    Raises:
        InvalidPropertyError: a separator inside a name, or 0x02 inside a value.
    """
    parts = []
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name:
            raise InvalidPropertyError(name, "0x01 or 0x02 in the name")
        if "\x02" in value:
            raise InvalidPropertyError(name, f"0x02 in the value {value!r}")
        parts.append(f"{name}\x01{value}\x02")
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise InvalidPropertyError(error.object[error.start], "a lone surrogate is not text") from None


def decode_properties(encoded: bytes | memoryview | str) -> dict[str, str]:
    """Return all properties; bytes that are not UTF-8 become U+FFFD, as in Java."""
    text = encoded if isinstance(encoded, str) else bytes(encoded).decode(errors="replace")
    properties = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Return what `decode_properties(raw).get(name)` returns, as bytes, without parsing the other properties."""
    needle = b"\x02" + name + b"\x01"
    limit = len(raw)
    while (found := raw.rfind(needle, 0, limit)) >= 0:
        value = _value_at(raw, found + len(needle))
        if value:
            return value
        limit = found  # an empty value counts as absent, so an earlier one counts
    if raw.startswith(needle[1:]):
        return _value_at(raw, len(needle) - 1) or None
    return None


def property_finder(name: bytes) -> Callable[[bytes], bytes | None]:
    """Return `find_property` for one name, to be called for many messages."""
    inside, first = b"\x02" + name + b"\x01", name + b"\x01"
    length = len(inside)

    def find(raw: bytes) -> bytes | None:
        start = raw.rfind(inside) + length
        if start < length:
            if not raw.startswith(first):
                return None
            start = length - 1
        end = raw.find(b"\x02", start)
        value = raw[start:end] if end >= 0 else raw[start:]
        return value or find_property(raw, name)

    return find


def _value_at(raw: bytes, start: int) -> bytes:
    end = raw.find(b"\x02", start)
    return raw[start:] if end < 0 else raw[start:end]
