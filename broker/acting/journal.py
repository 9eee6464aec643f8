"""What a slave delivered while it stood in for its master: kept on its disk until the log drops the messages.

    delivered elsewhere --> one line of `<store>/standInDeliveries` --> the master, when it is back, does not deliver it

A slave writes no records, so its log does not tell what it delivered. Each entry names the message that waited by its
physical offset, which is the same in the master's log, and by the time at which it was born, so that another message at
that offset of another log is not taken for it. The file is not synced: after a power cut some messages may come twice.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from broker.delay.deliveries import Deliveries, DeliveryKind

ENTRIES_MAX: Final = 500_000
"""Most entries: with as many a slave delivers nothing more until its log deletes some; others wait for the master."""

_log = logging.getLogger(__name__)


class Delivered(NamedTuple):
    """One message that was delivered elsewhere.

    Attributes:
        kind: of the delivery.
        origin: physical offset of the message that waited.
        born_ms: when its producer made it, ms since the epoch.
        at_ms: when it was delivered, ms since the epoch.
        topic: the topic to which it went.
    """

    kind: int
    origin: int
    born_ms: int
    at_ms: int
    topic: str

    def add_to(self, deliveries: Deliveries) -> None:
        """Count it as delivered."""
        if self.kind == DeliveryKind.REVIVE:
            deliveries.revived[self.topic, self.origin] = self.at_ms
        elif self.kind == DeliveryKind.TRANSACTION:
            deliveries.committed.add(self.origin)
        else:
            deliveries.origins.add(self.origin)


class DeliveryJournal:
    """The file and its entries.

    Args:
        path: the file; made with the first entry.
        min_offset: returns the log's first physical offset: entries before it are dropped when the file is loaded, and
            when there is no room for another.

    Attributes:
        entries: in the order of their deliveries.
    """

    def __init__(self, path: Path, min_offset: Callable[[], int]) -> None:
        self._path = path
        self._min_offset = min_offset
        self._is_loaded = False
        self._first = 0  # entries before it are dropped
        self.entries: list[Delivered] = []

    def make_room(self) -> bool:
        """If it is full, drop entries of messages that the log has deleted; return whether there is room now."""
        if len(self.entries) >= ENTRIES_MAX and self._min_offset() > self._first:
            self.entries = self._not_dropped(self.entries)
            try:
                self._write()
            except OSError as error:
                _log.warning("%s keeps notes of messages that the log has dropped: %s", self._path, error)
        return len(self.entries) < ENTRIES_MAX

    def load(self) -> None:
        """Read the file, once.

        Raises:
            OSError: the disk refused.
        """
        if self._is_loaded:
            return
        if self._path.exists():
            self.entries = self._not_dropped(_read(self._path))[-ENTRIES_MAX:]
            self._write()
        self._is_loaded = True

    def add(self, entry: Delivered) -> None:
        """Add an entry.

        Raises:
            OSError: the disk refused; the entry holds for this process alone.
        """
        self.entries.append(entry)
        with self._path.open("ab") as file:
            file.write(_line(entry))

    def cut(self, offset: int) -> None:
        """Drop the entries from `offset` on, where the log was cut: other messages will be stored there.

        Raises:
            OSError: the disk refused.
        """
        self.load()
        kept = [entry for entry in self.entries if entry.origin < offset]
        if len(kept) < len(self.entries):
            self.entries = kept
            self._write()

    def _not_dropped(self, entries: Iterable[Delivered]) -> list[Delivered]:
        self._first = self._min_offset()
        return [entry for entry in entries if entry.origin >= self._first]

    def _write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(map(_line, self.entries)))
        temporary.replace(self._path)


def entry_of(values: Any) -> Delivered:
    """Check a list of JSON values.

    Raises:
        ValueError: it is no entry.
    """
    if not isinstance(values, list) or [type(value) for value in values] != [int, int, int, int, str]:
        raise ValueError(f"no entry of a delivery: {str(values)[:100]}")
    return Delivered(*values)


def _line(entry: Delivered) -> bytes:
    return orjson.dumps(tuple(entry)) + b"\n"


def _read(path: Path) -> Iterator[Delivered]:
    for line in path.read_bytes().splitlines():
        try:
            yield entry_of(orjson.loads(line))
        except ValueError:  # a kill tears the last line; what it named may be delivered twice
            _log.warning("%s has a line that cannot be read, and is ignored: %r", path, line[:100])
