"""Reads through filters: tags found among many units, and record filters that take their time."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.hashing import tags_code
from ledgermq.message.queue_unit import UNIT
from store.queues.queue_reader import FILTER_SLICE_S, GetStatus
from store.queues.tag_codes import TagCodes
from store.time_slice import TimeSlice
from tests.store.support import body_of
from tests.store.test_message_store import Rig

CODES = st.one_of(st.integers(-3, 3), st.integers(-(1 << 31), (1 << 31) - 1))


@pytest.fixture
async def tagged(tmp_path: Path) -> Rig:
    """Messages 0 to 299, with the tags T0, T1, T2 in turn, in files of 100 units."""
    rig = Rig(tmp_path, units=100)
    rig.store.start()
    for number in range(300):
        rig.put(b"%d" % number, tags=f"T{number % 3}")
    rig.log.confirm()
    return rig


@given(st.lists(CODES, max_size=30), st.frozensets(CODES, max_size=4))
def test_every_wanted_tag_is_among_the_candidates(codes: list[int], wanted: frozenset[int]) -> None:
    units = memoryview(b"".join(UNIT.pack(number, 100, code) for number, code in enumerate(codes)))
    tags = TagCodes(wanted)
    found = [number for number in tags.candidates(units) if tags(codes[number])]
    assert found == [number for number, code in enumerate(codes) if code in wanted]


async def test_tags_are_found_wherever_they_stand(tagged: Rig) -> None:
    wanted = TagCodes(frozenset({tags_code("T1")}))
    result = tagged.store.reader.get(tagged.queue(), 0, 4, 1 << 20, wanted)
    assert [body_of(record) for record in result.records] == [b"1", b"4", b"7", b"10"]
    assert 11 <= result.next_offset <= 13
    result = tagged.store.reader.get(tagged.queue(), 298, 4, 1 << 20, wanted)
    assert ([body_of(record) for record in result.records], result.next_offset) == ([b"298"], 300)


async def test_tags_that_nobody_has_are_passed_over_by_the_file(tagged: Rig) -> None:
    result = tagged.store.reader.get(tagged.queue(), 0, 4, 1 << 20, TagCodes(frozenset({7})))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 100)


async def test_bytes_bound_a_filtered_read(tagged: Rig) -> None:
    wanted = TagCodes(frozenset({tags_code("T0"), tags_code("T2")}))
    result = tagged.store.reader.get(tagged.queue(), 0, 100, 1, wanted)
    assert ([body_of(record) for record in result.records], result.next_offset) == ([b"0"], 2)


async def test_a_slow_filter_ends_the_read_early_and_the_next_one_goes_on_there(
    tagged: Rig, spend: Callable[[float], None]
) -> None:
    asked = []

    def slow(record: memoryview) -> bool:
        asked.append(body_of(record))
        spend(FILTER_SLICE_S / 4)
        return False

    result = tagged.store.reader.get(tagged.queue(), 0, 4, 1 << 20, None, slow)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert 4 <= len(asked) == result.next_offset < 20
    tagged.store.reader.get(tagged.queue(), result.next_offset, 4, 1 << 20, None, slow)
    assert asked == [b"%d" % number for number in range(len(asked))]


def test_a_time_slice_is_over_when_its_cpu_time_is_spent_and_stays_so() -> None:
    seconds = 0.002
    began = time.thread_time()
    time_slice = TimeSlice(seconds)
    while not time_slice.is_over():
        pass
    assert time.thread_time() - began >= seconds
    assert time_slice.is_over()


def test_time_that_passes_elsewhere_is_no_part_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    clock = {"wall": 100.0, "cpu": 5.0}

    def cpu() -> float:
        asked.append(clock["wall"])
        return clock["cpu"]

    monkeypatch.setattr("store.time_slice.time.monotonic", lambda: clock["wall"])
    monkeypatch.setattr("store.time_slice.time.thread_time", cpu)
    time_slice = TimeSlice(2.0)
    clock.update(wall=110.0, cpu=6.5)
    assert not time_slice.is_over()
    clock.update(wall=110.25, cpu=6.75)
    assert not time_slice.is_over()
    assert asked == [100.0, 110.0]  # half a second was left at 110
    clock.update(wall=111.0, cpu=7.5)
    assert time_slice.is_over()
