from pathlib import Path

import pytest

from node.properties import ConfigError, Property, parse_overrides, parse_properties, read_properties


def parsed(text: str) -> dict[str, str]:
    return {item.key: item.value for item in parse_properties(text, "broker.conf")}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("brokerName=broker-a", "brokerName", "broker-a"),
        ("  brokerName = broker-a  ", "brokerName", "broker-a"),
        ("brokerName:broker-a", "brokerName", "broker-a"),
        ("brokerName broker-a", "brokerName", "broker-a"),
        ("namesrvAddr=a:1;b:2", "namesrvAddr", "a:1;b:2"),
        ("messageDelayLevel=1s 5s 10s", "messageDelayLevel", "1s 5s 10s"),
        ("dLegerGroup=", "dLegerGroup", ""),
        (r"storePathRootDir=/a\ b\tc", "storePathRootDir", "/a b\tc"),
        (r"brokerName=\u0436", "brokerName", "ж"),
        (r"a\=b=c", "a=b", "c"),
        ("brokerName=имя", "brokerName", "имя"),
    ],
)
def test_a_line_is_read_as_java_reads_it(line: str, key: str, value: str) -> None:
    assert parsed(line) == {key: value}


def test_blanks_at_the_end_of_a_value_do_not_count() -> None:
    assert parsed("fileReservedTime=48 \t\r\n") == {"fileReservedTime": "48"}


def test_comments_and_empty_lines_are_passed_over_and_counted() -> None:
    text = "# a comment\n\n! another\n   # third\nbrokerId=0\n"
    assert parse_properties(text, "broker.conf") == [Property("brokerId", "0", "broker.conf:5")]


def test_a_backslash_at_the_end_joins_lines_and_the_place_is_the_first() -> None:
    text = "brokerId=0\ndLegerPeers=n0-a:1;\\\n   n1-b:2;\\\n   n2-c:3\nbrokerName=b"
    properties = parse_properties(text, "broker.conf")
    assert properties[1] == Property("dLegerPeers", "n0-a:1;n1-b:2;n2-c:3", "broker.conf:2")
    assert properties[2].place == "broker.conf:5"


def test_a_file_may_end_in_a_joined_line() -> None:
    assert parsed("brokerName=b\\") == {"brokerName": "b"}


def test_a_key_that_stands_twice_is_refused_with_both_places() -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf:3: key 'brokerId' stands twice, first at broker\.conf:1"):
        parsed("brokerId=0\nbrokerName=b\nbrokerId=0\n")


def test_all_problems_of_a_file_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("=x\nnothing\na=1\na=2\n")
    assert caught.value.problems == (
        "broker.conf:1: not key=value: '=x'",
        "broker.conf:2: not key=value: 'nothing'",
        "broker.conf:4: key 'a' stands twice, first at broker.conf:3",
    )
    assert str(caught.value).endswith("\n3 problems, nothing started")
    assert caught.value.exit_code == 2


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xef\xbb\xbfbrokerId=1\r\nbrokerName=b\r")
    assert read_properties(path) == [
        Property("brokerId", "1", "broker.conf:1"),
        Property("brokerName", "b", "broker.conf:2"),
    ]


def test_a_file_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=\xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 11"):
        read_properties(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.conf: cannot be read: No such file"):
        read_properties(tmp_path / "none.conf")


def test_overrides_are_key_value_words_and_the_last_one_wins() -> None:
    assert parse_overrides(["a=1", "b = x=y ", "a=2"]) == [
        Property("a", "2", "--set a"),
        Property("b", "x=y", "--set b"),
    ]


@pytest.mark.parametrize("word", ["a", "=1", ""])
def test_an_override_that_is_not_key_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        parse_overrides([word])
