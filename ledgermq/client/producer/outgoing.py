"""A message before it is sent: checks of its parts, and the encoding of its properties.

    name 0x01 value 0x02 ...        KEYS joined by blanks, TAGS one tag, UNIQ_KEY the id that all retries share

Source: apache/rocketmq `common/.../message/MessageDecoder.java`, `client/.../Validators.java`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from ledgermq.client.core.checks import check_count, check_seconds, given
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.producer.timing import Delay
from ledgermq.message.properties import SHARDING_KEY
from ledgermq.remoting.route import MessageQueue

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_BYTES_MAX = 32_767
SEPARATORS = re.compile("[\x01\x02]")

Keys = str | Iterable[str]
Body = bytes | bytearray | memoryview

# fmt: off
RESERVED = frozenset({
    "KEYS", "TAGS", "WAIT", "UNIQ_KEY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
    "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MSG_REGION", "TRACE_ON",
    "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "POP_CK", "CONSUME_START_TIME", "INNER_NUM", "INNER_BASE",
    "__CRC32#", "CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "TTL", "CHECK_IMMUNITY_TIME_IN_SECONDS",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message of a batch.

    Attributes:
        body: 1 byte to 4 MiB.
        tags: one tag, by which consumers filter; None for none.
        keys: business keys, by which it can be looked up; a str is one key.
        properties: further properties, str to str; no RocketMQ broker keeps empty values.
    """

    body: Body
    tags: str | None = None
    keys: Keys | None = None
    properties: Mapping[str, str] | None = None


def check_body(body: Body) -> None:
    """Accept 1 to `BODY_BYTES_MAX` bytes.

    Raises:
        InvalidArgumentError: another type, empty, or too long; names the type or the length.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"body is {type(body).__name__}, not bytes: encode it first")
    if isinstance(body, memoryview) and (body.itemsize != 1 or not body.contiguous):
        raise InvalidArgumentError("body is a memoryview that is not contiguous bytes: convert it first")
    if not 0 < len(body) <= BODY_BYTES_MAX:
        raise InvalidArgumentError(f"body has {len(body)} bytes, 1 to {BODY_BYTES_MAX} are allowed")


def check_limits(deadline_s: float | None, attempts_max: int | None) -> None:
    """Accept the limits of one send; None stands for the producer's.

    Raises:
        InvalidArgumentError: not a number of seconds above 0, or not a number of attempts; names the argument.
    """
    check_seconds(**given(deadline_s=deadline_s))
    check_count(**given(attempts_max=attempts_max))


def encode_properties(
    unique_key: str, tags: str | None, keys: Keys | None, properties: Mapping[str, str] | None, own: str = ""
) -> str:
    """Return the properties of one message, encoded as requests carry them.

    Args:
        unique_key: the value of UNIQ_KEY.
        tags: one tag.
        keys: business keys.
        properties: those of the program.
        own: the client's own properties, already encoded.

    Raises:
        InvalidArgumentError: not a str, a reserved name, an empty value, a separator in a value, or too long in all.
    """
    parts = [f"UNIQ_KEY\x01{unique_key}\x02"]
    try:
        if tags is not None:
            parts.append(_entry("TAGS", tags))
        if keys is not None:
            parts.append(_entry("KEYS", keys if isinstance(keys, str) else " ".join(keys)))
        if properties:
            parts.extend(_own_entry(name, value) for name, value in properties.items())
    except (TypeError, AttributeError) as error:
        values = f"tags {tags!r}, keys {keys!r}, properties {properties!r}"
        raise InvalidArgumentError(f"tags are a text, keys texts, properties text to text, not {values}") from error
    if own:
        parts.append(own)
    text = "".join(parts)
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidArgumentError(f"properties take {len(text.encode())} bytes, at most {PROPERTIES_BYTES_MAX} fit")
    return text


def order_text(order_key: str, properties: Mapping[str, str] | None) -> str:
    """Return the encoded property with a message's order key, by which consumers can handle messages in parallel.

    It is empty when the key is empty, or the program gave the property itself.

    Raises:
        InvalidArgumentError: a separator in the key.
    """
    if not order_key or (properties is not None and SHARDING_KEY in properties):
        return ""
    return _entry(SHARDING_KEY, order_key)


def _own_entry(name: str, value: str) -> str:
    if name in RESERVED:
        raise InvalidArgumentError(f"property name {name!r} is reserved by RocketMQ: use another name")
    return _entry(name, value)


def _entry(name: str, value: str) -> str:
    if not name or not value:
        raise InvalidArgumentError(f"property {name!r} is {value!r}: names and values must not be empty")
    if SEPARATORS.search(name) or SEPARATORS.search(value):
        raise InvalidArgumentError(f"property {name!r} has a control character 1 or 2 in it: {value!r}")
    return f"{name}\x01{value}\x02"


class MessageOptions(TypedDict, total=False):
    """Options of the message itself; see `Producer.send`."""

    tags: str | None
    keys: Keys | None
    properties: Mapping[str, str] | None


class SoonOptions(MessageOptions, total=False):
    """`MessageOptions`, and how the message is sent."""

    queue: MessageQueue | int | None
    order_key: str | None
    deadline_s: float | None
    attempts_max: int | None


class SendOptions(SoonOptions, total=False):
    """`SoonOptions`, and when the message is delivered."""

    delay: Delay | None
    delay_level: int | None
    deliver_at: datetime | None
