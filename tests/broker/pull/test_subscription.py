"""Tag expressions and the filter over tag codes."""

import pytest

from broker.groups.subscription import make_subscription, parse_tags, tag_filter
from ledgermq.message.hashing import tags_code
from ledgermq.remoting.refusal import Cause, Refusal


@pytest.mark.parametrize("expression", ["", "*"])
def test_all_is_no_filter(expression: str) -> None:
    assert tag_filter(expression) is None


def test_a_filter_takes_the_tags_it_names_and_no_other() -> None:
    wanted = tag_filter(" A || B||A")
    assert wanted is not None
    assert parse_tags(" A || B||A") == ("A", "B")
    assert wanted(tags_code("A"))
    assert wanted(tags_code("B"))
    assert not wanted(tags_code("C"))
    assert not wanted(0)


def test_separators_without_a_tag_are_refused() -> None:
    with pytest.raises(Refusal, match="subscription failed") as caught:
        tag_filter("||")
    assert caught.value.cause is Cause.SUBSCRIPTION_PARSE_FAILED


def test_class_filter_mode_switches_the_tag_test_off() -> None:
    assert make_subscription("T", "A", class_filter=True).tag_filter is None


def test_the_shape_that_tools_read() -> None:
    assert make_subscription("t", "A||B", version=7).to_json() == {
        "classFilterMode": False,
        "codeSet": [65, 66],
        "expressionType": "TAG",
        "subString": "A||B",
        "subVersion": 7,
        "tagsSet": ["A", "B"],
        "topic": "t",
    }
