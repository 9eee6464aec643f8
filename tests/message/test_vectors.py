"""Ids, hashes, CRCs, batches and queue units as upstream computes them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.batch import encode_batch
from ledgermq.message.crc import body_crc, decode_crc_property, encode_crc_property
from ledgermq.message.errors import InvalidHostError, InvalidMessageIdError, MalformedBatchError
from ledgermq.message.hashing import index_hash, java_string_hash, tags_code
from ledgermq.message.hosts import Host, decode_host, encode_host
from ledgermq.message.ids import UniqueIdGenerator, offset_message_id, parse_offset_message_id
from ledgermq.message.queue_unit import UNIT, UNIT_SIZE
from tests.wire import split_batch

Vectors = dict[str, Any]


def test_offset_ids(vectors: Vectors) -> None:
    for case in vectors["offsetMessageIds"]:
        host = Host(case["address"], case["port"])
        assert offset_message_id(encode_host(host), case["offset"]) == case["id"]
        parsed, offset = parse_offset_message_id(case["id"])
        assert (encode_host(parsed), offset) == (encode_host(host), case["offset"])


@pytest.mark.parametrize("text", ["", "0" * 31, "G" * 32, " " * 32, "0A " * 10 + "00", "é" * 32])
def test_other_text_is_no_offset_id(text: str) -> None:
    with pytest.raises(InvalidMessageIdError):
        parse_offset_message_id(text)


def test_unique_ids(vectors: Vectors) -> None:
    month = int(datetime(2023, 11, 1, tzinfo=UTC).timestamp()) * 1000
    cases = [case for case in vectors["uniqueIds"] if case["millisSinceMonthStart"] < 30 * 86400_000]
    assert len(cases) >= 8
    for case in cases:
        address = encode_host(Host(case["ip"], 0))[:-4]
        generator = UniqueIdGenerator(address, case["pid"], case["classLoaderHash"])
        ids = [generator.next(month + case["millisSinceMonthStart"]) for _ in range(case["counter"] + 1)]
        assert ids[-1] == case["id"]


def test_unique_ids_go_on_into_the_next_month_and_year() -> None:
    generator = UniqueIdGenerator(bytes([10, 0, 0, 1]), 70000, -1)
    december = int(datetime(2023, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000
    assert generator.next(december) == "0A000001" + "1170" + "FFFFFFFF" + f"{31 * 86400_000 - 1000:08X}" + "0000"
    assert generator.next(december + 1000).endswith("000000000001")


def test_unique_ids_of_one_millisecond_differ() -> None:
    generator = UniqueIdGenerator(bytes(4), 1, 1)
    assert len({generator.next(1_700_000_000_000) for _ in range(65536)}) == 65536


def test_tags_codes(vectors: Vectors) -> None:
    for case in vectors["tags"]:
        assert tags_code(case["tag"]) == tags_code(case["tag"].encode()) == case["tagsCode"]


def test_index_hashes(vectors: Vectors) -> None:
    for case in vectors["indexKeys"]:
        assert java_string_hash(case["text"]) == case["javaHash"]
        assert index_hash(case["text"]) == case["indexHash"]


def test_topic_queue_stripes_hash_alike(vectors: Vectors) -> None:
    for case in vectors["topicQueueLockStripes"]:
        assert (java_string_hash(case["key"]) & 0x7FFFFFFF) % 32 == case["stripeOf32"]


def test_body_crcs(vectors: Vectors) -> None:
    for case in vectors["bodyCrc"]:
        body = bytes.fromhex(case["bodyHex"])
        assert body_crc(body) == body_crc(memoryview(body)) == case["crc"]


def test_crc_properties(vectors: Vectors) -> None:
    for case in vectors["crcProperty"]:
        encoded = bytes.fromhex(case["hex"])
        assert encode_crc_property(case["crc"]) == encoded
        assert decode_crc_property(b"a\x01b\x02" + encoded) == case["crc"]
        assert decode_crc_property(encoded[:-1]) is None
        assert decode_crc_property(encoded[:-2] + b"x\x02") is None


def test_batches(vectors: Vectors) -> None:
    for case in vectors["batchWire"]:
        body = bytes.fromhex(case["hex"])
        messages = split_batch(body)
        assert len(messages) == case["messages"]
        assert encode_batch(messages) == body


batch_messages = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(), st.binary())


@given(st.lists(batch_messages))
def test_splitting_undoes_batching(messages: list[tuple[int, bytes | memoryview, bytes]]) -> None:
    assert split_batch(encode_batch(messages)) == messages


@given(st.lists(batch_messages, min_size=1), st.data())
def test_a_damaged_batch_is_refused_or_still_one(messages: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    body = bytearray(encode_batch(messages))
    cut = data.draw(st.integers(0, len(body)))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(0, 255))
    try:
        split = split_batch(bytes(body[:cut]))
    except MalformedBatchError:
        return
    assert len(encode_batch(split)) == cut


def test_batch_properties_have_a_limit() -> None:
    with pytest.raises(MalformedBatchError, match="32768 bytes of properties"):
        encode_batch([(0, b"", bytes(32768))])


def test_a_queue_unit_is_twenty_bytes() -> None:
    assert UNIT_SIZE == 20
    assert UNIT.pack(4096, 123, 2598919).hex() == "0000000000001000" + "0000007b" + "000000000027a807"


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(-(2**31), 2**31 - 1))
def test_decoding_a_host_undoes_encoding(address: object, port: int) -> None:
    host = Host(str(address), port)
    encoded = encode_host(host)
    assert len(encoded) == (20 if ":" in host.address else 8)
    assert decode_host(memoryview(encoded)) == host


def test_hosts_read_as_people_write_them() -> None:
    assert str(Host("10.0.0.1", 9876)) == "10.0.0.1:9876"
    assert str(Host("::1", 9876)) == "[::1]:9876"
    assert encode_host(Host("fe80::1%eth0", 1)) == encode_host(Host("fe80::1", 1))


@pytest.mark.parametrize("host", [Host("localhost", 1), Host("", 1), Host("10.0.0.1", 2**31)])
def test_what_is_no_address_is_refused(host: Host) -> None:
    with pytest.raises(InvalidHostError):
        encode_host(host)


def test_a_host_has_eight_or_twenty_bytes() -> None:
    with pytest.raises(InvalidHostError, match="9 bytes"):
        decode_host(bytes(9))
