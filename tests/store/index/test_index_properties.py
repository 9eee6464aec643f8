"""The index against a list of what was entered: any keys, any batches, any windows, any cut, any tear."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.draft import RecordDraft
from ledgermq.message.hashing import index_hash, java_string_hash
from ledgermq.message.index_unit import ENTRY_SIZE, HEADER_SIZE, IndexLayout, index_keys, key_text
from ledgermq.message.record import record_size
from store.files.mapped_file import punch
from store.index import file_bytes, index_file
from store.index.batch import Entries, drafts_batch, records_batch
from store.index.file_set import IndexFiles
from store.index.index_file import QueryRange
from store.record_tails import hashes_of_runs, joined_hashes
from tests.store.index.support import LAYOUT, enter, found, open_indexed, put_keyed
from tests.store.index.test_index_service import checkpoint
from tests.store.support import fast_directory, fill

COLLIDING = ["Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa", "x"]
"""Java's hashes of the first two are equal, and so of the next four."""

LAYOUTS = st.builds(IndexLayout, st.integers(1, 11), st.integers(2, 40))


@dataclass(frozen=True)
class Entered:
    key: str
    offset: int
    timestamp: int


# key, bytes of the record before, ms since the record before
STEPS = st.lists(
    st.tuples(st.sampled_from(COLLIDING), st.integers(0, 300), st.sampled_from([0, 1, 400, 999, 1000, 70_000])),
    min_size=1,
    max_size=120,
)


def entered(steps: Sequence[tuple[str, int, int]]) -> list[Entered]:
    offset, timestamp, all_ = 0, 1_700_000_000_000, []
    for key, size, pause in steps:
        offset, timestamp = offset + size, timestamp + pause
        all_.append(Entered(key, offset, timestamp))
    return all_


def put(files: IndexFiles, some: Sequence[Entered]) -> None:
    hashes = np.array([hash_of(item.key) for item in some], np.int32)
    offsets = np.array([item.offset for item in some], np.int64)
    enter(files, Entries(hashes, offsets, np.array([item.timestamp for item in some], np.int64)))


def put_in_batches(files: IndexFiles, all_: Sequence[Entered], cuts: Sequence[int]) -> None:
    start = 0
    for stop in sorted({*(cut % (len(all_) + 1) for cut in cuts), len(all_)}):
        put(files, all_[start:stop])
        start = stop


def hash_of(key: str) -> int:
    return index_hash(key_text("T", key))


def expected(all_: Sequence[Entered], key: str) -> list[int]:
    return [item.offset for item in reversed(all_) if hash_of(item.key) == hash_of(key)]


NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "XKEYS", "KEYSX", "UNIQ_KEY2", "WAIT"])
VALUES = st.one_of(
    st.sampled_from(["", " ", "a b", "UNIQ_KEY", "KEYS\x01x", "订单", "\U0001f600", "é" * 70, "x" * 200]),
    st.text(st.characters(min_codepoint=1, max_codepoint=127, exclude_characters="\x02"), max_size=40),
)
PROPERTIES = st.builds(
    lambda pairs, end: "\x02".join(f"{name}\x01{value}" for name, value in pairs) + end,
    st.lists(st.tuples(NAMES, VALUES), max_size=6),
    st.sampled_from(["", "\x02", "\x02UNIQ_KEY", "\x02KEYS\x01"]),
)
TOPICS = st.sampled_from(["T", "Topic", "%RETRY%g", "订单", "t" * 130, "\x02KEYS"])
FLAGS = st.sampled_from([0, 0, 0, 0x10, 0x30, 4, 8, 12, 0x100])


@settings(deadline=None)
@given(st.lists(st.tuples(TOPICS, PROPERTIES, FLAGS, st.binary(max_size=20)), min_size=1, max_size=12))
def test_keys_of_many_records_at_once_are_those_of_each(messages: list[tuple[str, str, int, bytes]]) -> None:
    drafts, wanted = [], []
    for number, (topic, properties, sys_flag, body) in enumerate(messages):
        drafts.append(draft_of(topic, properties, sys_flag, body, number * 1000, number))
        for key in index_keys(sys_flag, properties.encode()):
            wanted.append((index_hash(key_text(topic, key.decode())), number * 1000, number))
    records = [(draft.physical_offset, memoryview(record_of(draft))) for draft in drafts]
    for entries in (records_batch(records).entries(), drafts_batch(drafts).entries()):
        found = zip(entries.hashes.tolist(), entries.offsets.tolist(), entries.timestamps.tolist(), strict=True)
        assert list(found) == wanted


@given(st.lists(st.binary(max_size=150), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_damaged_records_have_no_keys_and_harm_no_others(damaged: list[bytes], random: Random) -> None:
    whole = record_of(draft_of("T", "UNIQ_KEY\x01ID\x02", 0, b"body", 0, 7))
    records = [whole[:88] + bytes(data) for data in damaged]
    records += [data for data in damaged if data]
    random.shuffle(records)
    records.append(whole)
    entries = records_batch([(number, memoryview(record)) for number, record in enumerate(records)]).entries()
    assert int(entries.offsets[-1]) == len(records) - 1
    assert int(entries.hashes[-1]) == hash_of("ID")


def draft_of(topic: str, properties: str, sys_flag: int, body: bytes, offset: int, stored: int) -> RecordDraft:
    draft = RecordDraft()
    fill(draft, topic, 0, body, sys_flag=sys_flag)
    draft.properties = properties.encode()
    draft.born_host = bytes(20 if sys_flag & 0x10 else 8)
    draft.physical_offset, draft.store_timestamp = offset, stored
    draft.size = record_size(len(body), len(draft.topic), len(draft.properties), sys_flag, v2=len(draft.topic) > 127)
    return draft


def record_of(draft: RecordDraft) -> bytes:
    return b"".join(draft.pieces(bytes(20 if draft.sys_flag & 0x20 else 8)))


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda raw: bytes(byte & 127 for byte in raw)), min_size=1))
def test_many_hashes_at_once_equal_javas_one_by_one(keys: list[bytes]) -> None:
    lengths = np.array([len(key) for key in keys], np.int64)
    units = np.frombuffer(b"".join(keys), np.uint8)
    raw = hashes_of_runs(units, np.cumsum(lengths) - lengths, lengths)
    prefixes = np.full(len(keys), java_string_hash("T#") & 0xFFFFFFFF, np.uint32)
    assert joined_hashes(prefixes, raw, lengths).tolist() == [index_hash("T#" + key.decode()) for key in keys]


def test_the_smallest_integers_hash_is_zero() -> None:
    raw = hashes_of_runs(np.frombuffer(b"polygenelubricants", np.uint8), np.array([0]), np.array([18]))
    assert joined_hashes(np.zeros(1, np.uint32), raw, np.array([18])).tolist() == [0]


@settings(deadline=None)
@given(LAYOUTS, STEPS, st.lists(st.integers(0, 200), max_size=6), st.sampled_from([0, 1, 5, 2048]), st.integers(1, 9))
def test_every_entry_is_found_newest_first_and_nothing_else(
    layout: IndexLayout, steps: list[tuple[str, int, int]], cuts: list[int], chain_steps: int, scanned: int
) -> None:
    all_ = entered(steps)
    with (
        fast_directory() as directory,
        patch.object(index_file, "_CHAIN_STEPS_MAX", chain_steps),
        patch.object(index_file, "_SCANNED_ENTRIES", scanned),
    ):
        files = IndexFiles(directory, layout, clock=lambda: 1_700_000_000_000)
        put_in_batches(files, all_, cuts)
        for again in range(2):
            for key in COLLIDING:
                window = QueryRange(hash_of(key), 0, 1 << 62)
                assert files.find(window, 1000) == expected(all_, key)
                assert files.find(window, 3) == expected(all_, key)[:3]
            files.close()
            if not again:
                files = IndexFiles(directory, layout)


@settings(deadline=None)
@given(LAYOUTS, STEPS, st.integers(0, 200_000), st.integers(0, 200_000))
def test_a_window_gives_all_that_lie_in_it_and_none_a_second_off(
    layout: IndexLayout, steps: list[tuple[str, int, int]], begin: int, length: int
) -> None:
    all_ = entered(steps)
    start = 1_700_000_000_000 + begin
    end = start + length
    with fast_directory() as directory:
        files = IndexFiles(directory, layout)
        put(files, all_)
        for key in COLLIDING:
            offsets = files.find(QueryRange(hash_of(key), start, end), 1000)
            items = [item for item in reversed(all_) if hash_of(item.key) == hash_of(key)]
            inside = [item.offset for item in items if start <= item.timestamp <= end]
            near = [item.offset for item in items if start - 1000 < item.timestamp < end + 1000]
            assert _is_subsequence(inside, offsets)
            assert _is_subsequence(offsets, near)
        files.close()


@settings(deadline=None)
@given(LAYOUTS, STEPS, st.lists(st.integers(0, 200), max_size=4))
def test_the_files_do_not_depend_on_the_batches(
    layout: IndexLayout, steps: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    all_ = entered(steps)
    with fast_directory() as directory:
        made = []
        for name, places in (("one", range(len(all_))), ("some", cuts), ("whole", ())):
            files = IndexFiles(directory / name, layout, clock=lambda: 1_700_000_000_000)
            put_in_batches(files, all_, list(places))
            files.close()
            made.append([(path.name, path.read_bytes()) for path in sorted((directory / name).iterdir())])
        assert made[0] == made[1] == made[2]


@settings(deadline=None)
@given(LAYOUTS, STEPS, st.integers(0, 30_000), st.randoms(use_true_random=False), st.booleans())
def test_a_cut_drops_what_lies_behind_it_whatever_the_slots_say(
    layout: IndexLayout, steps: list[tuple[str, int, int]], offset: int, random: Random, can_punch: bool
) -> None:
    all_ = entered(steps)
    with fast_directory() as directory, patch.object(file_bytes, "punch", punch if can_punch else lambda *_: False):
        files = IndexFiles(directory, layout)
        put(files, all_)
        cut = files.cut_at(offset)
        if cut.file_count and cut.entry_count is not None:
            path = files.files[cut.file_count - 1].path
            with path.open("r+b") as torn:  # any slots, and no entry behind the cut
                torn.seek(HEADER_SIZE)
                torn.write(b"".join(random.randbytes(4) for _ in range(layout.slots)))
                torn.seek(layout.entry_at(cut.entry_count))
                torn.write(bytes((layout.entries - cut.entry_count) * ENTRY_SIZE))
        files.cut(cut)
        kept = [item for item in all_ if item.offset < offset]
        more = entered([*steps, ("Aa", 1, 5), ("x", 1, 5)])[-2:]
        put(files, more)
        for key in COLLIDING:
            assert files.find(QueryRange(hash_of(key), 0, 1 << 62), 1000) == expected([*kept, *more], key)
        files.close()


# keys of messages; None: a checkpoint; a number: the process dies, and so many entries' pages were not written
LIVES = st.lists(
    st.one_of(
        st.lists(st.sampled_from(COLLIDING), max_size=3),
        st.lists(st.sampled_from(COLLIDING), max_size=3),
        st.lists(st.sampled_from(COLLIDING), max_size=3),
        st.none(),
        st.integers(0, 12),
    ),
    min_size=2,
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(LIVES)
def test_no_life_and_no_death_of_a_process_loses_or_doubles_a_key(lives: list[list[str] | int | None]) -> None:
    with fast_directory() as directory:
        asyncio.run(_live(directory, lives))


async def _live(directory: Path, lives: list[list[str] | int | None]) -> None:
    root, deaths = directory / "0", 0
    store = await open_indexed(root)
    sent: list[tuple[str, int]] = []
    durable = 0  # entries vouched for
    for step in lives:
        if step is None:
            await found(store, "x")
            await checkpoint(store)
            durable = len(sent)
        elif isinstance(step, int):
            await found(store, "x")
            deaths += 1
            shutil.copytree(root, directory / str(deaths))
            await store.close()
            root = directory / str(deaths)
            _tear(root / "index", min(step, len(sent) - durable))
            store = await open_indexed(root)
        else:
            offset = await put_keyed(store, " ".join(step))
            sent += [(key, offset) for key in step]
    for key in COLLIDING:
        wanted = [offset for other, offset in reversed(sent) if hash_of(other) == hash_of(key)]
        assert await found(store, key) == wanted[:64]
    await store.close()


def _tear(index: Path, count: int) -> None:
    """Zero the last `count` entries: their pages were never written back."""
    for path in sorted(index.iterdir(), reverse=True):
        with path.open("r+b") as file:
            file.seek(36)
            entry_count = int.from_bytes(file.read(4), "big")
            gone = min(count, max(entry_count - 1, 0))
            file.seek(LAYOUT.entry_at(entry_count - gone))
            file.write(bytes(gone * ENTRY_SIZE))
        count -= gone


def _is_subsequence(some: list[int], all_: list[int]) -> bool:
    rest = iter(all_)
    return all(item in rest for item in some)
