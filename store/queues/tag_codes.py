"""The tags a reader wants, to be found among many units of a queue.

    units  | offset size code | offset size code | ...
                           '-- the last byte of each -->  . x . . . x .   looked up by translate(): candidates

The bytes are laid side by side and looked up in C; only candidates are looked at in Python, some of them by chance.
"""

from collections.abc import Iterator
from itertools import compress

from ledgermq.message.queue_unit import UNIT_SIZE

_BYTE = 256


class TagCodes:
    """A set of tags codes; called with a code, it says whether that is wanted."""

    __slots__ = ("_codes", "_last_bytes")

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes
        last_bytes = {code % _BYTE for code in codes}
        self._last_bytes = bytes(byte in last_bytes for byte in range(_BYTE))

    def __call__(self, code: int) -> bool:
        return code in self._codes

    def candidates(self, units: memoryview) -> Iterator[int]:
        """Numbers of the units that may have one of the codes, rising; all that have are among them."""
        flags = units[UNIT_SIZE - 1 :: UNIT_SIZE].tobytes().translate(self._last_bytes)
        return compress(range(len(flags)), flags)
