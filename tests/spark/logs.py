"""Logs as files, made record by record, for the tests of the pipeline."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dledger.log.entry import FILLER, FILLER_MAGIC, encode_entry
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from ledgermq.message.hosts import Host
from ledgermq.message.layout import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, needs_v2, record_size
from ledgermq.message.record import Record, decode_record, encode_record

V4, V6 = Host("127.0.0.1", 10911), Host("::1", 10911)


def record(
    number: int = 0,
    *,
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    properties: bytes = b"UNIQ_KEY\x01U\x02TAGS\x01a\x02KEYS\x01k1 k2",
    born: Host = V4,
    stored: Host = V4,
    sys_flag: int = 0,
) -> Record:
    """A record without a place; `number` is its queue offset."""
    sys_flag |= (BORN_HOST_V6 if born is V6 else 0) | (STORE_HOST_V6 if stored is V6 else 0)
    v2 = needs_v2(topic.encode())
    return Record(
        topic=topic,
        queue_id=queue_id,
        flag=0,
        sys_flag=sys_flag,
        queue_offset=number,
        physical_offset=0,
        born_timestamp=1_790_000_000_000 + number,
        born_host=born,
        store_timestamp=1_790_000_000_500 + number,
        store_host=stored,
        reconsume_times=number % 3,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        body_crc=crc32(body) & CRC_MASK,
        size=record_size(len(body), len(topic.encode()), len(properties), sys_flag, v2),
        magic=MAGIC_V2 if v2 else MAGIC_V1,
    )


def write_log(root: Path, records: Sequence[Record], *, file_size: int = 4096, raft: bool = False) -> list[Record]:
    """Write a store directory whose log holds these records; returns them with their places."""
    folder = root / "dledger-n0" / "data" if raft else root / "commitlog"
    folder.mkdir(parents=True)
    placed: list[Record] = []
    start, data = 0, bytearray()

    def end_file() -> None:
        nonlocal start, data
        left = file_size - len(data)
        data += FILLER.pack(FILLER_MAGIC, left) if raft else struct.pack(">ii", left, BLANK_MAGIC)
        (folder / f"{start:020d}").write_bytes(data.ljust(file_size, b"\0"))
        start, data = start + file_size, bytearray()

    for index, found in enumerate(records):
        header = 48 if raft else 0
        if len(data) + header + found.size + 8 > file_size:
            end_file()
        at = start + len(data)
        found = replace(found, physical_offset=at + header)
        encoded = encode_record(found)
        assert decode_record(encoded, check_crc=True) == found
        data += encode_entry(index, 1, at, encoded) if raft else encoded
        placed.append(found)
    (folder / f"{start:020d}").write_bytes(data.ljust(file_size, b"\0"))
    return placed
