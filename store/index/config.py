"""Settings of the index by message key; importable without numpy."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ledgermq.message.index_unit import IndexLayout
from ledgermq.remoting.config_key import BOOL, POSITIVE, STORE, key


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """The index of a store; `directory` has its files."""

    ORIGIN: ClassVar[str] = STORE

    directory: Path = Path("index")
    enable: bool = key(
        "messageIndexEnable",
        BOOL,
        True,
        "Build the index by message key.",
        note="Switched on again it takes in what was sent meanwhile.",
    )
    is_safe: bool = key(
        "messageIndexSafe",
        BOOL,
        False,
        "Check the index after an unclean stop.",
        note="The index is complete again after every stop; with true before the broker serves.",
    )
    slot_count: int = key("maxHashSlotNum", POSITIVE, 5_000_000, "Slots of an index file.")
    entry_count: int = key("maxIndexNum", POSITIVE, 20_000_000, "Entries of an index file.")
    query_max: int = key(
        "maxMsgsNumBatch",
        POSITIVE,
        64,
        "Most messages that one query by key looks at.",
        note="Messages that do not have the key are left out by the broker.",
    )

    @property
    def layout(self) -> IndexLayout:
        """The sizes of an index file."""
        return IndexLayout(self.slot_count, self.entry_count)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation that does not hold."""
        layout = self.layout
        if layout.entries < 2:
            yield "maxIndexNum", f"{layout.entries} is too small: entry 0 is never used"
        if layout.file_size >= 1 << 31:
            yield "maxIndexNum", f"{layout.entries} is too large: files of {layout.file_size} bytes are over 2 GiB"
