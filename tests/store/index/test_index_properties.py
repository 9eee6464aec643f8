"""The index against a list of what was entered: any keys, any batches, any windows, any cut, any tear."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import ENTRY_SIZE, HEADER_SIZE, IndexLayout, key_text
from store.index.batch import KeyBatch
from store.index.file_set import IndexFiles
from store.index.hashing import index_hashes, prefix_hash
from store.index.index_file import Window
from tests.store.index.support import LAYOUT, enter, found, open_indexed, put_keyed
from tests.store.index.test_index_service import checkpoint
from tests.store.support import fast_directory

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
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
    batch = KeyBatch(0)
    prefix = prefix_hash(b"T")
    batch.items = [(prefix, item.key.encode(), item.offset, item.timestamp) for item in some]
    enter(files, batch)


def put_in_batches(files: IndexFiles, all_: Sequence[Entered], cuts: Sequence[int]) -> None:
    start = 0
    for stop in sorted({*(cut % (len(all_) + 1) for cut in cuts), len(all_)}):
        put(files, all_[start:stop])
        start = stop


def hash_of(key: str) -> int:
    return index_hash(key_text("T", key))


def expected(all_: Sequence[Entered], key: str) -> list[int]:
    return [item.offset for item in reversed(all_) if hash_of(item.key) == hash_of(key)]


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=30))
def test_many_hashes_at_once_equal_javas_one_by_one(pairs: list[tuple[str, str]]) -> None:
    prefixes = [prefix_hash(topic.encode()) for topic, _ in pairs]
    hashes = index_hashes(prefixes, [key.encode() for _, key in pairs])
    assert hashes.tolist() == [index_hash(key_text(topic, key)) for topic, key in pairs]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=10))
def test_keys_that_are_no_utf8_hash_as_java_reads_them(keys: list[bytes]) -> None:
    hashes = index_hashes([prefix_hash(b"T")] * len(keys), keys)
    assert hashes.tolist() == [index_hash("T#" + key.decode(errors="replace")) for key in keys]


@settings(deadline=None)
@given(LAYOUTS, STEPS, st.lists(st.integers(0, 200), max_size=6))
def test_every_entry_is_found_newest_first_and_nothing_else(
    layout: IndexLayout, steps: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    all_ = entered(steps)
    with fast_directory() as directory:
        files = IndexFiles(directory, layout, clock=lambda: 1_700_000_000_000)
        put_in_batches(files, all_, cuts)
        for again in range(2):
            for key in COLLIDING:
                window = Window(hash_of(key), 0, 1 << 62)
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
            offsets = files.find(Window(hash_of(key), start, end), 1000)
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
@given(LAYOUTS, STEPS, st.integers(0, 30_000), st.randoms(use_true_random=False))
def test_a_cut_drops_what_lies_behind_it_whatever_the_slots_say(
    layout: IndexLayout, steps: list[tuple[str, int, int]], offset: int, random: object
) -> None:
    all_ = entered(steps)
    with fast_directory() as directory:
        files = IndexFiles(directory, layout)
        put(files, all_)
        cut = files.cut_at(offset)
        if cut.file_count and cut.entry_count is not None:
            path = files.files[cut.file_count - 1].path
            with path.open("r+b") as torn:  # any slots, and no entry behind the cut
                torn.seek(HEADER_SIZE)
                torn.write(b"".join(random.randbytes(4) for _ in range(layout.slots)))  # type: ignore[attr-defined]
                torn.seek(layout.entry_at(cut.entry_count))
                torn.write(bytes((layout.entries - cut.entry_count) * ENTRY_SIZE))
        files.cut(cut)
        kept = [item for item in all_ if item.offset < offset]
        more = entered([*steps, ("Aa", 1, 5), ("x", 1, 5)])[-2:]
        put(files, more)
        for key in COLLIDING:
            assert files.find(Window(hash_of(key), 0, 1 << 62), 1000) == expected([*kept, *more], key)
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
