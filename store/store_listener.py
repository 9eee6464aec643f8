"""Followers of a message store (index, compaction, cleaning, broker), and their view of the store."""

from collections.abc import Collection
from typing import Protocol

from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable
from store.replicated_log import LogState, ReplicatedLog


class StoreListener(Protocol):
    """A follower of a store. Called on the loop's thread, never from inside `put`."""

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Handle that these queues have new messages."""

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """Handle a dispatched record of a watched topic; called in the log's order, before `on_dispatched`."""

    def on_cut(self, offset: int) -> None:
        """Take back what was made of dispatched records at or past physical `offset`, where the log will be cut.

        The queues are cut already, the log is not. Durable on return, or as soon as the checkpoint that follows; errors
        as `LogListener.on_truncated`.
        """

    def on_role_change(self, state: LogState) -> None:
        """Handle a change of the log's state; writable here means also that everything confirmed is dispatched."""


class FollowedStore(Protocol):
    """A message store as its followers see it; see `store.message_store.MessageStore` for the attributes."""

    disk_full: str | None
    master_flushed_offset: int

    @property
    def log(self) -> ReplicatedLog:
        """The log of the records."""

    @property
    def queues(self) -> QueueTable:
        """The queues."""

    @property
    def dispatched_offset(self) -> int:
        """Every record that ends at or below it has its unit."""

    @property
    def durable_offset(self) -> int:
        """End of the records that are confirmed and durable on this node."""

    @property
    def last_timestamp(self) -> int:
        """Store time (ms) of the last record dispatched by this process; 0 before the first."""

    def add_listener(self, listener: StoreListener) -> None:
        """Add a listener; listeners are called in the order in which they were added."""
