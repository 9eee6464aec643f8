"""What may be said of a message when it is sent, for methods that pass it on: see `Producer.send`."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypedDict

from ledgermq.client.core.route import MessageQueue
from ledgermq.client.producer.outgoing import Keys
from ledgermq.client.producer.timing import Delay


class MessageOptions(TypedDict, total=False):
    """What belongs to the message."""

    tags: str | None
    keys: Keys | None
    properties: Mapping[str, str] | None


class SoonOptions(MessageOptions, total=False):
    """And how it is sent."""

    queue: MessageQueue | int | None
    order_key: str | None
    deadline_s: float | None
    attempts_max: int | None


class SendOptions(SoonOptions, total=False):
    """And when it is delivered."""

    delay: Delay | None
    delay_level: int | None
    deliver_at: datetime | None
