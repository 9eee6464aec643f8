"""Directories that Java's DLedger wrote: read, recovered, and written again byte for byte."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.core.messages import Span
from dledger.log.commit_checkpoint import load_checkpoint
from dledger.log.entry import HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, encode_entry, read_header
from dledger.log.entry_log import EntryLog
from dledger.log.hard_state import read_hard_state
from dledger.log.opening import OpenedLog, open_log
from store.errors import StoreFormatError
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import RaftCluster

GOLDEN = Path(__file__).parents[1] / "golden" / "store-dledger"
BASES = [
    "one/n0", "one/n1", "one/n2", "dead/n1", "healed/n0", "healed/n1", "healed/n2", "plain/p0", "plain/p1", "plain/p2",
]  # fmt: skip
VARIANTS = json.loads((GOLDEN / "variants.json").read_text())
BY_NAME = {variant["name"]: variant for variant in VARIANTS}
Opener = Callable[..., OpenedLog]


def entry_bytes(opened: OpenedLog, index: int) -> memoryview:
    position, size, _ = opened.units[index]
    return opened.data.slice(position, size)


def _begin_of(path: Path, count: int) -> bytes:
    """The first bytes of a file that may be long, and sparse."""
    with path.open("rb") as file:
        return file.read(count)


@pytest.mark.parametrize("base", BASES)
def test_every_entry_and_index_unit_equals_the_manifest(
    base: str, golden_log: Callable[..., Any], open_java_log: Opener
) -> None:
    log = golden_log(base)
    opened = open_java_log(log)
    assert opened.found.last_index == len(log.entries) - 1
    assert not opened.found.damages and opened.found.cut is None and opened.found.lost is None
    for entry in log.entries:
        raw = entry_bytes(opened, entry["index"])
        header = read_header(raw, 0)
        assert header.position == int(entry["file"]) + entry["position"] == entry["pos"]
        assert (header.magic, header.size, header.entry_index, header.term) == (
            entry["magic"], entry["size"], entry["index"], entry["term"],
        )  # fmt: skip
        assert hashlib.sha256(raw).hexdigest() == entry["entrySha256"]
        assert hashlib.sha256(raw[HEADER_SIZE:]).hexdigest() == entry["bodySha256"]
    for unit in log.ledger["index"]:
        assert opened.units[unit["index"]] == (unit["pos"], unit["size"], unit["term"])


@pytest.mark.parametrize("base", BASES)
def test_encoding_again_gives_java_s_bytes(base: str, golden_log: Callable[..., Any], open_java_log: Opener) -> None:
    log = golden_log(base)
    opened = open_java_log(log)
    units = b"".join(
        _begin_of(path, len(log.entries) * INDEX_UNIT_SIZE) for path in sorted((log.directory / "index").iterdir())
    )
    for entry in log.entries:
        raw = bytes(entry_bytes(opened, entry["index"]))
        again = encode_entry(entry["index"], entry["term"], entry["pos"], raw[HEADER_SIZE:], body_crc=0)
        assert again == raw
        at = entry["index"] * INDEX_UNIT_SIZE
        header = read_header(raw, 0)
        unit = (header.magic, header.position, header.size, header.entry_index, header.term)
        assert INDEX_UNIT.unpack_from(units, at) == unit


@pytest.mark.parametrize("base", ["one/n0", "dead/n1", "healed/n2", "plain/p0", "plain/p1"])
def test_appending_java_s_entries_as_spans_makes_java_s_files(
    base: str, golden_log: Callable[..., Any], open_java_log: Opener, tmp_path: Path
) -> None:
    log = golden_log(base)
    java = open_java_log(log)
    copy = tmp_path / "copy"
    ours = open_log(
        copy,
        data_file_size=log.data_file_size,
        index_file_size=log.index_file_size,
        allocator=None,
        checkpoint=load_checkpoint(copy),
        intact=True,
        records=log.records,
    )
    target = EntryLog(copy, ours, store_host=bytes(8), term_start=lambda term: pytest.fail(f"term {term}"))
    source = EntryLog(log.directory, java, store_host=bytes(8), term_start=lambda term: pytest.fail(f"term {term}"))
    at = 0
    while at <= source.last_index:
        span = source.read(at, 5000)
        assert span is not None
        target.append_span(
            Span(span.term, at, span.last_index, span.start_position, span.end_position, bytes(span.data))
        )
        at = span.last_index + 1
    assert target.term_runs == source.term_runs
    end = target.max_position
    for path in sorted((log.directory / "data").iterdir()):
        used = min(max(end - int(path.name), 0), log.data_file_size)
        assert (copy / "data" / path.name).read_bytes()[:used] == path.read_bytes()[:used]
    for path in sorted((log.directory / "index").iterdir()):
        used = max((target.last_index + 1) * INDEX_UNIT_SIZE - int(path.name), 0)
        assert _begin_of(copy / "index" / path.name, used) == _begin_of(path, used)


@pytest.mark.parametrize("name", [name for name in BY_NAME if "bad-length" not in name])
def test_a_variant_is_recovered_to_what_java_kept_less_what_is_torn(
    name: str, golden_log: Callable[..., Any], open_java_log: Opener
) -> None:
    variant = BY_NAME[name]
    log = golden_log(variant["base"], variant["ops"])
    ledger = variant["recovered"]["ledger"]
    found = open_java_log(log).found
    torn_tail = name in ("dead-n1-torn-last", "dead-n1-flip-last-body")  # Java checks no body; 162 is not committed
    assert found.last_index >= ledger["endIndex"] - torn_tail
    assert (found.cut is not None) == (
        "dead-n1" in name and "last" in name and "index" not in name and "file" not in name
    )


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("dead-n1-flip-middle-body", None),
        ("healed-n0-flip-middle-body", None),
        ("healed-n0-flip-last-body", 203),
        ("healed-n0-flip-last-magic", 203),
        ("healed-n0-flip-last-pos", 203),
        ("healed-n0-flip-last-term", 203),
        ("healed-n0-torn-last-header", 203),
    ],
)
def test_a_bad_committed_entry_is_kept_and_reported_with_file_and_offset(
    name: str, index: int | None, golden_log: Callable[..., Any], open_java_log: Opener
) -> None:
    variant = BY_NAME[name]
    log = golden_log(variant["base"], variant["ops"])
    found = open_java_log(log).found
    assert found.last_index == len(log.entries) - 1
    assert found.cut is None and found.lost is None
    (damage,) = found.damages
    entry = log.entries[damage.index]
    assert index is None or damage.index == index
    assert (damage.file.name, damage.file_offset) == (entry["file"], entry["position"])
    assert (damage.size_bytes, damage.term, damage.position) == (entry["size"], entry["term"], entry["pos"])
    op = variant["ops"][0]
    assert damage.file_offset <= op["offset"] < damage.file_offset + damage.size_bytes


def test_a_tear_in_java_s_properties_cannot_be_seen(golden_log: Callable[..., Any], open_java_log: Opener) -> None:
    """Java covers the body only. Entries that we write have a CRC over the whole record."""
    variant = BY_NAME["healed-n0-torn-last"]
    found = open_java_log(golden_log(variant["base"], variant["ops"])).found
    assert (found.last_index, found.damages) == (203, [])


def test_a_lost_committed_file_is_reported_as_lost_entries(
    golden_log: Callable[..., Any], open_java_log: Opener
) -> None:
    variant = BY_NAME["healed-n0-data-last-file-missing"]
    found = open_java_log(golden_log(variant["base"], variant["ops"])).found
    assert (found.last_index, found.lost) == (174, (175, 203))


@pytest.mark.parametrize("name", [name for name in BY_NAME if "index-" in name])
def test_a_wrong_index_is_made_anew(name: str, golden_log: Callable[..., Any], open_java_log: Opener) -> None:
    variant = BY_NAME[name]
    log = golden_log(variant["base"], variant["ops"])
    opened = open_java_log(log)
    assert not opened.found.damages
    for entry in log.entries:
        assert opened.units[entry["index"]] == (entry["pos"], entry["size"], entry["term"])


@pytest.mark.parametrize("name", ["dead-n1-data-bad-length", "healed-n0-data-bad-length"])
def test_a_file_of_a_wrong_length_is_refused_and_left_alone(
    name: str, golden_log: Callable[..., Any], open_java_log: Opener
) -> None:
    variant = BY_NAME[name]
    log = golden_log(variant["base"], variant["ops"])
    before = {path: path.read_bytes() for path in sorted((log.directory / "data").iterdir())}
    with pytest.raises(StoreFormatError, match="30000 bytes long, must be 32768"):
        open_java_log(log)
    assert {path: path.read_bytes() for path in sorted((log.directory / "data").iterdir())} == before


@pytest.mark.parametrize("base", BASES)
def test_term_vote_and_checkpoint_are_read(base: str, golden_log: Callable[..., Any]) -> None:
    log = golden_log(base)
    state = read_hard_state(log.directory)
    assert state is not None
    assert state.term == log.entries[-1]["term"]
    assert state.voted_for in {"n0", "n1", "n2", "p0", "p1", "p2"}
    assert not state.recovering
    checkpoint = load_checkpoint(log.directory)
    assert checkpoint.end_index == len(log.entries) - 1
    assert checkpoint.committed_index == (156 if base.startswith("dead") else len(log.entries) - 1)


def test_an_entry_of_a_newer_dledger_is_refused(golden_log: Callable[..., Any], open_java_log: Opener) -> None:
    log = golden_log("one/n0")
    last = log.entries[-1]
    noop = bytearray(encode_entry(last["index"] + 1, 2, last["pos"] + last["size"], b"", body_crc=0))
    noop[3] = 2
    path = log.directory / "data" / last["file"]
    raw = bytearray(path.read_bytes())
    at = last["position"] + last["size"]
    raw[at : at + len(noop)] = noop
    path.write_bytes(raw)
    with pytest.raises(StoreFormatError, match="magic 2"):
        open_java_log(log)


@pytest.mark.parametrize("stale", ["healed/n1", "dead/n1"])
async def test_a_group_of_java_s_directories_goes_on_as_ours(
    stale: str, raft_cluster: Callable[..., RaftCluster], restore_golden: Callable[[str, Path], None]
) -> None:
    """`dead/n1` ends in a tail that no quorum ever had; `healed` went on without it, in term 2."""
    cluster = raft_cluster(data_file_size_bytes=32768, index_file_size_bytes=167772160)
    for node_id, base in {"n0": "healed/n0", "n1": stale, "n2": "healed/n2"}.items():
        restore_golden(base, cluster.root / node_id)
    await cluster.start()
    leader = await cluster.elected()
    assert cluster.logs[leader].state.generation > 2
    assert isinstance(await cluster.append(leader, b"from us"), AppendReceipt)
    await cluster.caught_up()
    entries = [json.loads(line) for line in (GOLDEN / "healed/n0/entries.jsonl").read_text().splitlines()]
    for node_id, log in cluster.logs.items():
        walked = list(log.walk(0, log.confirm_offset))
        assert [offset for offset, _ in walked][: len(entries)] == [entry["pos"] + HEADER_SIZE for entry in entries]
        assert cluster.bodies(node_id) == [b"from us"]
    assert cluster.data("n0") == cluster.data("n1") == cluster.data("n2")
