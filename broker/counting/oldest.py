"""The store time of the oldest message in the log."""

from store.message_store import MessageStore


class OldestMessage:
    """Caches that time; the log is read again only when its start has moved, since reading may need the disk."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._start = -1
        self._stored_ms = -1

    @property
    def stored_ms(self) -> int:
        """Return it in milliseconds since the epoch; -1 for an empty log."""
        start = self._store.log.min_offset
        if self._start != start or self._stored_ms < 0:
            self._start, self._stored_ms = start, self._store.reader.earliest_store_time()
        return self._stored_ms
