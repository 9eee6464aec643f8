"""Java's string hash of many keys at once, where they lie.

    h("ab#c") = h("ab#") * 31^1 + h("c")        h(text) = sum of unit[i] * 31^(n - 1 - i), modulo 2^32

The units are UTF-16; for ASCII they are the bytes. Other text is hashed one by one, by `ledgermq.message.hashing`.

Source: java.lang.String (hashCode); apache/rocketmq `store/.../index/IndexFile.java` (indexKeyHashMethod, 5.3.3).
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Hashes = NDArray[np.int32]
RawHashes = NDArray[np.uint32]

_POWERS_COUNT = 1 << 15


def _powers() -> RawHashes:
    powers = np.full(_POWERS_COUNT, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS = _powers()
"""31^n modulo 2^32; properties are at most 32,767 bytes."""


def hashes_of_runs(units: Bytes, starts: Longs, lengths: Longs) -> RawHashes:
    """Java's hash of each run `units[start : start + length]` of ASCII; lengths are 1 or more."""
    if not len(starts):
        return np.zeros(0, np.uint32)
    length = int(lengths[0])
    if (lengths == length).all():  # unique keys of one kind of client, one topic
        runs = units[starts[:, None] + np.arange(length)]
        product: RawHashes = runs.astype(np.uint32) @ _POWERS[length - 1 :: -1]
        return product
    ends = np.cumsum(lengths)
    behind = np.repeat(ends, lengths) - np.arange(1, ends[-1] + 1)  # units of the run behind each unit
    places = np.repeat(starts + lengths - 1, lengths) - behind
    return np.add.reduceat(units[places] * _POWERS[behind], ends - lengths, dtype=np.uint32)


def joined_hashes(prefixes: RawHashes, keys: RawHashes, lengths: Longs) -> Hashes:
    """The index hash of each `prefix + key`: 0 or more. Lengths are the keys', in units."""
    joined = prefixes * _POWERS[lengths] + keys
    hashes = np.abs(joined.view(np.int32))
    hashes[hashes < 0] = 0  # Java's abs of the smallest integer is itself
    return hashes
