"""Reads through filters: tags found among many units, and record filters that take their time."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.hashing import tags_code
from ledgermq.message.queue_unit import UNIT
from store.queue_reader import FILTER_SLICE_S, GetStatus
from store.tag_codes import TagCodes
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
    result = tagged.store.get(tagged.queue(), 0, 4, 1 << 20, wanted)
    assert [body_of(record) for record in result.records] == [b"1", b"4", b"7", b"10"]
    assert 11 <= result.next_offset <= 13
    result = tagged.store.get(tagged.queue(), 298, 4, 1 << 20, wanted)
    assert ([body_of(record) for record in result.records], result.next_offset) == ([b"298"], 300)


async def test_tags_that_nobody_has_are_passed_over_by_the_file(tagged: Rig) -> None:
    result = tagged.store.get(tagged.queue(), 0, 4, 1 << 20, TagCodes(frozenset({7})))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 100)


async def test_bytes_bound_a_filtered_read(tagged: Rig) -> None:
    wanted = TagCodes(frozenset({tags_code("T0"), tags_code("T2")}))
    result = tagged.store.get(tagged.queue(), 0, 100, 1, wanted)
    assert ([body_of(record) for record in result.records], result.next_offset) == ([b"0"], 2)


async def test_a_slow_filter_ends_the_read_early_and_the_next_one_goes_on_there(tagged: Rig) -> None:
    asked = []

    def slow(record: memoryview) -> bool:
        asked.append(body_of(record))
        end = time.thread_time() + FILTER_SLICE_S / 4
        while time.thread_time() < end:
            pass
        return False

    result = tagged.store.get(tagged.queue(), 0, 4, 1 << 20, None, slow)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert 4 <= len(asked) == result.next_offset < 20
    tagged.store.get(tagged.queue(), result.next_offset, 4, 1 << 20, None, slow)
    assert asked == [b"%d" % number for number in range(len(asked))]
