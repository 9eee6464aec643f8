"""When the oldest message of the log was stored."""

from store.message_store import MessageStore


class OldestMessage:
    """Knows it; reads the log again only when its beginning has moved, for that lies on the disk."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._start = -1
        self._stored_ms = -1

    @property
    def stored_ms(self) -> int:
        """Ms since the epoch; -1 in an empty log."""
        start = self._store.log.min_offset
        if self._start != start or self._stored_ms < 0:
            self._start, self._stored_ms = start, self._store.earliest_store_time()
        return self._stored_ms
