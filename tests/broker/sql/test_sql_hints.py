"""Hints of SQL92 filters: what every matching message holds, and what keeps others out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.sql import compile_filter
from broker.sql.hints import BYTES_MAX, PART_MAX, SCANS_MAX, patterns, whole_number
from ledgermq.message.properties import encode_properties

COMPARE = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
NAMES = st.sampled_from(["a", "b", "ab", "a$1"])
INTEGERS = st.one_of(st.integers(0, 12), st.integers(0, 1200), st.integers(0, (1 << 63) - 1))
TEXTS = st.sampled_from(["", "x", "xy", "it's", "yx.*", "\ufffd", "é", "true", "1", "007", "-3", "2.5"])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


CONSTANTS = st.one_of(INTEGERS.map(str), TEXTS.map(quoted), st.just("2.5"), st.just("TRUE"))
NEGATION = st.sampled_from(["", "NOT "])
TESTS = st.one_of(
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "<>"]), st.one_of(CONSTANTS, NAMES)),
    st.builds("{} {} {}".format, st.one_of(CONSTANTS, NAMES), st.sampled_from(["=", "<>"]), NAMES),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(list(COMPARE)[2:]), st.one_of(INTEGERS.map(str), NAMES)),
    st.builds("{} {} {}".format, INTEGERS.map(str), st.sampled_from(list(COMPARE)[2:]), NAMES),
    st.builds("{} {}IN ({}, {})".format, NAMES, NEGATION, TEXTS.map(quoted), TEXTS.map(quoted)),
    st.builds(
        "{} {}{} {}".format,
        NAMES,
        NEGATION,
        st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
        TEXTS.map(quoted),
    ),
    st.builds("{} IS {}NULL".format, NAMES, NEGATION),
    st.builds("{} NOT BETWEEN {} AND {}".format, NAMES, INTEGERS.map(str), INTEGERS.map(str)),
    st.builds("{} BETWEEN 0 AND {}".format, NAMES, INTEGERS.map(str)),
    NAMES,
    st.just("TRUE"),
)
EXPRESSIONS = st.recursive(
    TESTS,
    lambda part: st.one_of(
        st.builds("({} AND {})".format, part, part),
        st.builds("({} OR {})".format, part, part),
        st.builds("NOT ({})".format, part),
    ),
    max_leaves=6,
)
VALUES = st.one_of(TEXTS.map(str.encode), INTEGERS.map(lambda number: b"%d" % number), st.just(b"x\xffy"))
SEGMENTS = st.builds(b"%b\x01%b\x02".__mod__, st.tuples(NAMES.map(str.encode), VALUES))


def row(properties: bytes) -> bytes:
    return b"\x02" + properties + b"\x02"


def has(hint: bytes, properties: bytes) -> bool:
    return re.search(hint, row(properties)) is not None


@given(EXPRESSIONS, st.lists(SEGMENTS, max_size=5).map(b"".join))
def test_all_that_match_have_all_hints(expression: str, properties: bytes) -> None:
    wanted = compile_filter(expression)
    for encoded in (properties, properties.removesuffix(b"\x02")):
        if wanted(encoded):
            assert all(has(hint, encoded) for hint in wanted.hints)


@given(
    st.sampled_from(list(COMPARE)),
    INTEGERS,
    st.booleans(),
    INTEGERS,
    st.sampled_from(["%d", "+%d", "-%d", "00%d", "-0%d"]),
)
def test_the_hint_of_a_whole_number_says_neither_more_nor_less(
    sign: str, number: int, negative: bool, value: int, form: str
) -> None:
    text = form % value
    number = -number if negative else number
    (hint,) = patterns(whole_number(b"a", sign, number))
    assert has(hint, b"a\x01%b\x02" % text.encode()) is (COMPARE[sign](int(text), number) or sign == "<>")


@pytest.mark.parametrize(
    ("expression", "without"),
    [
        ("a > 8 AND region = 'eu'", {"a": "8", "region": "us"}),
        ("a > 8 AND a < 11", {"a": "12"}),
        ("a BETWEEN 5 AND 7", {"a": "8"}),
        ("s IN ('x', 'y')", {"s": "z", "ss": "x"}),
        ("s = 'x' OR a = 1", {"s": "xx", "a": "11"}),
        ("s CONTAINS 'ell'", {"s": "Hallo", "t": "Hello"}),
        ("s STARTSWITH 'He'", {"s": "oHe"}),
        ("s ENDSWITH 'lo'", {"s": "lol"}),
        ("s IS NOT NULL", {"t": "s"}),
        ("s NOT IN ('x')", {"t": "s"}),
        ("a > 2.5", {"b": "3"}),
        ("a > b", {"c": "3"}),
    ],
)
def test_messages_without_a_hint_are_many(expression: str, without: dict[str, str]) -> None:
    hints = compile_filter(expression).hints
    assert hints
    assert not any(has(hint, encode_properties(without)) for hint in hints)


@pytest.mark.parametrize("expression", ["a IS NULL", "NOT (a = 5)", "a = 5 OR b IS NULL", "a = b", "5 <> a", "TRUE"])
def test_what_a_message_without_the_property_may_match_gives_no_hint(expression: str) -> None:
    assert compile_filter(expression).hints == ()


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(f"a = {number}" for number in range(1000)),
        "a IN (" + ", ".join(f"'{number}'" for number in range(1000)) + ")",
        " AND ".join(f"a{number} = 'x{number}'" for number in range(500)),
        " AND ".join(f"a <= {number}" for number in range(500)),
        "a = '" + "x" * 10_000 + "'",
    ],
    ids=["or", "in", "and", "one name", "long"],
)
def test_hints_are_few_and_short(expression: str) -> None:
    hints = compile_filter(expression).hints
    assert len(hints) <= 4
    assert all(len(hint) <= BYTES_MAX + 4 for hint in hints)


@pytest.mark.parametrize(
    "expression",
    [
        " AND ".join(f"s CONTAINS '{number}'" for number in range(30)),
        " OR ".join(f"s CONTAINS '{number}'" for number in range(SCANS_MAX)),
        " OR ".join(f"s ENDSWITH '{number}'" for number in range(30)) + " AND a = 1",
        "s CONTAINS '" + "x" * 400 + "y'",
        "s ENDSWITH '" + "x" * 400 + "y'",
    ],
)
def test_the_search_for_a_hint_goes_through_a_value_a_few_times_at_most(expression: str) -> None:
    for hint in compile_filter(expression).hints:
        assert hint.count(b"*") <= SCANS_MAX
        assert b"x" * (PART_MAX + 1) not in hint


def test_leading_zeros_are_passed_over_once() -> None:
    hints = compile_filter("a > 1 AND a < 1000 AND b = 5").hints
    assert sum(hint.count(b"0*+") for hint in hints) == sum(hint.count(b"0*") for hint in hints) == 3
