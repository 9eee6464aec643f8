"""LogImage: what one node's log holds, entry by entry, with a hash of everything up to each, for the observer.

Two logs that are equal up to an entry have the same hash there, so that logs are compared in one step.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from dledger.core.messages import NO_TERM, HardState

NEW_CHAIN = 0

Payload = TypeVar("Payload", bound=Hashable)


def link(chain: int, term: int, payload: Hashable) -> int:
    """Return the hash of a log up to an entry, from the hash up to the entry before; equal logs have equal hashes."""
    return hash((chain, term, payload))


class LogImage(Generic[Payload]):
    """Entries `first_index .. last_index` of one node, as its process sees them.

    Attributes:
        prev_term, prev_chain: of the entry before the first.
        entries: term and payload of each.
        chains: hash up to each.
    """

    def __init__(self) -> None:
        self.first_index = 0
        self.prev_term = NO_TERM
        self.prev_chain = NEW_CHAIN
        self.entries: list[tuple[int, Payload]] = []
        self.chains: list[int] = []

    @property
    def last_index(self) -> int:
        """Index of the newest written entry."""
        return self.first_index + len(self.entries) - 1

    @property
    def last_term(self) -> int:
        """Term of the newest written entry."""
        return self.entries[-1][0] if self.entries else self.prev_term

    @property
    def durable_index(self) -> int:
        """Index of the newest entry that survives a power cut together with all before it."""
        raise NotImplementedError

    @property
    def hard_state(self) -> HardState | None:
        """The durable hard state; None on a new disk."""
        raise NotImplementedError

    def why_tables_lack(self) -> str | None:
        """Return what a sound node's state machine lacks of the entries that its log has deleted; None if nothing."""
        raise NotImplementedError

    def payload_at(self, index: int) -> Payload:
        """Return the payload of an entry in this log."""
        return self.entries[index - self.first_index][1]

    def chain_at(self, index: int) -> int | None:
        """Return the hash of the log up to `index`; None if that entry is not in this log."""
        if index == self.first_index - 1:
            return self.prev_chain
        position = index - self.first_index
        return self.chains[position] if 0 <= position < len(self.chains) else None

    def append(self, term: int, payload: Payload) -> None:
        """Add one entry."""
        chain = self.chains[-1] if self.chains else self.prev_chain
        self.entries.append((term, payload))
        self.chains.append(link(chain, term, payload))

    def truncate_after(self, last_index: int) -> None:
        """Drop the entries above `last_index`."""
        keep = max(last_index - self.first_index + 1, 0)
        del self.entries[keep:], self.chains[keep:]

    def reset(self, first_index: int, prev_term: int, prev_chain: int) -> None:
        """Drop everything; the next entry is `first_index`."""
        self.entries.clear()
        self.chains.clear()
        self.first_index, self.prev_term, self.prev_chain = first_index, prev_term, prev_chain

    def trim(self, first_index: int) -> None:
        """Delete the entries before `first_index`."""
        drop = first_index - self.first_index
        self.prev_term, self.prev_chain = self.entries[drop - 1][0], self.chains[drop - 1]
        del self.entries[:drop], self.chains[:drop]
        self.first_index = first_index
