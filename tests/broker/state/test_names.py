"""Which names topics and groups may have."""

import pytest

from broker.state import names
from ledgermq.remoting.refusal import Cause, Refusal


@pytest.mark.parametrize("topic", ["T", "a-b_c|%9", "t" * 127, "%RETRY%" + "g" * 248])
def test_a_lawful_topic_name_passes(topic: str) -> None:
    names.check_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "part"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal characters"),
        ("dot.ted", "illegal characters"),
        ("тема", "illegal characters"),
        ("a/../b", "illegal characters"),
        ("t" * 128, "has 128 characters, the limit is 127"),
        ("%RETRY%" + "g" * 249, "has 256 characters, the limit is 255"),
    ],
)
def test_an_unlawful_topic_name_is_refused_with_the_rule_it_breaks(topic: str, part: str) -> None:
    with pytest.raises(Refusal) as caught:
        names.check_topic_name(topic)
    assert caught.value.cause is Cause.INVALID_PARAMETER
    assert part in caught.value.remark


@pytest.mark.parametrize(("group", "part"), [("", "blank"), ("a.b", "illegal"), ("g" * 121, "120 (it has 121)")])
def test_an_unlawful_group_name_is_refused(group: str, part: str) -> None:
    with pytest.raises(Refusal, match="specified group") as caught:
        names.check_group_name(group)
    assert part in caught.value.remark


def test_system_topics_are_known_by_name_and_prefix() -> None:
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("orders")
