"""Delayed delivery: the properties by which brokers know when a message is to be delivered.

    delay          TIMER_DELAY_MS     so many ms after it was stored, by the broker's clock
    deliver_at     TIMER_DELIVER_MS   at that time (Unix ms)
    delay_level    DELAY              after the broker's delay of that level; by default 1 to 18: 1 s … 2 h

Source: apache/rocketmq `common/.../message/MessageConst.java`, `store/.../timer/TimerMessageStore.java` (5.x).
"""

import base64
import binascii
from datetime import datetime, timedelta

from ledgermq.client.core.checks import check_text, check_wait, unix_ms
from ledgermq.client.errors import InvalidArgumentError

Delay = float | timedelta
"""Seconds, or a timedelta."""

LEVEL_MAX = (1 << 31) - 1  # brokers use their last level for larger ones
_HANDLE_WORDS = 5


def timing_text(delay: Delay | None, delay_level: int | None, deliver_at: datetime | None) -> str:
    """Return the encoded property for the one argument that is given; empty when all are None, or the delay is 0.

    Raises:
        InvalidArgumentError: more than one is given, a negative delay, a level below 1, or a time without a time zone.
    """
    if delay is None and delay_level is None and deliver_at is None:
        return ""
    if (delay is not None) + (delay_level is not None) + (deliver_at is not None) > 1:
        raise InvalidArgumentError("of delay, delay_level and deliver_at only one can be given")
    if delay is not None:
        return _delay_text(delay)
    if delay_level is not None:
        if not isinstance(delay_level, int) or isinstance(delay_level, bool) or not 1 <= delay_level <= LEVEL_MAX:
            raise InvalidArgumentError(f"delay_level is {delay_level!r}: levels are whole numbers from 1 on")
        return f"DELAY\x01{delay_level}\x02"
    assert deliver_at is not None, "the only one left"
    return f"TIMER_DELIVER_MS\x01{unix_ms(deliver_at, 'deliver_at')}\x02"


def _delay_text(delay: Delay) -> str:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    check_wait(delay=seconds)
    return f"TIMER_DELAY_MS\x01{round(seconds * 1000)}\x02" if seconds else ""


def parse_recall_handle(text: str) -> tuple[str, str]:
    """Return topic and broker name of a delayed message, from its `SendResult.recall_handle`.

    Raises:
        InvalidArgumentError: the text is not a recall handle.
    """
    check_text(text, "recall handle")
    try:
        words = base64.urlsafe_b64decode(text).decode().split(" ")
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"{text!r} is not a recall handle: {error}") from error
    if len(words) < _HANDLE_WORDS:
        raise InvalidArgumentError(f"{text!r} is not a recall handle")
    return words[1], words[2]
