"""Ledger: what a workload wrote, in the log's order, and how much of it must survive at each moment.

    items   |= must be there (floor) =|- may be there, as a prefix -|
                                      ^ appended since, not synced

The workload notes its actions in the recorder; a moment's ledger is made of the notes up to it. Items appended later
are allowed, too, up to the next cut, because a note comes after its bytes.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Item:
    """A record or entry: its position and its bytes. `key` is its queue, or its index and term, for the judge."""

    start: int
    data: bytes
    key: tuple[object, ...] = ()

    @property
    def end(self) -> int:
        """Position after its last byte."""
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class Appended:
    """These items were appended."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class FoundAtStart:
    """A start found these records, by offset; items that need not have been durable by then may stay in this form."""

    records: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything below `offset` is durable, and may have been acknowledged."""

    offset: int


@dataclass(frozen=True, slots=True)
class Cutting:
    """From now on, bytes at and after `offset` may be missing."""

    offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes at and after `offset` are removed for good."""

    offset: int


@dataclass(frozen=True, slots=True)
class Trimming:
    """From now on, bytes before `offset` may be missing."""

    offset: int


@dataclass(frozen=True, slots=True)
class Installing:
    """From now on everything written before may be missing; the log will begin at `start`, with the matching state."""

    start: int


@dataclass(frozen=True, slots=True)
class Installed:
    """The install is durable, or recovery has given it up."""


@dataclass(frozen=True, slots=True)
class Replacing:
    """A small file is about to be replaced."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Replaced:
    """The new content of the small file is durable."""

    name: str
    content: bytes


@dataclass(slots=True)
class Ledger:
    """What is known at one moment.

    Attributes:
        small: by name, the contents that a small file may have, the durable one first; None: the file may be missing.
        installs: begin of the log according to each install begun so far.
        is_installing: whether the last install may be unfinished.
        torn: starts of items that a power cut has damaged and that stay in the log.
    """

    items: list[Item] = field(default_factory=list)
    floor: int = 0
    start: int = 0
    small: dict[str, list[bytes | None]] = field(default_factory=dict)
    installs: list[int] = field(default_factory=list)
    is_installing: bool = False
    torn: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        """End of the last item."""
        return self.items[-1].end if self.items else 0

    def take(self, note: object) -> None:
        """Apply the next note of the workload."""
        match note:
            case Appended(items):
                self.items += items
            case Durable(offset):
                self.floor = max(self.floor, offset)
            case FoundAtStart(records):
                undecided = [item for item in self.items if item.end > self.floor and item.start in records]
                self.torn |= {item.start for item in undecided if records[item.start] != item.data}
            case Cutting(offset):
                self.floor = min(self.floor, offset)
            case Cut(offset):
                self.items = [item for item in self.items if item.start < offset]
                self.floor = min(self.floor, offset)
            case Trimming(offset):
                self.start = max(self.start, offset)
            case Installing(start):
                self.start = max(self.start, start)
                self.floor = 0
                self.installs.append(start)
                self.is_installing = True
            case Installed():
                self.is_installing = False
            case Replacing(name, content):
                self.small.setdefault(name, [None]).append(content)
            case Replaced(name, content):
                self.small[name] = [content]
            case _:
                raise TypeError(f"no note of a ledger: {note!r}")


def ledgers(notes: Sequence[object], base: Ledger) -> Iterator[Ledger]:
    """Yield the ledger before each note, and after the last one; `base` is the ledger at the start."""
    for count in range(len(notes) + 1):
        ledger = deepcopy(base)
        for note in notes[:count]:
            ledger.take(note)
        for note in notes[count:]:
            if isinstance(note, Cut):
                break
            if isinstance(note, Appended):
                ledger.take(note)
        yield ledger
