"""What slaves are sent from memory is what the file has."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from ledgermq.remoting.refusal import Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFullError
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from tests.store.log.test_commit_log import SIZE, make_log, sizes
from tests.store.support import Outcomes, eventually


async def test_records_that_end_with_a_crc_are_sent_with_it(tmp_path: Path) -> None:
    config = dataclasses.replace(make_log(tmp_path / "other").config, directory=tmp_path / "log", stamps_crc=True)
    log = CommitLog(config, asyncio.get_running_loop())
    log.recover(StoreCheckpoint(), clean=True)
    log.start()
    log.append(sizes(200), Outcomes())
    queue = log.local.queue
    assert queue.fresh_slice(0, queue.max_offset) == queue.slice(0, queue.max_offset)
    await log.close()


async def test_what_crosses_the_end_of_the_batch_placed_last_is_read_whole(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append(sizes(200, 300), Outcomes())
    log.receive(memoryview(bytes(range(100))))
    queue = log.local.queue
    assert queue.fresh_slice(450, 100) == queue.slice(450, 100)
    await log.close()


async def test_a_batch_of_a_log_that_began_anew_is_not_sent(tmp_path: Path) -> None:
    log, answers = make_log(tmp_path), Outcomes()
    log.append(sizes(500), answers)
    await eventually(lambda: bool(answers.all))
    log.restart(0)
    log.receive(memoryview(bytes(500)))
    assert log.local.queue.fresh_slice(0, 500) == bytes(500)
    await log.close()


async def test_a_batch_that_was_not_written_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path)
    log.append(sizes(200), Outcomes())

    def refuse(file: MappedFile, data: memoryview) -> None:
        raise DiskFullError(file.path, len(data))

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", refuse)
        with pytest.raises(Refusal):
            log.append(sizes(300), Outcomes())
    log.receive(memoryview(bytes(300)))
    assert log.local.queue.fresh_slice(200, 300) == bytes(300)
    await log.close()


async def test_the_batch_that_rolled_is_sent_as_it_lies_in_its_files(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.append(sizes(SIZE - 500, 300, 400, 200), Outcomes())
    queue = log.local.queue
    for start in range(0, queue.max_offset - 50, 50):
        if start // SIZE == (start + 49) // SIZE:
            assert queue.fresh_slice(start, 50) == queue.slice(start, 50)
    await log.close()
