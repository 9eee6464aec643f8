"""What is kept of clients' texts is bounded by more than their number."""

import pytest

from broker.groups.subscription import asked_subscription, tag_filter
from broker.sql import SqlSyntaxError, compile_filter
from broker.sql.text_cache import SHORT_MAX, text_cache


def test_short_texts_are_remembered_and_long_ones_a_few() -> None:
    made: list[tuple[str, ...]] = []

    @text_cache
    def join(*texts: str) -> str:
        made.append(texts)
        return "".join(texts)

    long = "x" * SHORT_MAX
    for _ in range(2):
        for number in range(100):
            assert join("a", str(number)) == f"a{number}"
            assert join(long, str(number)) == f"{long}{number}"
    assert len(made) == 100 + 2 * 100
    assert join(long, "99") == f"{long}99"
    assert len(made) == 300


def test_expressions_of_requests_are_found_again() -> None:
    assert asked_subscription("T", "a || b", "TAG") is asked_subscription("T", "a || b", "TAG")
    assert tag_filter("a||b") is tag_filter("a||b")
    assert compile_filter("a = 1") is compile_filter("a = 1")
    with pytest.raises(SqlSyntaxError):
        compile_filter("a = ")
