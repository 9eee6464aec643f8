"""Stores that the Java broker left behind, damaged: every key of every record that is left is found, once.

Java finds fewer: 467 of 501 keys of `clean-abort`, for one.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import FIRST_ENTRY, IndexLayout, index_keys, key_text, read_header
from ledgermq.message.record import dispatch_fields
from store.index.file_set import IndexFiles
from tests.store.index.support import open_indexed
from tests.store.support import GOLDEN, golden

TREES = GOLDEN / "store-classic"
LAYOUT = IndexLayout(slots=100, entries=400)
VARIANTS: list[dict[str, Any]] = json.loads((TREES / "variants.json").read_text())
INDEXED = ("abort", "index", "checkpoint", "torn-last", "log-last-file", "log-first-file", "cq-all")
CHOSEN = [
    variant
    for variant in VARIANTS
    if variant["recovered"]["loaded"] and (not variant["ops"] or any(word in variant["name"] for word in INDEXED))
]


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda variant: str(variant["name"]))
async def test_every_key_of_the_log_is_in_the_index_once(tmp_path: Path, variant: dict[str, Any]) -> None:
    golden.restore_tree(TREES / variant["base"], tmp_path)
    golden.apply_ops(tmp_path, variant["ops"])
    store = await open_indexed(tmp_path, layout=LAYOUT, is_safe=True, file_size=65536, queue_file_size=1200)
    wanted: Counter[tuple[int, int]] = Counter()
    walk = store.store.log.walk(store.store.log.min_offset, store.store.log.confirm_offset)
    for physical_offset, record in walk:
        _, _, sys_flag, _, _, _, topic, properties = dispatch_fields(record, 0)
        for key in index_keys(sys_flag, properties):
            wanted[index_hash(key_text(topic.decode(), key.decode())), physical_offset] += 1
    min_offset = store.store.log.min_offset
    await store.close()
    files = IndexFiles(tmp_path / "index", LAYOUT)
    found: Counter[tuple[int, int]] = Counter()
    for file in files.files:
        for key_hash, offset, _, _ in file.entries(FIRST_ENTRY, file.header.entry_count).tolist():
            if offset >= min_offset:
                found[key_hash, offset] += 1
    files.close()
    assert found == wanted
    assert wanted
    assert variant["recovered"]["afterStart"]["keysFound"] <= wanted.total() or min_offset > 0


@pytest.mark.parametrize("tree", ["clean", "kill9"])
async def test_files_of_a_whole_index_stay_as_java_left_them(tmp_path: Path, tree: str) -> None:
    golden.restore_tree(TREES / tree, tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    store = await open_indexed(tmp_path, layout=LAYOUT, is_safe=True, file_size=65536, queue_file_size=1200)
    await store.close()
    after = {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    assert {name: after[name] for name in sorted(before)[:-1]} == {name: before[name] for name in sorted(before)[:-1]}
    last = max(before)
    grown = read_header(after[last]).entry_count - read_header(before[last]).entry_count
    assert grown == 0 or tree == "kill9"
    kept = slice(LAYOUT.entries_at, LAYOUT.entry_at(read_header(before[last]).entry_count))
    assert after[last][kept] == before[last][kept]
