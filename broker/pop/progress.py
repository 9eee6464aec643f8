"""POP progress: changed at once on the leader, and appended to the log soon after.

    take, ack --> checkpoints, orders (this leader only) --every 200 ms, beside the offsets--> log --> every node
                                                                                                new leader: load

Checkpoints are in the same record as the consumer offsets behind their messages (where there are thousands, in a record
before it). So the next leader either has the checkpoint and delivers the messages again when they are due, or has the
older offset and gives them to the next request, hardly ever both. An acknowledgement that came within 200 ms before a
leader dies is lost, and its message is delivered again.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Final, TypeVar

from broker.context import BrokerContext
from broker.state.offsets import GATHER_SECONDS, CommitDone
from broker.state.pop_core import Checkpoint, Checkpoints
from broker.state.pop_order import Orders
from broker.state.pop_tables import PopChange
from broker.state.tables import parts_of
from ledgermq.remoting.refusal import Refusal

_VALUES_PER_RECORD: Final = 2000

_V = TypeVar("_V")


class PopProgress:
    """The leader's tables of checkpoints and orders, and their way into the log.

    Attributes:
        checkpoints, orders: empty while this node does not lead; call `changed` after changing them.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._state = context.state
        self._role = context.role
        self._loop = context.loop
        self._clock_ms = context.clock_ms
        self._events = context.counting.events
        self._timer: asyncio.TimerHandle | None = None
        self._unsettled = 0
        self._settled = asyncio.Event()
        self._on_due: Callable[[], None] = lambda: None
        self._is_leading = False
        self._seen_ms = 0
        self.checkpoints = Checkpoints()
        self.orders = Orders()
        self._offsets = context.offsets
        context.offsets.beside = self._take_changes

    def lead(self, on_due: Callable[[], None]) -> None:
        """Load the tables from the replicated state: this node leads from now on.

        `on_due` is called when the earliest checkpoint may have changed. Nothing happens when this node leads already:
        its tables are newer than the replicated state.
        """
        if self._is_leading:
            return
        self._is_leading = True
        self._on_due = on_due
        self.checkpoints.load(self._state.pop.checkpoints)
        self.orders.load(self._state.pop.orders)
        self._seen_ms = self._clock_ms()
        self._clock_is(self._seen_ms)
        on_due()

    def now_ms(self) -> int:
        """Return the time by the wall clock, in ms since the epoch; adjust the tables if the clock was set back."""
        now_ms = self._clock_ms()
        if now_ms < self._seen_ms and self._is_leading:
            self._clock_is(now_ms)
        self._seen_ms = now_ms
        return now_ms

    def _clock_is(self, now_ms: int) -> None:
        self.checkpoints.clock_is(now_ms)
        self.orders.clock_is(now_ms)
        if self.orders.has_changes():
            self.changed()

    def follow(self) -> None:
        """Clear the tables: this node does not lead any more, and changes that the log does not have are dropped."""
        self._is_leading = False
        self.checkpoints.clear()
        self.orders.clear()
        self._cancel()

    def take(self, checkpoint: Checkpoint) -> None:
        """Add the checkpoint of messages that were given to a consumer."""
        self.checkpoints.add(checkpoint)
        self._events.revive_in.add((checkpoint.group, checkpoint.topic, "CK", "PUT_OK"))
        self.changed()
        self._on_due()

    def changed(self) -> None:
        """Have the changes appended to the log within 200 ms."""
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self.send)

    def send(self) -> None:
        """Append all changes that the log does not have now, together with those of consumer offsets."""
        self._cancel()
        self._offsets.send()

    def _take_changes(self) -> list[tuple[PopChange, CommitDone]]:
        """The changes that go into the log beside the offsets, in parts, each with the function called when settled."""
        self._cancel()
        if not (self.checkpoints.has_changes() or self.orders.has_changes()):
            return []
        checkpoints = self._sendable(self.checkpoints.take_changes(), self.checkpoints.send_again)
        orders = self._sendable(self.orders.take_changes(), self.orders.send_again)
        most = _VALUES_PER_RECORD
        tables = zip_longest(parts_of(checkpoints.items(), most), parts_of(orders.items(), most))
        return [self._part(PopChange(taken or {}, given or {})) for taken, given in tables]

    def _sendable(self, changes: dict[str, _V], send_again: Callable[[Iterable[str]], None]) -> dict[str, _V]:
        """`changes` without topics and groups whose removal is undecided; those are tried again soon."""
        kept_back = [key for key in changes if self._offsets.is_kept_back(key)]
        if kept_back:
            send_again(kept_back)
            self.changed()
        return {key: value for key, value in changes.items() if key not in kept_back}

    async def drain(self) -> None:
        """Append all changes and wait until they are committed or refused."""
        self.send()
        while self._unsettled and self._role.writable:
            self._settled.clear()
            await self._settled.wait()

    def forget_topic(self, topic: str) -> None:
        """Remove what belongs to a topic that was removed."""
        self.checkpoints.forget_topic(topic)
        self.orders.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Remove what belongs to a group that was removed."""
        self.checkpoints.forget_group(group)
        self.orders.forget_group(group)

    def _part(self, change: PopChange) -> tuple[PopChange, CommitDone]:
        """A part of the changes with the function to call when its record is settled."""
        self._unsettled += 1

        def settle(refusal: Refusal | None) -> None:
            self._unsettled -= 1
            self._settled.set()
            if refusal is not None and self._role.writable:
                self.checkpoints.send_again(change.checkpoints)
                self.orders.send_again(change.orders)
                self.changed()

        return change, settle

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
