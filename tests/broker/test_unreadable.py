"""A place of the disk that cannot be read: who asks for it hears file and offset, and everything else goes on."""

import pytest

from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from store.errors import DiskReadError
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from tests.broker.conftest import Desk, MemoryClient, make_topic, pull_fields, send


async def test_a_pull_of_what_the_disk_cannot_read_names_file_and_place(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    for number in range(3):
        await send(client, b"m%d" % number)
    bad = next(record for record in desk.records() if record.body == b"m1").physical_offset
    log = desk.store.log
    assert isinstance(log, CommitLog)
    log._queue.release_idle()  # what was readable is asked for again

    def ensure(file: MappedFile, start: int, end: int) -> None:
        if start <= bad < end:
            raise DiskReadError(file.path, bad, "[Errno 5] Input/output error")

    monkeypatch.setattr(MappedFile, "ensure_readable", ensure)
    first = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=0))
    assert [record.body for record in decode_records(first.body)] == [b"m0"]
    assert first.ext["nextBeginOffset"] == "1"
    second = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=1))
    assert second.code == 14
    assert second.remark is not None
    assert f"/commitlog/00000000000000000000: cannot be read at byte {bad}: [Errno 5]" in second.remark
    third = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=2))
    assert [record.body for record in decode_records(third.body)] == [b"m2"]
    assert (await send(client, b"m3")).code == 0


async def test_times_of_messages_are_told_beside_one_that_cannot_be_read(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a group that waits at it would have no statistics, and the page of metrics would fail."""
    await make_topic(client)
    for number in range(3):
        await send(client, b"m%d" % number)
    records = {record.body: record for record in desk.records()}
    bad, last = records[b"m1"], records[b"m2"]
    log, read = desk.store.log, desk.store.log.read

    def unreadable(physical_offset: int, size_bytes: int) -> memoryview:
        if physical_offset == bad.physical_offset:
            raise DiskReadError(log.directory, bad.physical_offset, "damaged")
        return read(physical_offset, size_bytes)

    monkeypatch.setattr(log, "read", unreadable)
    reader, queue = desk.store.reader, desk.store.queues.get(last.topic, last.queue_id)
    times = [reader.store_time(queue, offset) for offset in range(3)]
    assert times == [records[b"m0"].store_timestamp, -1, last.store_timestamp]
    assert reader.offset_by_time(queue, last.store_timestamp + 1) == 3
