"""What an index is told; importable without numpy."""

from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.message.index_unit import IndexLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """The index of a store.

    Attributes:
        directory: of the index files.
        layout: their sizes (maxHashSlotNum, maxIndexNum).
        is_safe: opening waits until the index holds all that is dispatched (messageIndexSafe); else it follows.
        query_max: most offsets a query gives (maxMsgsNumBatch).
    """

    directory: Path
    layout: IndexLayout = field(default_factory=IndexLayout)
    is_safe: bool = False
    query_max: int = 64
