"""How much of a copied log the index reads at once."""

from pathlib import Path

import pytest

from ledgermq.message.index_unit import IndexLayout
from store.files.mapped_file import MappedFile
from store.index import service
from store.index.batch import KeyBatch, log_batch
from store.recovery.record_batches import RecordBatch
from tests.store.index.support import index_of, keyed, open_indexed
from tests.store.support import put_all


async def test_a_slice_takes_no_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"_DELAY_S": 3600.0, "_DRAFT_BYTES_MAX": 0, "_BATCH_BYTES": 1500, "_SLICE_BYTES": 4000}
    for name, value in names.items():
        monkeypatch.setattr(service, name, value)
    taken: list[int] = []

    def measured(file: MappedFile, batch: RecordBatch) -> KeyBatch:
        taken.append(batch.end - int(batch.starts[0]))
        return log_batch(file, batch)

    monkeypatch.setattr(service, "log_batch", measured)
    store = await open_indexed(tmp_path, file_size=1 << 20, layout=IndexLayout(slots=7, entries=2000))
    await put_all(store, [keyed(store, "k", body=bytes(400)) for _ in range(60)])
    await put_all(store, [keyed(store, "k")])
    await index_of(store).catch_up()
    assert 3000 < max(taken) < 4000 + 1000
    await store.close()
