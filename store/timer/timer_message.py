"""The timer in a record of the timer topic.

Its properties name the second in which it is due (`TIMER_OUT_MS`, floored); the exact moment is told by what the sender
asked for and when the record was stored. Deliveries keep to the exact moment, the wheel to the second.

Source: apache/rocketmq `broker/.../util/HookUtils.java` (transformTimerMessage),
`store/.../timer/TimerMessageStore.java` (enqueue, buildDeleteKey), 5.3.3.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ledgermq.message.properties import REAL_TOPIC, UNIQ_KEY, decode_properties
from ledgermq.message.record import dispatch_fields

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"

_ASKED = ((TIMER_DELAY_SEC, 1000), (TIMER_DELAY_MS, 1), (TIMER_DELIVER_MS, 1))
_DIGITS_MAX: Final = 18


class TimerMessage(NamedTuple):
    """One timer.

    Attributes:
        store_ms: when its record was stored.
        out_ms: `TIMER_OUT_MS`; it is due in the precision's span behind that.
        due_ms: exactly when.
        topic: the real one.
        key: `topic+unique key`, by which a deletion names it; empty without a unique key.
        deletes: the key of the timer that it takes back, or empty.
    """

    physical_offset: int
    size: int
    queue_offset: int
    store_ms: int
    out_ms: int
    due_ms: int
    topic: str
    key: str
    deletes: str


def delete_key(topic: str, unique_key: str) -> str:
    """Return the key by which a deletion names a timer."""
    return f"{topic}+{unique_key}"


def asked_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a sender's properties ask for delivery, in ms since the epoch; None when they do not.

    Raises:
        ValueError: the property that counts is no number of at most 18 digits; the message names it.
    """
    for name, unit_ms in _ASKED:
        value = properties.get(name)
        if value is not None:
            number = whole_number(value)
            if number is None:
                raise ValueError(f"property {name} is {value[:40]!r}, not a number")
            return number if name == TIMER_DELIVER_MS else now_ms + number * unit_ms
    return None


def parse_timer(record: memoryview, precision_ms: int) -> TimerMessage | None:
    """Parse the timer in a checked record; None if it has no time, or no topic to go to."""
    size, _, _, queue_offset, physical_offset, store_ms, _, encoded = dispatch_fields(record, 0)
    properties = decode_properties(encoded)
    out_ms = whole_number(properties.get(TIMER_OUT_MS, ""))
    topic = properties.get(REAL_TOPIC)
    if out_ms is None or out_ms < 0 or topic is None:
        return None
    due_ms = min(max(_exact(properties, store_ms) or 0, out_ms), out_ms + precision_ms)
    unique = properties.get(UNIQ_KEY)
    key = delete_key(topic, unique) if unique else ""
    deletes = properties.get(TIMER_DELETE_KEY, "")
    return TimerMessage(physical_offset, size, queue_offset, store_ms, out_ms, due_ms, topic, key, deletes)


def whole_number(value: str) -> int | None:
    """Parse a decimal number as Java's `Long.parseLong` does, of at most 18 digits; None for other text."""
    digits = value[1:] if value[:1] in ("-", "+") else value
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def _exact(properties: Mapping[str, str], store_ms: int) -> int | None:
    """Return the exact due time in ms; None if the properties have none.

    A timer that was rolled on has it as an absolute time, since its store time is a later one.
    """
    if TIMER_ROLL_TIMES in properties:
        return whole_number(properties.get(TIMER_DELIVER_MS, ""))
    try:
        return asked_time(properties, store_ms)
    except ValueError:
        return None
