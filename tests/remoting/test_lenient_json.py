"""JSON as Java's library writes it, and as nobody should."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.codec.lenient_json import (
    DEPTH_MAX,
    LENGTH_MAX,
    MARKS_MAX,
    SLOW_MARKS_MAX,
    Data,
    _Parser,
    _to_number,
    loads,
    loads_numbers_as_text,
)
from ledgermq.remoting.errors import JsonError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 0, 2]), st.booleans())
def test_the_slow_parser_reads_standard_json_as_the_standard_one(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert _Parser(text, _to_number).whole() == value
    assert loads(text.encode()) == value


@given(st.dictionaries(st.integers(0, 10**6), texts, max_size=5))
def test_numbers_as_keys(table: dict[int, str]) -> None:
    text = "{" + ",".join(f"{key}:{json.dumps(value)}" for key, value in table.items()) + "}"
    assert loads(text) == {str(key): value for key, value in table.items()}


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,0-.e truefalsnul\\ud8')).map(str.encode))
def test_any_input_is_a_value_or_a_refusal(data: bytes) -> None:
    try:
        orjson.dumps(loads(data))
        orjson.dumps(loads_numbers_as_text(data))
    except JsonError:
        pass


def test_objects_as_keys_become_their_text() -> None:
    body = b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"\xc3\xbc"}:42}}'
    assert loads(memoryview(body)) == {"offsetTable": {'{"brokerName":"b","queueId":1,"topic":"ü"}': 42}}


def test_what_nameservers_and_brokers_of_upstream_write() -> None:
    assert loads('{"brokerAddrs":{0:"a:1",2:"b:2"}}') == {"brokerAddrs": {"0": "a:1", "2": "b:2"}}
    assert loads('{"offsetTable":{"t@g":{0:5,1:7}}}') == {"offsetTable": {"t@g": {"0": 5, "1": 7}}}


def test_numbers_can_stay_as_they_stood() -> None:
    text = "[1, -0.10, 1e400, 123456789012345678901234567890]"
    assert loads_numbers_as_text(text) == ["1", "-0.10", "1e400", "123456789012345678901234567890"]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "}", "[", "[1", "[1,", "[1,]", "{,}", '{"a"}', '{"a":}', '{"a":1', '{"a":1,}', '{"a":1 "b":2}',
        "nul", "tru e", "NaN", "Infinity", "-", "1e999", "01", '"a', "'a'", "1 2", "{1:2}3", "+1", ".5",
        "9" * 5000, '"\\u12"', "\x00",
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: data.decode()])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'["[[",{"b":1,"a":', b"},{}]")])
def test_standard_json_nests_no_deeper_than_lenient(
    make: Callable[[bytes], Data], opening: bytes, closing: bytes
) -> None:
    levels = opening.replace(b'"[["', b"").count(b"[") + opening.count(b"{")
    count = DEPTH_MAX // levels
    assert loads(make(opening * count + b"1" + closing * count))
    with pytest.raises(JsonError, match="nested deeper than 64"):
        loads(make(opening * (count + 2) + b"1" + closing * (count + 2)))


def test_wide_standard_json_is_read_whatever_is_in_its_texts() -> None:
    assert loads(b"[" + b'{"a":["[[[[{{{{"]},' * 1000 + b'"' + b"[" * 1000 + b'"]')
    assert loads(b'"' + b"[{" * 1000 + b'"') == "[{" * 1000


@pytest.mark.parametrize("before", [b"", b'{"a":[{}]},' * 100, b'"[",' * 70, b'{"a":[1],"a":0},'])
def test_json_nests_as_deep_as_it_may_whatever_lies_beside(before: bytes) -> None:
    for depth in (DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1):
        for last in (b"[]", b"[{}]", b"0"):
            text = b"[" + before + b"[" * depth + last + b"]" * depth + b"]"
            if depth + (1 + last.count(b"[") + last.count(b"{")) <= DEPTH_MAX + 1:
                assert loads(text)
            else:
                with pytest.raises(JsonError, match="nested deeper"):
                    loads(text)


@pytest.mark.parametrize("part", [b"[],", b"0,", b'":",', b'{"":0},'])
def test_json_of_too_many_parts_is_refused_before_it_is_parsed(part: bytes) -> None:
    count = MARKS_MAX // sum(map(part.count, b"[{,:"))
    assert len(loads(b"[" + part * (count - 1) + b"0]")) == count
    with pytest.raises(JsonError, match="commas, colons and brackets; it may have 2097152"):
        loads(b"[" + part * (count + 1) + b"0]")


def test_an_object_as_a_key_has_no_such_keys_itself() -> None:
    """The text of a key of keys has twice as many backslashes for each level: some 125 bytes became gigabytes."""
    for text in ("{" * 4 + "a:1" + "}:1" * 3 + "}", "{" * 1000):
        with pytest.raises(JsonError, match="within another such key"):
            loads(text)
    assert loads("{{a:{b:1}}:2,{c:[3]}:4}") == {'{"a":{"b":1}}': 2, '{"c":[3]}': 4}


def test_the_slow_parser_takes_only_so_many_parts() -> None:
    count = SLOW_MARKS_MAX - 3
    assert len(loads("[" + "0," * count + "{a:1}]")) == count + 1
    with pytest.raises(JsonError, match="not standard JSON; such a text may have at most 32768"):
        loads("[" + "0," * (count + 1) + "{a:1}]")


def test_deep_nesting_is_refused() -> None:
    deep = DEPTH_MAX - 1
    assert loads("[" * deep + "{1:2}" + "]" * deep)
    for text in ("[" * 1000, '{"a":' * 1000, "{1:" * 1000):
        with pytest.raises(JsonError, match="nested deeper"):
            loads(text)


def test_long_text_is_read_only_if_it_is_standard() -> None:
    standard = "[" + "0," * LENGTH_MAX + "0]"
    assert len(loads(standard)) == LENGTH_MAX + 1
    with pytest.raises(JsonError, match="bytes that are not standard JSON"):
        loads(standard + "x")


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(JsonError, match="not UTF-8"):
        loads(b'{"a":"\xff"}')


def test_half_of_a_surrogate_pair_becomes_a_replacement() -> None:
    assert loads('{1:"x\\ud800y"}') == {"1": "x\ufffdy"}
    assert loads('{1:"\\ud83d\\ude00"}') == {"1": "\U0001f600"}
