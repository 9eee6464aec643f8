"""Ledger: what a workload wrote, in the log's order, and how much of it must survive at each moment.

    items   |= must be there (floor) =|- may be there, as a prefix -|
                                      ^ appended since, not synced

The workload notes what it does in the recorder; a moment's ledger is made from the notes up to it. Items appended
later are let in too, up to the next cut: the note comes after the bytes.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Item:
    """A record or entry: its position and its bytes. `key` is its queue or its term, as the judge needs it."""

    start: int
    data: bytes
    key: tuple[object, ...] = ()

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.start + len(self.data)


@dataclass(frozen=True, slots=True)
class Appended:
    """These items were put behind the others."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class FoundAtStart:
    """A start found these records, by offset; items that need not have been durable by then may stay as they are."""

    records: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything below `offset` is durable, and was perhaps acknowledged."""

    offset: int


@dataclass(frozen=True, slots=True)
class Cutting:
    """From now on, bytes at or behind `offset` may be missing."""

    offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes at or behind `offset` are removed for good."""

    offset: int


@dataclass(frozen=True, slots=True)
class Trimming:
    """From now on, bytes before `offset` may be missing."""

    offset: int


@dataclass(frozen=True, slots=True)
class Installing:
    """From here on nothing written before need be there; the log is to begin at `start`, with a state that says so."""

    start: int


@dataclass(frozen=True, slots=True)
class Installed:
    """The install is durable, or a start that recovers has given it up."""


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
    """What is known at a moment.

    Attributes:
        small: by name, what a small file may hold: durable first, None for absent.
        installs: where the log begins by each install begun so far.
        is_installing: the last of them may be unfinished.
        torn: starts of items of which a power cut has changed any byte, and that stay in the log.
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
        """Take the next note of the workload into account."""
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
    """The ledger before each note, and after the last one; `base` is what lay there at the start."""
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
