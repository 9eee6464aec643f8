"""SQL92 filters: what each operator matches, what is refused where, and that no text does harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.sql import SqlSyntaxError, compile_filter
from broker.sql.lexer import LENGTH_MAX
from broker.sql.parser import DEPTH_MAX
from ledgermq.message.properties import encode_properties

PROPERTIES = {"a": "5", "d": "-2.5", "s": "it's", "t": "true", "n": "x1", "big": "3000000000", "TAGS": "TagA"}

MATCHED = [
    "a = 5",
    "a > 4 AND a < 6 and a >= 5 And a <= 5",
    "5 = a",
    "4 < a",
    "a <> 6",
    "a = 5L",
    "d = -2.5",
    "d < 0.0",
    "d > -1e1",
    "d BETWEEN -3.0 AND .5",
    "a BETWEEN 5 AND 5",
    "a NOT BETWEEN 6 AND 9",
    "a > d",
    "s = 'it''s'",
    "s <> 'its'",
    "s IN ('x', 'it''s')",
    "s NOT IN ('x','y')",
    "TAGS is not null and TAGS in ('TagA')",
    "missing IS NULL",
    "a IS NOT NULL",
    "(missing = 1) IS NULL",
    "NOT (a = 6)",
    "t = TRUE",
    "s CONTAINS 't'''",
    "s STARTSWITH 'it'",
    "s ENDSWITH 's'",
    "s NOT CONTAINS 'x'",
    "s NOT STARTSWITH 'x'",
    "s NOT ENDSWITH 'x'",
    "missing = 1 OR a = 5",
    "a = 6 OR a = 7 OR a = 5",
    "TRUE",
    "big > 2999999999",
    "a /* five */ = 5 -- really",
    "a = +5",
    "((a)) = 5",
]

NOT_MATCHED = [
    "a = 6",
    "missing = 1",
    "missing <> 1",
    "NOT (missing = 1)",
    "missing IN ('x')",
    "missing NOT IN ('x')",
    "missing CONTAINS 'x'",
    "missing NOT CONTAINS 'x'",
    "s CONTAINS ''",
    "s NOT CONTAINS ''",
    "missing = 1 AND a = 5",
    "a = 5 AND a = 6",
    "s > 1",  # no number: the message does not match
    "s > 1 OR a = 5",  # nor does the rest save it, as in Java
    "d > 0.0",
    "d > -3",  # no whole number, as in Java
    "d > -3 OR a = 5",
    "a",  # a text is no truth
    "t",
    "NULL",
    "FALSE",
    "t = FALSE",
    "a IS NULL",
    "NOT a = 6",  # NOT binds closer than =, as in Java
]


@pytest.mark.parametrize("expression", MATCHED)
def test_matches(expression: str) -> None:
    assert compile_filter(expression)(encode_properties(PROPERTIES))


@pytest.mark.parametrize("expression", NOT_MATCHED)
def test_does_not_match(expression: str) -> None:
    assert not compile_filter(expression)(encode_properties(PROPERTIES))


@pytest.mark.parametrize(
    ("expression", "position", "what"),
    [
        ("", 0, "a value"),
        ("a >", 3, "a value"),
        ("a > > 1", 4, "found '>'"),
        ("a = 1 b", 6, "the end"),
        ("a == 1", 3, "found '='"),
        ("a = 'open", 4, "unexpected"),
        ("a ! 1", 2, "unexpected"),
        ("(a = 1", 6, "expected )"),
        ("a > 'x'", 2, "compares only numbers"),
        ("a > TRUE", 2, "compares only numbers"),
        ("a = NULL", 2, "IS NULL"),
        ("TRUE = 1", 5, "cannot be compared"),
        ("5", 1, "expected a condition"),
        ("a AND 5", 7, "expected a condition"),
        ("a BETWEEN 9 AND 5", 2, "is an empty range"),
        ("a IN (1)", 6, "expected string"),
        ("a IN ()", 6, "expected string"),
        ("5 IN ('x')", 2, "IN must follow a property"),
        ("a CONTAINS 5", 11, "expected string"),
        ("a IS 5", 5, "expected NULL"),
        ("a = 9223372036854775808", 4, "does not fit into 64 bits"),
        (f"a = {'9' * 5000}L", 4, "does not fit into 64 bits"),
        (f"{'9' * 5000} = a", 0, "does not fit into 64 bits"),
        ("a = 1e999", 4, "does not fit into a double"),
        ("a = 007", 5, "found '0'"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(expression: str, position: int, what: str) -> None:
    with pytest.raises(SqlSyntaxError) as refusal:
        compile_filter(expression)
    assert refusal.value.position == position
    assert what in str(refusal.value)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "a = 1",
        "- " * (DEPTH_MAX + 1) + "1 = a",
        "a" + " = 1" * (DEPTH_MAX + 1),
        "a = '" + "x" * LENGTH_MAX + "'",
    ],
    ids=["parentheses", "not", "minus", "equals", "long"],
)
def test_depth_and_length_are_bounded(expression: str) -> None:
    with pytest.raises(SqlSyntaxError):
        compile_filter(expression)


def test_a_long_chain_is_no_depth() -> None:
    expression = " OR ".join(f"a = {number}" for number in range(1000))
    assert compile_filter(expression)(b"a\x01999\x02")
    assert not compile_filter(expression)(b"a\x011000\x02")


WORDS = st.sampled_from(
    [
        "a",
        "b",
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
        "(",
        ")",
        ",",
        "=",
        "<>",
        ">",
        ">=",
        "<",
        "<=",
        "+",
        "-",
        "1",
        "2.5",
        "'x'",
        "''",
    ]
)


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=14).map(" ".join)), st.sampled_from(["1", "x", "2.5"]))
def test_any_text_is_refused_or_gives_a_verdict(expression: str, value: str) -> None:
    try:
        matches = compile_filter(expression)
    except SqlSyntaxError as error:
        assert 0 <= error.position <= len(expression)
    else:
        assert matches(encode_properties({"a": value})) in (True, False)
