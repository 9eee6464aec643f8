"""Every golden record decodes to its manifest and encodes back to its bytes."""

import hashlib
import ipaddress
import zlib
from typing import Any

from ledgermq.message import record as records
from ledgermq.message.crc import decode_crc_property
from ledgermq.message.draft import RecordDraft
from ledgermq.message.hashing import tags_code
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.record import (
    BLANK,
    BLANK_MAGIC,
    MAGIC_V2,
    Record,
    check_record,
    decode_records,
    dispatch_fields,
    encode_record,
    record_size,
)

Case = tuple[bytes, dict[str, Any]]


def _host(host: Host) -> str:
    """As Java writes it: IPv6 without `::`."""
    address = ipaddress.ip_address(host.address)
    if isinstance(address, ipaddress.IPv6Address):
        groups = ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))
        return f"{groups}:{host.port}"
    return f"{address}:{host.port}"


def _manifest(record: Record, raw: bytes) -> dict[str, Any]:
    return {
        "totalSize": record.size,
        "magicCode": record.magic,
        "version": "MESSAGE_VERSION_V2" if record.magic == MAGIC_V2 else "MESSAGE_VERSION_V1",
        "bodyCRC": record.body_crc,
        "queueId": record.queue_id,
        "flag": record.flag,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": _host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": _host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyLength": len(record.body),
        "bodySha256": hashlib.sha256(record.body).hexdigest(),
        "topic": record.topic,
        "tags": record.tags,
        "keys": record.property_map.get("KEYS"),
        "tagsCode": tags_code(record.tags or ""),
        "properties": record.property_map,
        "offsetMsgId": record.offset_message_id,
        "recordSha256": hashlib.sha256(raw).hexdigest(),
        "propertiesHex": record.properties.hex(),
    }


def test_decodes_to_the_manifest(golden_case: Case) -> None:
    data, manifest = golden_case
    decoded = decode_records(data)
    assert len(decoded) == len(manifest["records"])
    for record, expected in zip(decoded, manifest["records"], strict=True):
        got = _manifest(record, data[expected["at"] : expected["at"] + record.size])
        assert got == {key: expected[key] for key in got}


def test_encodes_back_to_the_same_bytes(golden_case: Case) -> None:
    data, _ = golden_case
    assert b"".join(map(encode_record, decode_records(data))) == data


def test_a_draft_of_it_is_written_as_upstream_wrote_it(golden_case: Case) -> None:
    data, _ = golden_case
    pieces = [
        piece for record in decode_records(data) for piece in _draft(record).pieces(encode_host(record.store_host))
    ]
    assert b"".join(pieces) == data


def _draft(record: Record) -> RecordDraft:
    draft = RecordDraft()
    draft.topic = record.topic.encode()
    draft.queue_id = record.queue_id
    draft.flag = record.flag
    draft.sys_flag = record.sys_flag
    draft.born_timestamp = record.born_timestamp
    draft.born_host = encode_host(record.born_host)
    draft.reconsume_times = record.reconsume_times
    draft.prepared_transaction_offset = record.prepared_transaction_offset
    draft.body = record.body
    draft.properties = record.properties
    draft.tags_code = 0
    v2 = records.needs_v2(draft.topic)
    draft.size = record_size(len(draft.body), len(draft.topic), len(draft.properties), draft.sys_flag, v2)
    draft.queue_offset = record.queue_offset
    draft.store_timestamp = record.store_timestamp
    draft.physical_offset = record.physical_offset
    return draft


def test_dispatch_fields_are_those_of_the_whole_record(golden_case: Case) -> None:
    data, _ = golden_case
    position = 0
    for record in decode_records(data):
        assert dispatch_fields(memoryview(data), position) == (
            record.size,
            record.queue_id,
            record.sys_flag,
            record.queue_offset,
            record.physical_offset,
            record.store_timestamp,
            record.topic.encode(),
            record.properties,
        )
        position += record.size


def test_an_appended_crc_is_that_of_the_bytes_before_it(golden_case: Case) -> None:
    data, manifest = golden_case
    position = 0
    for record in decode_records(data):
        crc = decode_crc_property(record.properties)
        assert (crc is not None) == ("__CRC32#" in record.property_map)
        if crc is not None:
            assert crc == zlib.crc32(data[position : position + record.size - 20]) & 0x7FFFFFFF
        position += record.size
    assert any("__CRC32#" in r["properties"] for r in manifest["records"]) == manifest["name"].startswith("crc-")


def test_a_blank_is_told_apart() -> None:
    blank = (188).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True) + bytes(180)
    assert check_record(blank, 0, len(blank), check_crc=True) == BLANK
    assert check_record(blank[:8], 0, 8, check_crc=True) == BLANK
