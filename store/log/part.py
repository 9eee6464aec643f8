"""A node's part in the replication of its commit log: which copies an acknowledgement waits for, and who may write.

`store.log.commit_log` knows this node's disk, its part knows the other nodes. `Alone` is the part of a node without
others; those of masters and slaves are in the room `ha`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.replicated_log import AppendReceipt, Generation, LogRole, LogState, Readiness, Replica
from telemetry.families import Family


class Settlement(NamedTuple):
    """How far the promise holds, by physical offsets.

    Attributes:
        confirmed: end of the records that may be dispatched and read.
        acknowledged: end of the batches whose senders are answered.
        receipt: the receipt for these senders.
    """

    confirmed: int
    acknowledged: int
    receipt: AppendReceipt


class Part(Protocol):
    """The part of one node. All calls are made on the loop's thread."""

    limit_s: float | None
    """How long a batch waits at most; None: for ever."""

    def state(self, refusal: Refusal | None) -> LogState:
        """Return the state of the log; `refusal` is the log's own."""

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """Return the confirm offset of a recovered log that ends at `end`, with damaged records at these offsets."""

    def check(self) -> None:
        """Check that records may be placed now.

        Raises:
            Refusal: they may not; nothing is placed.
        """

    def on_placed(self) -> None:
        """Note that the log has grown; called once for many batches, before they are settled."""

    def settle(self, local: int, flushed: int) -> Settlement:
        """Return how far the promise holds; this node's disk suffices up to `local`, and is durable up to `flushed`."""

    def late(self) -> Refusal:
        """Return the refusal of a batch that waited longer than `limit_s`; the cause is also that of a closing log."""

    def needed_offset(self) -> int | None:
        """Return the offset from which reachable nodes still need the log; None if no node needs it."""

    def readiness(self) -> Readiness:
        """See `ReplicatedLog.readiness`, of a log that takes part."""

    def generations(self) -> Sequence[Generation]:
        """See `ReplicatedLog.generations`."""

    def replicas(self) -> Sequence[Replica]:
        """See `ReplicatedLog.replicas`."""

    def metrics(self) -> Iterator[Family]:
        """See `ReplicatedLog.metrics`."""

    def transfer(self, target: str | None) -> str:
        """See `ReplicatedLog.transfer`."""

    async def drain(self) -> None:
        """Send other nodes what they need, or stop receiving, before the log closes. Must not take long."""

    async def close(self) -> None:
        """Close the connections to other nodes; batches that still wait are refused afterwards."""


_WRITTEN = AppendReceipt(generation=0, copies=1, durable_copies=0)
_DURABLE = AppendReceipt(generation=0, copies=1, durable_copies=1)


class Alone:
    """The part of a node without others.

    Args:
        flush_limit_ms: how long a batch may wait for its flush; None: it does not wait for one.
    """

    def __init__(self, flush_limit_ms: int | None) -> None:
        self._flush_limit_ms = flush_limit_ms
        self.limit_s = None if flush_limit_ms is None else flush_limit_ms / 1000

    def state(self, refusal: Refusal | None) -> LogState:
        """Return a state that is writable unless the log is not open, or the disk failed."""
        return LogState(LogRole.ALONE, 0, None, refusal)

    def recovered(self, end: int, checkpoint: StoreCheckpoint, damaged: Sequence[int]) -> int:
        """Confirm everything that is there."""
        return end

    def check(self) -> None:
        """Pass: no other node counts."""

    def on_placed(self) -> None:
        """Do nothing: there is no other node."""

    def settle(self, local: int, flushed: int) -> Settlement:
        """Confirm and acknowledge what this node's disk has."""
        return Settlement(local, local, _DURABLE if flushed >= local else _WRITTEN)

    def late(self) -> Refusal:
        """Return the refusal of records that are in the log and not known to be durable."""
        return flush_timeout(self._flush_limit_ms or 0)

    def needed_offset(self) -> int | None:
        """Return None: no other node needs the log."""
        return None

    def readiness(self) -> Readiness:
        """Return that the log is always ready."""
        return Readiness(True, "standalone")

    def generations(self) -> Sequence[Generation]:
        """Return none: nobody is elected."""
        return ()

    def replicas(self) -> Sequence[Replica]:
        """Return none: there is no other node."""
        return ()

    def metrics(self) -> Iterator[Family]:
        """Return none."""
        return iter(())

    def transfer(self, target: str | None) -> str:
        """Refuse: there is no other node."""
        raise appointed()

    async def drain(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def flush_timeout(limit_ms: int) -> Refusal:
    """Return the refusal of records that are in the log and were not flushed in time."""
    return Refusal(Cause.FLUSH_TIMEOUT, f"stored, but not flushed within {limit_ms} ms")


def appointed() -> Refusal:
    """Return the refusal of a transfer: there is no other node."""
    text = "the configuration appoints who writes: there is nobody to hand leadership to"
    return Refusal(Cause.NOT_SUPPORTED, text)
