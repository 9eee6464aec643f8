"""Settings of one consumer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ledgermq.client.group.start_position import Start
from ledgermq.client.group.subscription import Mode, Subscription
from ledgermq.remoting.route import MessageQueue

OnQueuesChanged = Callable[[tuple[MessageQueue, ...]], Awaitable[None] | None]
"""Called with queues that come or go; a function or a coroutine function."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The checked arguments of `Consumer`, which explains them.

    Attributes:
        subscriptions: by topic, the group's retry topic included.
    """

    group: str
    subscriptions: Mapping[str, Subscription]
    mode: Mode
    start: Start
    auto_commit_s: float | None
    prefetch_messages: int
    prefetch_bytes: int
    on_assigned: OnQueuesChanged | None
    on_revoked: OnQueuesChanged | None
    offsets_dir: Path
