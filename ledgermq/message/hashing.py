"""Java's `String.hashCode`, and the tag codes that consume-queue units hold.

Source: java.lang.String; apache/rocketmq `common/message/MessageExtBrokerInner.java` (tagsString2tagsCode).
"""

import functools
import struct


def java_string_hash(text: str) -> int:
    """Return the signed 32-bit hash of the UTF-16 units of `text`: `h = 31 * h + unit`."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (value * 31 + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-le", "surrogatepass")
        for unit in struct.unpack(f"<{len(raw) // 2}H", raw):
            value = (value * 31 + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@functools.lru_cache(maxsize=4096)
def tags_code(tags: str | bytes) -> int:
    """Return the tags code in a queue unit for these tags; 0 for none. Signed, so it sign-extends to 64 bits.

    Cached: a topic has few tags, and the hash costs microseconds.
    """
    return java_string_hash(tags if isinstance(tags, str) else tags.decode(errors="replace"))


def index_hash(text: str) -> int:
    """Return the hash of an index key: the absolute value of Java's hash, or 0 where Java's `abs` stays negative."""
    value = abs(java_string_hash(text))
    return 0 if value == 0x8000_0000 else value
