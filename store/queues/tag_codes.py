"""Tag codes: the set of tags codes that a reader wants, with a fast search among many units.

    units  | offset size code | offset size code | ...
                           '-- the last byte of each -->  . x . . . x .   looked up by translate(): candidates

The last bytes are looked up in C. Python checks only the candidates, some of which match by chance.
"""

from collections.abc import Iterator
from itertools import compress

from ledgermq.message.queue_unit import UNIT_SIZE

_BYTE = 256


class TagCodes:
    """A set of tags codes; calling it with a code returns whether the code is wanted."""

    __slots__ = ("_codes", "_last_bytes")

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes
        last_bytes = {code % _BYTE for code in codes}
        self._last_bytes = bytes(byte in last_bytes for byte in range(_BYTE))

    def __call__(self, code: int) -> bool:
        return code in self._codes

    def candidates(self, units: memoryview) -> Iterator[int]:
        """Yield in ascending order the indexes of all units that have one of the codes, and of some others."""
        flags = units[UNIT_SIZE - 1 :: UNIT_SIZE].tobytes().translate(self._last_bytes)
        return compress(range(len(flags)), flags)
