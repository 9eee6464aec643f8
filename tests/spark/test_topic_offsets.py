"""Which queues are read from where to where: options, ranges, and what a stream writes down. No broker."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client import MessageQueue
from ledgermq.spark.errors import DataLossError, OptionError
from ledgermq.spark.options import Options
from ledgermq.spark.topic_offsets import (
    PARTS_MAX,
    Position,
    Range,
    Selection,
    cut,
    decode_offsets,
    encode_offsets,
    gone_ranges,
    ranges_between,
    refuse_loss,
    share,
)

A, B = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


class FakeClient:
    """Two queues, one of them with offsets 5 to 9, one with 0 to 99."""

    def firsts(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: {A: 5, B: 0}[queue] for queue in queues}

    def ends(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: {A: 10, B: 100}[queue] for queue in queues}

    def committed(self, group: str, queues: list[MessageQueue]) -> dict[MessageQueue, int | None]:
        assert group == "g"
        return {queue: {A: 7, B: None}[queue] for queue in queues}

    def at_time(self, queues: list[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        assert timestamp_ms == 1000
        return dict.fromkeys(queues, 6)

    def topics(self) -> tuple[str, ...]:
        return ("%RETRY%g", "T", "T2", "RMQ_SYS_TRACE_TOPIC", "other")

    def queues(self, topics: Any) -> list[MessageQueue]:
        return [MessageQueue(topic, "b", n) for topic in sorted(topics) for n in range(2)]


def position(side: str, otherwise: str, **options: str) -> dict[MessageQueue, int]:
    names = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
    client: Any = FakeClient()
    return Position(Options(options, names), side, otherwise).resolve(client, [A, B])


def test_positions() -> None:
    assert position("starting", "earliest") == {A: 5, B: 0}
    assert position("ending", "latest") == {A: 10, B: 100}
    assert position("starting", "earliest", startingOffsets="latest") == {A: 10, B: 100}
    assert position("starting", "latest", startingOffsets="group:g") == {A: 7, B: 100}
    assert position("starting", "earliest", startingOffsets="group:g") == {A: 7, B: 0}
    assert position("ending", "latest", endingTimestamp="1970-01-01T00:00:01") == {A: 6, B: 6}
    given = json.dumps({"T": {"b": {"0": 9, "1": -2}}})
    assert position("ending", "latest", endingOffsets=given) == {A: 9, B: 0}
    assert position("starting", "earliest", startingOffsets='{"T":{"b":{"1":-1}}}') == {A: 5, B: 100}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "newest"}, "startingOffsets='newest' is neither earliest, latest"),
        ({"startingOffsets": '{"T":3}'}, "is not JSON such as"),
        ({"startingOffsets": "{"}, "is not JSON such as"),
        ({"startingOffsets": "{}"}, "names no queue"),
        ({"startingOffsets": '{"T":{"b":{"0":-3}}}'}, "is not JSON such as"),
        ({"startingOffsets": '{"T":{"b":{"7":1}}}'}, "T/b/7 is not among the queues that are read"),
        ({"startingOffsets": '{"T":{"b":{"0":11}}}'}, "T/b/0 ends at 10, before 11"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "not both"),
        ({"startingTimestamp": "yesterday"}, "neither ms since 1970"),
    ],
)
def test_positions_that_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        position("starting", "earliest", **options)


def selected(**options: str) -> list[str]:
    client: Any = FakeClient()
    return [str(queue) for queue in Selection(Options(options, Selection.NAMES)).queues(client)]


def test_selections() -> None:
    assert selected(subscribe="T, other") == ["T/b/0", "T/b/1", "other/b/0", "other/b/1"]
    assert selected(subscribePattern="T.?") == ["T/b/0", "T/b/1", "T2/b/0", "T2/b/1"]
    assert selected(subscribePattern=".*") == [f"{name}/b/{n}" for name in ("T", "T2", "other") for n in (0, 1)]
    assert selected(assign='{"T":{"b":[1]}}') == ["T/b/1"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give one of subscribe, subscribePattern, assign; given: none"),
        ({"subscribe": "T", "assign": "{}"}, "given: subscribe, assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "subscribePattern="),
        ({"assign": '{"T":{"b":[9]}}'}, "there is no queue T/b/9"),
        ({"assign": "T"}, "is not JSON such as"),
    ],
)
def test_selections_that_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        selected(**options)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=6),
    st.floats(1, 5000),
    st.sampled_from([0, 1, 1000, 10**6]),
)
def test_pieces_cover_each_range_once(spans: list[tuple[int, int]], record_bytes: float, split_bytes: int) -> None:
    ranges = [Range(MessageQueue("T", "b", n), at, at + count + 1) for n, (at, count) in enumerate(spans)]
    pieces = cut(ranges, {each.queue: record_bytes for each in ranges}, split_bytes)
    assert len(pieces) <= PARTS_MAX + len(ranges)
    for whole in ranges:
        own = [piece for piece in pieces if piece.queue == whole.queue]
        assert [piece.start for piece in own] == [whole.start, *(piece.end for piece in own[:-1])]
        assert own[-1].end == whole.end
        if split_bytes > record_bytes and len(pieces) < PARTS_MAX:
            assert all((piece.end - piece.start - 1) * record_bytes <= 2 * split_bytes for piece in own)


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 10**6), min_size=1), st.integers(1, 10**6))
def test_a_share_is_all_or_the_limit_and_starves_nobody(counts: dict[int, int], limit: int) -> None:
    backlogs = {MessageQueue("T", "b", n): count for n, count in counts.items()}
    found = share(backlogs, limit)
    assert sum(found.values()) == min(limit, sum(counts.values()))
    assert all(0 <= found[queue] <= backlogs[queue] for queue in backlogs)
    if limit >= len(backlogs):
        assert all(found.values())


def test_a_streams_offset_is_the_same_text_whatever_the_order() -> None:
    one = encode_offsets({B: 9, A: 4}, {B: 3, A: 4})
    other = encode_offsets({A: 4, B: 9}, {A: 4, B: 3})
    text = '{"from": {"T/b/0": 4, "T/b/1": 3}, "q": {"T/b/0": 4, "T/b/1": 9}, "v": 1}'
    assert json.dumps(one) == json.dumps(other) == text
    assert decode_offsets(one) == ({A: 4, B: 9}, {A: 4, B: 3})
    assert ranges_between({"q": {}, "v": 1}, one) == [Range(B, 3, 9)]
    assert ranges_between(one, encode_offsets({A: 6, B: 9}, {})) == [Range(A, 4, 6)]
    slashes = MessageQueue("T", "a/b", 3)
    assert decode_offsets(encode_offsets({slashes: 1}, {}))[0] == {slashes: 1}
    with pytest.raises(OptionError, match="version 2; known is 1"):
        decode_offsets({"q": {}, "v": 2})


def test_what_is_gone_is_named_exactly() -> None:
    ranges = [Range(A, 2, 9), Range(B, 0, 4)]
    gone = gone_ranges(ranges, {A: 5, B: 0})
    assert gone == [Range(A, 2, 5)]
    assert gone_ranges(ranges, {A: 20, B: 0}) == [Range(A, 2, 9)]
    refuse_loss([])
    with pytest.raises(DataLossError, match=r"3 messages are gone: T/b/0: offsets 2 to 4\. With failOnDataLoss=false"):
        refuse_loss(gone)
