"""Reads through filters that have hints: the same records as without, and most of the others never looked at."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ledgermq.message.flags import BORN_HOST_V6
from ledgermq.message.record import encoded_properties, record_size
from store.log.drafts import QueuedDraft
from store.opening import OpenStore
from store.queues.consume_queue import ConsumeQueue
from store.queues.hinted_filter import HintedFilter
from store.queues.queue_reader import FILTER_SLICE_S, GetStatus
from tests.store.support import body_of, open_classic, put_all, queued

HINT = rb"\x02a\x01(?=9\x02)"
LIKE_PROPERTIES = b"\x02a\x019\x02" * 20
HOST_V6 = bytes(15) + b"\x01" + (10911).to_bytes(4)

Properties = Callable[[int], bytes]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """A store with log files of a quarter of a megabyte and queue files of 1000 units."""
    opened = await open_classic(tmp_path, file_size=1 << 18, queue_file_size=20_000)
    yield opened
    await opened.close()


def of_digit(number: int) -> bytes:
    return b"UNIQ_KEY\x01%032d\x02a\x01%d\x02" % (number, number % 10)


def draft_of(queue: ConsumeQueue, body: bytes, properties: bytes, sys_flag: int = 0) -> QueuedDraft:
    draft = queued(queue, body, sys_flag=sys_flag)
    draft.properties = properties
    if sys_flag & BORN_HOST_V6:
        draft.born_host = HOST_V6
    v2 = len(draft.topic) > 127
    draft.size = record_size(len(draft.body), len(draft.topic), len(properties), sys_flag, v2=v2)
    return draft


async def put(opened: OpenStore, count: int, properties: Properties, odd: int = 0, topic: str = "T") -> ConsumeQueue:
    """So many messages, with some of another topic in between; every `odd`-th comes from an IPv6 host."""
    queue, other = opened.store.queues.get(topic, 0), opened.store.queues.get("Other", 0)
    drafts = []
    for number in range(count):
        body = b"%06d" % number + LIKE_PROPERTIES[: number % 100]
        flag = BORN_HOST_V6 if odd and number % odd == 0 else 0
        drafts.append(draft_of(queue, body, properties(number), flag))
        if number % 3 == 0:
            drafts.append(draft_of(other, LIKE_PROPERTIES, b""))
    for start in range(0, len(drafts), 64):
        await put_all(opened, drafts[start : start + 64])
    return queue


class Wanted:
    """A filter for `a` = 9 that counts how often it was asked."""

    def __init__(self, *hints: bytes) -> None:
        self.asked = 0
        self.filter = HintedFilter(self._matches, hints)

    def _matches(self, record: memoryview) -> bool:
        self.asked += 1
        return b"\x02a\x019\x02" in b"\x02" + encoded_properties(record) + b"\x02"


def read(opened: OpenStore, queue: ConsumeQueue, wanted: HintedFilter, count: int) -> tuple[list[bytes], list[int]]:
    """All wanted bodies of a queue, read by pulls of `count`; and the offset behind each pull."""
    bodies, ends, offset = [], [], 0
    while offset < queue.max_offset:
        result = opened.store.reader.get(queue, offset, count, 1 << 20, None, wanted)
        assert len(result.records) <= count and result.next_offset > offset
        bodies += [body_of(record) for record in result.records]
        offset = result.next_offset
        ends.append(offset)
    return bodies, ends


@pytest.mark.parametrize("count", [1, 7, 32, 1000])
async def test_what_a_hint_finds_is_what_the_filter_finds_alone(opened: OpenStore, count: int) -> None:
    queue = await put(opened, 1200, of_digit)
    assert opened.store.log.max_offset > 1 << 18  # more than one file
    hinted, plain = Wanted(HINT), Wanted()
    assert read(opened, queue, hinted.filter, count)[0] == read(opened, queue, plain.filter, count)[0]
    assert (hinted.asked < 500 or count == 1) and plain.asked >= 1200


async def test_a_pull_that_is_full_ends_behind_its_last_record_at_most_some_misses_further(opened: OpenStore) -> None:
    queue = await put(opened, 400, of_digit)
    _, ends = read(opened, queue, Wanted(HINT).filter, 4)
    assert len(ends) == 10
    assert all(end % 10 in (0, 9) or end == 400 for end in ends)


async def test_bytes_bound_a_pull_with_hints(opened: OpenStore) -> None:
    queue = await put(opened, 100, of_digit)
    result = opened.store.reader.get(queue, 0, 32, 1, None, Wanted(HINT).filter)
    assert (len(result.records), result.next_offset) == (1, 19)


@pytest.mark.parametrize(
    "properties",
    [
        lambda number: b"a\x01%d" % (number % 10),  # the last 0x02 is missing
        lambda number: b"a\x019\x02" if number % 7 == 0 else b"",
        lambda number: b"x" * (number * 37 % 3000) + b"\x01y\x02a\x01%d\x02" % (number % 10),
        lambda number: b"pad\x01" + b"p" * 30_000 + b"\x02a\x01%d\x02" % (9 - number % 4) if number % 50 == 0 else b"",
    ],
    ids=["open end", "few", "of many lengths", "some very long"],
)
async def test_properties_of_any_shape_are_found(opened: OpenStore, properties: Properties) -> None:
    queue = await put(opened, 300, properties)
    hinted, plain = Wanted(HINT), Wanted()
    bodies, _ = read(opened, queue, hinted.filter, 32)
    assert bodies == read(opened, queue, plain.filter, 32)[0]
    assert bodies


@pytest.mark.parametrize(("odd", "topic"), [(40, "T"), (1, "T"), (0, "t" * 200), (0, "t" * 127)])
async def test_records_of_uncommon_form_are_read_one_by_one(opened: OpenStore, odd: int, topic: str) -> None:
    queue = await put(opened, 200, of_digit, odd, topic)
    hinted, plain = Wanted(HINT), Wanted()
    bodies, _ = read(opened, queue, hinted.filter, 32)
    assert bodies == read(opened, queue, plain.filter, 32)[0]
    assert len(bodies) == 20


async def test_a_hint_that_all_have_gives_way_to_the_better_one(opened: OpenStore) -> None:
    queue = await put(opened, 1000, of_digit)
    wanted = Wanted(rb"\x02UNIQ_KEY\x01", HINT)
    for _ in range(5):
        wanted.asked = 0
        read(opened, queue, wanted.filter, 32)
    assert wanted.asked < 150


async def test_hints_that_all_have_are_not_searched_for_long(opened: OpenStore) -> None:
    queue = await put(opened, 300, of_digit)
    wanted = Wanted(rb"\x02UNIQ_KEY\x01")
    read(opened, queue, wanted.filter, 32)
    assert wanted.filter.best() == -1
    seen = [wanted.filter.best() for _ in range(200)]
    assert 0 in seen  # it is tried again some day


async def test_what_is_not_confirmed_any_more_or_yet_is_not_touched(opened: OpenStore) -> None:
    queue = await put(opened, 200, of_digit)
    unit = queue.unit(150)
    assert unit is not None
    span = opened.store.log.span(unit[0])
    assert span is not None
    assert span.end == opened.store.log.confirm_offset - span.base
    assert opened.store.log.span(opened.store.log.max_offset + (1 << 20)) is None


async def test_a_slow_filter_with_hints_ends_the_read_early(opened: OpenStore, spend: Callable[[float], None]) -> None:
    queue = await put(opened, 300, of_digit)
    asked = []

    def slow(record: memoryview) -> bool:
        asked.append(body_of(record)[:6])
        spend(FILTER_SLICE_S / 4)
        return False

    wanted = HintedFilter(slow, [HINT])
    first = opened.store.reader.get(queue, 0, 32, 1 << 20, None, wanted)
    assert first.status is GetStatus.NO_MATCHED_MESSAGE
    assert 4 <= len(asked) < 20
    assert first.next_offset == 10 * len(asked)
    opened.store.reader.get(queue, first.next_offset, 32, 1 << 20, None, wanted)
    assert asked == [b"%06d" % (10 * number + 9) for number in range(len(asked))]
