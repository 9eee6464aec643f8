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
