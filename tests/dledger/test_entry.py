"""The 48-byte header, the index unit, and the check of a span's chain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import EntryFormatError
from dledger.log.entry import (
    HEADER_SIZE,
    INDEX_UNIT,
    body_fault,
    check_span,
    encode_entry,
    header_fault,
    read_header,
)

BODIES = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=12)


def chain(bodies: list[bytes], first_index: int = 7, term: int = 3, position: int = 1000) -> bytes:
    data = b""
    for offset, body in enumerate(bodies):
        data += encode_entry(first_index + offset, term, position + len(data), body)
    return data


@given(
    index=st.integers(0, 2**62), term=st.integers(0, 2**62), position=st.integers(0, 2**62), body=st.binary(min_size=1)
)
def test_what_is_encoded_is_read_back(index: int, term: int, position: int, body: bytes) -> None:
    entry = encode_entry(index, term, position, body)
    header = read_header(entry, 0)
    assert (header.entry_index, header.term, header.position) == (index, term, position)
    assert header.size == len(entry) == HEADER_SIZE + len(body)
    assert header_fault(header, position, len(entry) + 8) is None
    assert body_fault(entry, 0, header, records=False) is None


@given(bodies=BODIES)
def test_a_span_of_entries_gives_their_index_units(bodies: list[bytes]) -> None:
    data = chain(bodies)
    units = check_span(data, 7, 6 + len(bodies), 3, 1000)
    offset = 0
    for at, (magic, position, size, index, term) in enumerate(INDEX_UNIT.iter_unpack(units)):
        assert (magic, position, size, index, term) == (1, 1000 + offset, HEADER_SIZE + len(bodies[at]), 7 + at, 3)
        header = read_header(data, offset)
        fields = (header.magic, header.position, header.size, header.entry_index, header.term)
        assert fields == (magic, position, size, index, term)
        offset += size
    assert offset == len(data)


@given(bodies=BODIES, data=st.data())
def test_a_span_with_a_changed_header_is_refused_with_its_place(bodies: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(chain(bodies))
    entry = data.draw(st.integers(0, len(bodies) - 1))
    start = sum(len(body) + HEADER_SIZE for body in bodies[:entry])
    checked = [*range(40), *range(44, 48)]  # all but the CRC of the body, which the span's own covers
    raw[start + data.draw(st.sampled_from(checked))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(EntryFormatError) as refused:
        check_span(raw, 7, 6 + len(bodies), 3, 1000)
    assert 1000 + start <= refused.value.position <= 1000 + len(raw) + (1 << 31)


def test_the_refusal_of_a_span_shows_a_channel_and_a_chain_crc() -> None:
    raw = bytearray(chain([b"a", b"bb"]))
    raw[HEADER_SIZE + 1 + 35], raw[HEADER_SIZE + 1 + 39] = 5, 6
    with pytest.raises(EntryFormatError, match="channel 5, chain CRC 0x6, body size 2; expected entry 8 of term 3"):
        check_span(raw, 7, 8, 3, 1000)


@pytest.mark.parametrize(("first", "last"), [(7, 9), (7, 7), (8, 9), (7, 6), (0, 2**60)])
def test_a_span_of_another_count_is_refused(first: int, last: int) -> None:
    with pytest.raises(EntryFormatError):
        check_span(chain([b"a", b"bb"]), first, last, 3, 1000)


@given(body=st.binary(min_size=1, max_size=100), data=st.data())
def test_any_changed_bit_of_a_body_is_noticed(body: bytes, data: st.DataObject) -> None:
    entry = bytearray(encode_entry(0, 0, 0, body))
    entry[HEADER_SIZE + data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert "body CRC" in (body_fault(entry, 0, read_header(entry, 0), records=False) or "")


@given(place=st.integers(0, 47), bit=st.integers(0, 7), body=st.binary(min_size=1, max_size=100))
def test_no_bit_of_an_entry_can_change_unnoticed(place: int, bit: int, body: bytes) -> None:
    for at in (place, HEADER_SIZE + place % len(body)):
        raw = bytearray(encode_entry(7, 3, 1000, body))
        raw[at] ^= 1 << bit
        header = read_header(raw, 0)
        fault = header_fault(header, 1000, len(raw) + 8) or body_fault(raw, 0, header, records=False)
        assert fault or (header.entry_index, header.term) != (7, 3) or not header.body_crc
