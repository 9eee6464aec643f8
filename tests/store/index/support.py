"""What the index's tests share."""

import numpy as np

from store.index.batch import KeyBatch
from store.index.file_set import IndexFiles
from store.index.hashing import index_hashes


def enter(files: IndexFiles, batch: KeyBatch) -> None:
    """Put a whole batch, over as many files as it needs."""
    if not batch.items:
        return
    prefixes, keys, offsets, timestamps = zip(*batch.items, strict=True)
    hashes, places, times = index_hashes(prefixes, keys), np.array(offsets, np.int64), np.array(timestamps, np.int64)
    while len(hashes):
        count = files.put(hashes, places, times)
        hashes, places, times = hashes[count:], places[count:], times[count:]
