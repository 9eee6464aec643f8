"""The record codec beyond the golden cases: identity, every kind of damage, the reference's worked example."""

import dataclasses
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.crc import body_crc
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import BORN_HOST_V6, STORE_HOST_V6, with_host_bits
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX
from ledgermq.message.record import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    Record,
    check_record,
    decode_record,
    decode_records,
    dispatch_fields,
    encode_record,
    record_size,
)

EXAMPLE = bytes.fromhex(
    "0000007bdaa320a73610a68600000003000000000000000000000007000000000000100000000000"
    "0000018bcfe568000a0000010000c3500000018bcfe568010a00000200002a9f000000000000000000000000"
    "0000000568656c6c6f09546f7069635465737400125441475301546167410"
    "24b455953016b3102"
)

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
hosts = st.builds(Host, addresses, i32)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    """A consistent record of either version, with any mix of hosts."""
    topic, body = draw(topics), draw(st.binary(max_size=200))
    properties = draw(st.binary(max_size=100))
    born, store = draw(hosts), draw(hosts)
    v2 = len(topic.encode()) > 127 or draw(st.booleans())
    sys_flag = with_host_bits(draw(st.integers(0, 0x7FF)), encode_host(born), encode_host(store))
    return Record(
        topic=topic,
        queue_id=draw(i32),
        flag=draw(i32),
        sys_flag=sys_flag,
        queue_offset=draw(i64),
        physical_offset=draw(i64),
        born_timestamp=draw(i64),
        born_host=born,
        store_timestamp=draw(i64),
        store_host=store,
        reconsume_times=draw(i32),
        prepared_transaction_offset=draw(i64),
        body=body,
        properties=properties,
        body_crc=body_crc(body),
        size=record_size(len(body), len(topic.encode()), len(properties), sys_flag, v2),
        magic=MAGIC_V2 if v2 else MAGIC_V1,
    )


@given(any_record())
def test_decoding_undoes_encoding(record: Record) -> None:
    encoded = encode_record(record)
    assert len(encoded) == record.size
    assert decode_record(encoded) == record


@given(any_record(), any_record(), st.binary(max_size=9))
def test_records_lie_back_to_back_anywhere(first: Record, second: Record, before: bytes) -> None:
    both = encode_record(first) + encode_record(second)
    assert decode_records(both) == [first, second]
    assert decode_record(before + both, len(before)) == first
    assert dispatch_fields(before + both, len(before))[6:] == (first.topic.encode(), first.properties)


@given(any_record(), st.data())
def test_no_prefix_of_a_record_is_one(record: Record, data: st.DataObject) -> None:
    encoded = encode_record(record)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptRecordError):
        decode_record(encoded[:cut])


@given(any_record(), st.data())
def test_damage_is_refused_or_harmless_never_a_crash(record: Record, data: st.DataObject) -> None:
    encoded = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode_record(bytes(encoded))
    except CorruptRecordError:
        return
    assert encode_record(decoded) == encoded[: decoded.size]


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decode_record(garbage)


def test_the_example_of_the_reference() -> None:
    record = decode_record(EXAMPLE)
    assert (record.topic, record.body, record.queue_id, record.queue_offset) == ("TopicTest", b"hello", 3, 7)
    assert record.property_map == {"TAGS": "TagA", "KEYS": "k1"}
    assert (record.tags, record.keys, record.unique_id) == ("TagA", ["k1"], None)
    assert record.born_host == Host("10.0.0.1", 50000)
    assert record.offset_message_id == "0A00000200002A9F0000000000001000"
    assert encode_record(record) == EXAMPLE


@pytest.mark.parametrize(
    ("at", "replacement", "complaint"),
    [
        (0, b"\0\0\0\x10", "size 16"),
        (0, b"\0\0\xff\xff", "size 65535"),
        (0, b"\xff\xff\xff\xff", "size -1"),
        (4, b"\0\0\0\0", "magic 0x00000000"),
        (8, b"\0\0\0\1", "body CRC"),
        (36, b"\0\0\0\x30", "length"),
        (84, b"\xff\xff\xff\xff", "body length -1"),
        (84, b"\0\0\0\x7f", "body length 127"),
        (93, b"\xff", "topic length -1"),
        (93, b"\x7f", "topic length 127"),
        (103, b"\0\x13", "properties length 19"),
        (103, b"\xff\xff", "properties length -1"),
        (94, b"\xff", "not UTF-8"),
    ],
)
def test_each_contradiction_is_named(at: int, replacement: bytes, complaint: str) -> None:
    damaged = EXAMPLE[:at] + replacement + EXAMPLE[at + len(replacement) :]
    with pytest.raises(CorruptRecordError, match=complaint) as caught:
        decode_record(b"xyz" + damaged, 3)
    assert caught.value.position == 3


def test_the_crc_is_looked_at_only_when_asked() -> None:
    damaged = EXAMPLE[:90] + b"?" + EXAMPLE[91:]
    assert check_record(damaged, 0, len(damaged), check_crc=False) == len(EXAMPLE)
    with pytest.raises(CorruptRecordError, match="body CRC"):
        check_record(damaged, 0, len(damaged), check_crc=True)


def test_a_small_v6_record_is_too_small() -> None:
    small = bytearray(RECORD_SIZE_MIN)
    small[:8] = RECORD_SIZE_MIN.to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=True)
    assert check_record(small, 0, len(small), check_crc=True) == RECORD_SIZE_MIN
    small[39] = BORN_HOST_V6 | STORE_HOST_V6
    with pytest.raises(CorruptRecordError, match="too small for sysFlag 0x30"):
        check_record(small, 0, len(small), check_crc=True)


def test_a_blank_is_no_record() -> None:
    blank = (8).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError, match="filler"):
        decode_record(blank)


def test_checking_leaves_a_mapping_closable() -> None:
    mapping = mmap.mmap(-1, mmap.PAGESIZE)
    mapping[: len(EXAMPLE)] = EXAMPLE
    assert check_record(mapping, 0, len(mapping), check_crc=True) == len(EXAMPLE)
    assert dispatch_fields(mapping, 0)[6] == b"TopicTest"
    mapping[90] ^= 1
    with pytest.raises(CorruptRecordError):
        check_record(mapping, 0, len(mapping), check_crc=True)
    mapping.close()


def test_encoding_refuses_what_contradicts_itself() -> None:
    record = decode_record(EXAMPLE)
    with pytest.raises(CorruptRecordError, match="size 9, but its fields take 123"):
        encode_record(dataclasses.replace(record, size=9))
    with pytest.raises(CorruptRecordError, match="contradicts the hosts"):
        encode_record(dataclasses.replace(record, sys_flag=BORN_HOST_V6))
    with pytest.raises(CorruptRecordError, match="does not fit"):
        encode_record(dataclasses.replace(record, queue_id=2**31))
    long = bytes(PROPERTIES_LENGTH_MAX + 1)
    with pytest.raises(CorruptRecordError, match="does not fit"):
        encode_record(dataclasses.replace(record, properties=long, size=record.size - 18 + len(long)))


def test_host_bits_are_those_of_the_hosts() -> None:
    assert with_host_bits(0x3F, bytes(8), bytes(8)) == 0x0F
    assert with_host_bits(0x01, bytes(20), bytes(8)) == 0x11
    assert with_host_bits(0x01, bytes(8), bytes(20)) == 0x21
