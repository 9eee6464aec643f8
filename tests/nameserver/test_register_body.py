import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.refusal import Refusal
from nameserver.core.model import QueueData
from nameserver.register_body import parse_register_body

GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "json" / "103-REGISTER_BROKER"
V5, V4, V3 = 479, 405, 36
VERSION = {"counter": 3, "stateVersion": 1, "timestamp": 9}
TOPIC = {"perm": 6, "readQueueNums": 4, "topicName": "T", "topicSysFlag": 1, "writeQueueNums": 5}


def sized(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


def deflated(topics: list[str], servers: list[str] | None = None, mappings: list[Any] | None = None) -> bytes:
    data = sized(json.dumps(VERSION).encode()) + struct.pack(">i", len(topics)) + sized(*(t.encode() for t in topics))
    data += sized(json.dumps(servers or []).encode())
    if mappings is not None:
        data += struct.pack(">i", len(mappings)) + sized(*(json.dumps(m).encode() for m in mappings))
    return zlib.compress(data)


def body(**wrapper: Any) -> bytes:
    return json.dumps({"filterServerList": ["h:1"], "topicConfigSerializeWrapper": wrapper}).encode()


def test_a_json_body_is_read() -> None:
    table = parse_register_body(body(dataVersion=VERSION, topicConfigTable={"T": TOPIC}), V5, "b")
    assert table.version == DataVersion(3, 9, 1)
    assert table.topics == {"T": QueueData("b", 4, 5, 6, 1)}
    assert table.filter_servers == ("h:1",)


def test_no_body_and_absent_members_are_an_empty_table() -> None:
    for empty in (b"", b"{}", body(), body(topicConfigTable=None, dataVersion=None)):
        table = parse_register_body(empty, V5, "b")
        assert (table.version, dict(table.topics)) == (DataVersion(), {})


def test_a_broker_of_3_0_10_sends_the_wrapper_alone() -> None:
    wrapper = json.dumps({"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC}}).encode()
    assert list(parse_register_body(wrapper, V3, "b").topics) == ["T"]


def test_upstreams_compressed_body_gives_the_same_as_its_plain_one() -> None:
    def recorded(number: str) -> bytes:
        frame = (GOLDEN / number / "request.bin").read_bytes()
        header = int.from_bytes(frame[5:8], "big")
        return frame[8 + header :]

    compressed, plain = (parse_register_body(recorded(number), V5, "golden-z") for number in ("11", "13"))
    assert compressed.topics == plain.topics
    assert compressed.version == plain.version


def test_a_compressed_body_has_mappings_since_5_0_only() -> None:
    mapping = {"topic": "Static", "bname": "b"}
    assert parse_register_body(deflated([], mappings=[mapping]), V5, "b").mappings == {"Static": mapping}
    assert parse_register_body(deflated([]), V5, "b").mappings == {}
    assert parse_register_body(deflated(["T 4 5 6 SINGLE_TAG {}"], ["h:1"]), V4, "b").filter_servers == ("h:1",)


@pytest.mark.parametrize(
    ("data", "remark"),
    [
        (body(topicConfigTable={"T": 1}), "topic T is '1', not a JSON object"),
        (body(topicConfigTable={"T": TOPIC | {"perm": "6"}}), "topic T: perm is '6', not a number"),
        (body(topicConfigTable={"T": TOPIC | {"readQueueNums": "1"}}), "topic T: readQueueNums is '1'"),
        (body(topicConfigTable={"T": TOPIC | {"writeQueueNums": 65537}}), "topic T: writeQueueNums is '65537'"),
        (body(topicConfigTable={"T": TOPIC | {"writeQueueNums": True}}), "topic T: writeQueueNums is 'True'"),
        (body(topicConfigTable=["T"]), "topicConfigTable is \"['T']\", not a JSON object"),
        (body(dataVersion=5), "dataVersion is '5', not a JSON object"),
        (body(dataVersion={"counter": "x"}), "dataVersion: counter is 'x'"),
        (body(topicQueueMappingInfoMap={"T": 1}), "queue mapping of topic T is '1', not a JSON object"),
        (b'{"filterServerList":[1]}', "filterServerList is '[1]', not a list of addresses"),
        (deflated(["T 4 5"]), "topic is 'T 4 5', not name, two queue counts and a permission"),
        (deflated(["T 4 70000 6 SINGLE_TAG {}"]), "topic T: writeQueueNums is '70000'"),
        (zlib.compress(b"\x00\x00"), "registration: dataVersion at byte 0 of 2 cannot be read"),
        (zlib.compress(struct.pack(">i", 99) + b"{}"), "registration: dataVersion at byte 4 of 6 cannot be read"),
        (zlib.compress(sized(b"{}") + struct.pack(">i", -1)), "registration: count of topics is '-1', not 0 or more"),
        (
            zlib.compress(sized(b"{}") + struct.pack(">i", 1 << 30)),
            "registration: topic at byte 10 of 10 cannot be read",
        ),
        (zlib.compress(bytes((16 << 20) + 1), 1), "has more than 16777216 bytes when decompressed"),
        (b"\x78", "registration: dataVersion at byte 0 of 0 cannot be read"),
        (b"\x78\x00", "2 bytes cannot be decompressed"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data: bytes, remark: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_register_body(data, V5, "b")
    assert caught.value.code == 1
    assert remark in caught.value.remark


def test_what_inflates_to_more_than_the_limit_is_refused() -> None:
    packed = zlib.compress(bytes(2_000_000))
    with pytest.raises(Refusal, match="has more than 1000000 bytes when decompressed"):
        parse_register_body(packed, 479, "b", inflated_max=1_000_000)
