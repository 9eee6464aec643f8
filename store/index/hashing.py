"""Java's string hash of many keys at once.

    h("ab#c") = h("ab#") * 31^1 + h("c")        h(text) = sum of unit[i] * 31^(n - 1 - i), modulo 2^32

The units are UTF-16; for ASCII they are the bytes, and numpy sums them for a whole batch. Other keys are rare and are
hashed one by one.

Source: java.lang.String (hashCode); apache/rocketmq `store/.../index/IndexFile.java` (indexKeyHashMethod, 5.3.3).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ledgermq.message.hashing import java_string_hash

Hashes = NDArray[np.int32]

_POWERS_COUNT = 1 << 15
_U32 = 0xFFFF_FFFF


def _powers() -> NDArray[np.uint32]:
    powers = np.full(_POWERS_COUNT, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS = _powers()
"""31^n modulo 2^32; a key is at most 32,767 bytes."""


def prefix_hash(topic: bytes) -> int:
    """The hash of `topic#`, unsigned; bytes that are no UTF-8 count as U+FFFD, as in Java."""
    return java_string_hash(topic.decode(errors="replace") + "#") & _U32


def index_hashes(prefixes: Sequence[int], keys: Sequence[bytes]) -> Hashes:
    """The index hash of each key (not empty) behind the `prefix_hash` of its topic; 0 or more."""
    blob = b"".join(keys)
    if not blob.isascii():
        keys, suffixes = _hash_others(keys)
        blob = b"".join(keys)
    else:
        suffixes = None
    count = len(keys)
    lengths = np.fromiter(map(len, keys), np.int64, count)
    units = np.frombuffer(blob, np.uint8)
    hashes = _sums(units, lengths)
    if suffixes is not None:
        for position, value, length in suffixes:
            hashes[position], lengths[position] = value, length
    hashes += np.fromiter(prefixes, np.uint32, count) * _POWERS[lengths]
    found = np.abs(hashes.view(np.int32))
    found[found < 0] = 0  # Java's abs of the smallest integer is itself
    return found


def _sums(units: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The hash of each run of units."""
    length = int(lengths[0])
    if (lengths == length).all():  # unique keys of one kind of client
        return units.reshape(-1, length).astype(np.uint32) @ _POWERS[length - 1 :: -1]
    ends = np.cumsum(lengths)
    exponents = np.repeat(ends, lengths)
    exponents -= np.arange(1, len(units) + 1)
    return np.add.reduceat(units * _POWERS[exponents], ends - lengths, dtype=np.uint32)


def _hash_others(keys: Sequence[bytes]) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """The keys with a letter in place of each that is not ASCII, and of those: position, hash, units."""
    plain = list(keys)
    others = []
    for position, key in enumerate(keys):
        if not key.isascii():
            text = key.decode(errors="replace")
            others.append((position, java_string_hash(text) & _U32, len(text.encode("utf-16-le")) // 2))
            plain[position] = b"-"
    return plain, others
