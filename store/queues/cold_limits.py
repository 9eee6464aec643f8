"""How much one read takes from records that are probably on the disk only; importable without numpy."""

import os
from dataclasses import dataclass
from typing import ClassVar

from ledgermq.message.queue_unit import UNIT_SIZE
from ledgermq.remoting.config_key import PERCENT, POSITIVE, STORE, converted, key

MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""Of the machine."""

PERCENT_OF_MEMORY = converted(
    PERCENT, lambda percent: MEMORY_BYTES * percent // 100, lambda size: round(size * 100 / MEMORY_BYTES)
)
"""Bytes of the machine's memory."""
_BYTES_AS_UNITS = converted(POSITIVE, lambda size: -(-size // UNIT_SIZE), lambda units: units * UNIT_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdLimits:
    """Limits of one `get` on records that are probably not in memory any more.

    Attributes:
        memory_bytes: records closer to the log's end than this count as in memory.
        scan_units: how many units are looked at, at least, for records of whatever place.
    """

    ORIGIN: ClassVar[str] = STORE

    count_max: int = key("maxTransferCountOnMessageInDisk", POSITIVE, 8, "Most messages of one pull from disk.")
    bytes_max: int = key("maxTransferBytesOnMessageInDisk", POSITIVE, 64 << 10, "Most bytes of one pull from disk.")
    memory_bytes: int = key(
        "accessMessageInMemoryMaxRatio",
        PERCENT_OF_MEMORY,
        MEMORY_BYTES * 40 // 100,
        "Percentage of memory within which messages count as not on disk only.",
    )
    scan_units: int = key(
        "maxFilterMessageSize", _BYTES_AS_UNITS, 800, "Bytes of units that one filtered pull looks at."
    )
