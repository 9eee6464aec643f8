"""Followers of a message store (index, compaction, cleaning, broker), and their view of the store."""

from collections.abc import Collection
from typing import Protocol

from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable
from store.replicated_log import LogState, ReplicatedLog


class StoreListener(Protocol):
    """A follower of a store. Called on the loop's thread, never from inside `put`."""

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """These queues have new messages."""

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """A record of a watched topic was dispatched; called in the log's order, before `on_dispatched`."""

    def on_cut(self, offset: int) -> None:
        """Records at or past physical `offset` that were dispatched are dispatched no more: take back what they made.

        The queues are cut already, the log is not. Durable on return, or as soon as the checkpoint that follows;
        errors as `LogListener.on_truncated`.
        """

    def on_role_change(self, state: LogState) -> None:
        """As the log's, but writable only when everything confirmed is dispatched and messages are taken."""


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
        """Every record that ends at or below has its unit."""

    @property
    def durable_offset(self) -> int:
        """End of the records that are confirmed and durable on this node."""

    @property
    def last_timestamp(self) -> int:
        """Store time (ms) of the last record dispatched by this process; 0 before the first."""

    def add_listener(self, listener: StoreListener) -> None:
        """Listeners are called in the order in which they were added."""
