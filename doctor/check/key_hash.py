"""Java's string hash for many index keys at once, independent of the code that builds the index.

    h("topic#key") = h("topic#") * 31^n + h(key), n the UTF-16 units of the key        modulo 2^32

Keys of the same length are hashed together, a column at a time.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ledgermq.message.hashing import java_string_hash

_MASK = 0xFFFF_FFFF


@lru_cache(maxsize=4096)
def prefix_hash(topic: bytes) -> int:
    """Return the hash of `topic#`, unsigned; invalid UTF-8 counts as U+FFFD, as in Java."""
    return java_string_hash(topic.decode(errors="replace") + "#") & _MASK


def index_hashes(prefixes: npt.NDArray[np.uint32], keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the hash that an index entry has for each key after the `prefix_hash` of its topic; 0 or more."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    result = np.zeros(len(keys), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        group = keys if len(rows) == len(keys) else [keys[row] for row in rows.tolist()]
        blob = b"".join(group)
        if blob.isascii():
            result[rows] = _columns(prefixes[rows], np.frombuffer(blob, np.uint8).reshape(len(rows), int(length)))
        else:
            result[rows] = [_one(int(prefixes[row]), keys[row]) for row in rows.tolist()]
    signed = np.abs(result.view(np.int32).astype(np.int64))
    return np.where(signed == 1 << 31, 0, signed)


def _columns(hashes: npt.NDArray[np.uint32], units: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    for column in units.T:
        hashes = hashes * np.uint32(31) + column
    return hashes


def _one(prefix: int, key: bytes) -> int:
    text = key.decode(errors="replace")
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return (prefix * pow(31, units, 1 << 32) + java_string_hash(text)) & _MASK
