"""Property text: as upstream's parser reads it, and one property as all of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.errors import InvalidPropertyError
from ledgermq.message.properties import decode_properties, encode_properties, find_property, property_finder

texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
# few letters and many separators: segments of every odd shape
raw_properties = st.lists(st.sampled_from([b"a", b"ab", b"\x01", b"\x02", "ü".encode()]), max_size=14).map(b"".join)


def test_encodes_as_upstream(vectors: dict[str, Any]) -> None:
    for case in vectors["propertiesEncode"]:
        encoded = bytes.fromhex(case["encodedHex"])
        assert decode_properties(encoded) == case["decoded"]
        # upstream's map has no order of its own
        assert sorted(encode_properties(case["map"]).split(b"\x02")) == sorted(encoded.split(b"\x02"))


def test_parses_as_upstream(vectors: dict[str, Any]) -> None:
    for case in vectors["propertiesParse"]:
        assert decode_properties(bytes.fromhex(case["encodedHex"])) == case["decoded"]


@given(st.dictionaries(texts, texts))
def test_decoding_undoes_encoding(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded.decode()) == properties
    assert decode_properties(encoded[:-1]) == properties  # old clients leave the last separator out


@given(raw_properties, st.sampled_from(["a", "ab", "aba", "ü"]))
def test_finding_one_agrees_with_decoding_all(raw: bytes, name: str) -> None:
    found = find_property(raw, name.encode())
    assert property_finder(name.encode())(raw) == found
    assert (None if found is None else found.decode()) == decode_properties(raw).get(name)


def test_the_last_of_equal_names_wins_unless_it_is_empty() -> None:
    assert find_property(b"k\x01one\x02k\x01two\x02", b"k") == b"two"
    assert find_property(b"k\x01one\x02k\x01\x02", b"k") == b"one"
    assert find_property(b"kk\x01one\x02", b"k") is None


def test_bytes_that_are_no_text_do_not_stop_the_parser() -> None:
    assert decode_properties(b"a\x01\xff\x02b\x01c\x02") == {"a": "�", "b": "c"}


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}, {"a": "\ud800"}])
def test_what_the_text_cannot_carry_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidPropertyError):
        encode_properties(properties)
