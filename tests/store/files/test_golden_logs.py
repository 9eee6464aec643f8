"""Every variety of record that RocketMQ writes, and the blanks at its files' ends, written by our log: the same bytes.

A log of RocketMQ's is taken apart and appended again; what comes out is compared file by file.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.message.crc import CRC_PROPERTY_LENGTH, decode_crc_property
from ledgermq.message.draft import RecordDraft
from ledgermq.message.hosts import encode_host
from ledgermq.message.record import BLANK, Record, check_record, decode_record
from store.directory.checkpoint import StoreCheckpoint
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.placing import Placer
from tests.store.support import GOLDEN, Outcomes, golden

STORES = ["plain", "blank", "crc", "lmq", "batchcq", "cqext"]
ROLLED_WHOLE = 12388
"""Where RocketMQ rolled for a batch that would not fit as a whole; here a batch rolls where its first record must."""


def golden_files(store: str) -> dict[str, bytes]:
    tree = GOLDEN / "records" / "stores" / store
    table = json.loads((tree / "FILES.json").read_text())["files"]
    names = sorted(name for name in table if name.startswith("commitlog/"))
    return {name.removeprefix("commitlog/"): golden.read_file(tree, name, table) for name in names}


def records_of(files: dict[str, bytes]) -> Iterator[Record]:
    for data in files.values():
        position = 0
        while position < len(data) and any(data[position : position + 8]):
            size = check_record(data, position, len(data), check_crc=True)
            if size == BLANK:
                break
            yield decode_record(data, position)
            position += size


def draft_of(record: Record, *, without_crc: bool) -> RecordDraft:
    draft = RecordDraft()
    draft.topic, draft.queue_id, draft.flag = record.topic.encode(), record.queue_id, record.flag
    draft.sys_flag, draft.queue_offset = record.sys_flag, record.queue_offset
    draft.born_timestamp, draft.born_host = record.born_timestamp, encode_host(record.born_host)
    draft.reconsume_times = record.reconsume_times
    draft.prepared_transaction_offset = record.prepared_transaction_offset
    draft.body, draft.properties, draft.tags_code, draft.size = record.body, record.properties, 0, record.size
    if without_crc and decode_crc_property(record.properties) is not None:
        draft.properties = record.properties[:-CRC_PROPERTY_LENGTH]
        draft.size -= CRC_PROPERTY_LENGTH
    return draft


def make_log(directory: Path, file_size: int, *, stamps_crc: bool = False) -> CommitLog:
    config = CommitLogConfig(directory=directory, store_host=bytes(8), file_size_bytes=file_size, stamps_crc=stamps_crc)
    log = CommitLog(config, asyncio.get_running_loop())
    log.recover(StoreCheckpoint(), clean=True)
    log.start()
    return log


def append(log: CommitLog, record: Record, *, stamps_crc: bool = False) -> None:
    """Append one record as the broker that wrote it did: at its time, under its address."""
    log.local._clock = lambda: record.store_timestamp
    log.local.last_timestamp = 0
    log.local._placer = Placer(log._queue, encode_host(record.store_host), stamps_crc=stamps_crc)
    log.append([draft_of(record, without_crc=stamps_crc)], Outcomes())


@pytest.mark.parametrize("store", STORES)
async def test_rocketmq_s_log_is_written_again_byte_for_byte(tmp_path: Path, store: str) -> None:
    files = golden_files(store)
    log = make_log(tmp_path, len(next(iter(files.values()))))
    written = 0
    for record in records_of(files):
        if store == "blank" and record.physical_offset >= ROLLED_WHOLE and written != record.physical_offset:
            break
        append(log, record)
        written = log.max_offset
        assert written == record.physical_offset + record.size
    await log.close()
    for name, data in files.items():
        end = min(written - int(name), len(data))
        if end > 0:
            ours = (tmp_path / name).read_bytes()
            assert ours[:end] == data[:end], name
            assert not any(ours[end:])


async def test_the_sum_over_the_record_is_the_one_that_rocketmq_appends(tmp_path: Path) -> None:
    files = golden_files("crc")
    log = make_log(tmp_path, 65536, stamps_crc=True)
    for record in records_of(files):
        append(log, record, stamps_crc=True)
    await log.close()
    for name, data in files.items():
        assert (tmp_path / name).read_bytes() == data


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"", b""),
        (b"A\x011", b"A\x011\x02"),
        (b"__CRC32#\x010000000000\x02A\x011\x02", b"A\x011\x02"),
        (b"A\x011\x02__CRC32#\x01xx", b"A\x011\x02"),
    ],
)
async def test_a_sum_that_the_sender_gave_is_replaced(tmp_path: Path, sent: bytes, kept: bytes) -> None:
    log = make_log(tmp_path, 65536, stamps_crc=True)
    record = next(records_of(golden_files("plain")))
    draft = draft_of(record, without_crc=False)
    draft.size += len(sent) - len(draft.properties)
    draft.properties = sent
    log.append([draft], Outcomes())
    log.append([draft], Outcomes())  # as a sender does whose first try was refused
    path = tmp_path / "00000000000000000000"
    found = decode_record(path.read_bytes())
    assert found.properties[:-CRC_PROPERTY_LENGTH] == kept
    assert decode_crc_property(found.properties) is not None
    again = decode_record(path.read_bytes(), found.size)
    assert again.properties[:-CRC_PROPERTY_LENGTH] == kept
    await log.close()


async def test_properties_that_would_become_too_long_get_no_sum(tmp_path: Path) -> None:
    log = make_log(tmp_path, 1 << 17, stamps_crc=True)
    record = next(records_of(golden_files("plain")))
    draft = draft_of(record, without_crc=False)
    properties = b"A\x01" + b"x" * (32767 - 10) + b"\x02"
    draft.size += len(properties) - len(draft.properties)
    draft.properties = properties
    log.append([draft], Outcomes())
    found = decode_record((tmp_path / "00000000000000000000").read_bytes())
    assert found.properties == properties
    await log.close()
