"""Rows of a log equal what the record decoder, and the doctor's export, say of each record."""

import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor.read.decoded import as_json
from doctor.read.directory import open_layout
from doctor.read.walk import walk
from ledgermq.message.record import Record, encode_record
from ledgermq.spark.columns import TYPES, Want, record_batch
from ledgermq.spark.log_files import open_store
from ledgermq.spark.parts import Block, Damage, plan_parts, read_part
from tests.spark.logs import V4, V6, record, write_log
from tests.store.support import GOLDEN, golden

NAMES = list(TYPES)
TREES = [
    *sorted(path.parent for path in GOLDEN.glob("store-classic/*/FILES.json")),
    *sorted(path.parent for path in GOLDEN.glob("store-dledger/*/*/FILES.json") if path.parts[-3] != "plain"),
]


def blocks(root: Path, split_bytes: int) -> list[Block]:
    found = [block for part in plan_parts(open_store(str(root)), split_bytes) for block in read_part(part, verify=True)]
    assert not [damage for damage in found if isinstance(damage, Damage)]
    return [block for block in found if isinstance(block, Block)]


def rows(root: Path, split_bytes: int = 0, want: Want | None = None) -> list[dict[str, Any]]:
    batches = [
        record_batch(block, NAMES, "b", None if want is None else want.rows(block))
        for block in blocks(root, split_bytes)
    ]
    return [row for batch in batches for row in batch.to_pylist()]


def expected(found: Record, raw: bytes) -> dict[str, Any]:
    def moment(ms: int) -> datetime:
        return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)

    return {
        "topic": found.topic,
        "broker": "b",
        "queue_id": found.queue_id,
        "queue_offset": found.queue_offset,
        "phys_offset": found.physical_offset,
        "size": found.size,
        "msg_id": found.unique_id or found.offset_message_id,
        "keys": found.property_map.get("KEYS"),
        "tags": found.tags,
        "born_ts": moment(found.born_timestamp),
        "store_ts": moment(found.store_timestamp),
        "reconsume_times": found.reconsume_times,
        "sys_flag": found.sys_flag,
        "properties": dict(found.property_map),
        "body": found.body,
        "record": raw,
        "record_crc": zlib.crc32(raw[:28] + raw[36:]),
        "damage": None,
    }


def as_row(row: dict[str, Any]) -> dict[str, Any]:
    assert len(row["properties"]) == len(dict(row["properties"])), "a name twice"
    return row | {"properties": dict(row["properties"])}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: "/".join(tree.parts[-2:]))
def test_rows_of_directories_that_java_wrote_equal_the_doctors_export(tree: Path, tmp_path: Path) -> None:
    golden.restore_tree(tree, tmp_path / "store")
    exported = [line for line in walk(open_layout(tmp_path / "store"), 0, lambda *_: None) if line.decode() is not None]
    for split_bytes in (0, 4096, 64 << 20):
        found = rows(tmp_path / "store", split_bytes)
        assert len(found) == len(exported) > 0
        for row, line in zip(found, exported, strict=True):
            decoded = line.decode()
            assert decoded is not None
            assert as_row(row) == expected(decoded, line.frame.record)
            assert row["phys_offset"] == as_json(line, decoded)["physical_offset"]


NAMED = st.tuples(
    st.sampled_from(["UNIQ_KEY", "TAGS", "KEYS", "", "n", "ü"]), st.sampled_from(["", "v", "a b", "x\x01y", "é"])
)
PROPERTIES = st.builds(
    lambda pairs, end: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode() + end,
    st.lists(NAMED, max_size=6),
    st.sampled_from([b"", b"\x02"]),
)
ANY = st.one_of(PROPERTIES, st.binary(max_size=30), st.sampled_from([b"", b"\x02", b"\x01\x02\x02", b"n", b"n\x01"]))
RECORDS = st.lists(
    st.builds(
        record,
        st.integers(0, 1 << 40),
        topic=st.sampled_from(["T", "TopicB", "%RETRY%g", "t" * 130, "Ünï"]),
        queue_id=st.integers(0, 5),
        body=st.binary(max_size=40),
        properties=ANY,
        born=st.sampled_from([V4, V4, V4, V6]),
        stored=st.sampled_from([V4, V4, V4, V6]),
    ),
    max_size=40,
)


@given(RECORDS, st.booleans(), st.sampled_from([0, 300, 2000]))
@settings(max_examples=60, deadline=None)
def test_rows_of_any_records_equal_what_the_decoder_says(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], raft: bool, split_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    placed = write_log(root, records, file_size=4096, raft=raft)
    found = rows(root, split_bytes)
    assert [as_row(row) for row in found] == [expected(each, found[n]["record"]) for n, each in enumerate(placed)]
    assert b"".join(row["record"] for row in found) == b"".join(map(encode_record, placed))


@given(RECORDS, st.sampled_from(["T", "TopicB", "Ünï"]), st.integers(0, 5), st.integers(0, 1 << 40))
@settings(max_examples=30, deadline=None)
def test_what_is_wanted_is_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], topic: str, queue_id: int, bound: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    placed = write_log(root, records)
    start = 1_790_000_000_500 + bound

    def fits_all(each: Record) -> bool:
        return 1 <= each.queue_offset < bound

    cases: list[tuple[Want, Callable[[Record], bool]]] = [
        (Want([topic]), lambda each: each.topic == topic),
        (Want(queues=[queue_id, 1]), lambda each: each.queue_id in (queue_id, 1)),
        (Want(offsets=(bound, None)), lambda each: each.queue_offset >= bound),
        (Want(times=(None, start)), lambda each: each.store_timestamp < start),
        (Want([topic], [0], (1, bound)), lambda each: each.topic == topic and not each.queue_id and fits_all(each)),
    ]
    for want, fits in cases:
        wanted = [each.physical_offset for each in placed if fits(each)]
        assert [row["phys_offset"] for row in rows(root, 0, want)] == wanted
