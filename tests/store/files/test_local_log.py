"""The bytes of a log: copied from another node's, cut, and found again after a restart."""

import asyncio
import random
from pathlib import Path
from unittest import mock

import pytest

from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError
from store.files.mapped_file import MappedFile
from store.log.commit_log_config import CommitLogConfig
from store.log.local_log import LocalLog
from tests.store.support import HOST, make_draft

SIZE = 4096


def open_log(directory: Path, *, clean: bool = True) -> LocalLog:
    config = CommitLogConfig(directory=directory, store_host=HOST, file_size_bytes=SIZE)
    log = LocalLog(config, asyncio.get_running_loop(), clock=lambda: 1_700_000_000_000)
    log.recover(StoreCheckpoint(), clean=clean)
    log.start(on_committed=lambda _: None, on_failed=lambda _: None, on_flushed=None)
    return log


async def close(log: LocalLog) -> None:
    await log.flush_and_stop()
    await log.close_files()


def contents(log: LocalLog) -> bytes:
    """Everything written, blanks at the files' ends included."""
    return b"".join(bytes(file.view[: file.write_position]) for file in log.queue.files)


def fill(log: LocalLog, count: int, seed: int) -> list[int]:
    """Place records one by one; the end of each."""
    dice = random.Random(seed)
    return [log.place([make_draft(dice.randbytes(dice.randint(1, 900)))]) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
async def test_bytes_copied_in_any_pieces_are_the_same_log(tmp_path: Path, seed: int) -> None:
    source, copy = open_log(tmp_path / "source"), open_log(tmp_path / "copy")
    fill(source, 40, seed)
    data, dice, position = memoryview(contents(source)), random.Random(seed), 0
    assert len(source.queue.files) >= 4
    while position < len(data):
        piece = data[position : position + dice.choice((1, 7, 100, SIZE, 3 * SIZE))]
        position += len(piece)
        assert copy.append_bytes(piece) == position
    assert contents(copy) == data
    end = source.queue.max_offset
    assert [(at, bytes(record)) for at, record in copy.walk(0, end)] == [
        (at, bytes(record)) for at, record in source.walk(0, end)
    ]
    await close(source)
    await close(copy)
    again = open_log(tmp_path / "copy")
    assert again.queue.max_offset == end
    assert again.last_timestamp == 1_700_000_000_000
    await close(again)


async def test_bytes_that_fail_to_be_written_leave_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 3, seed=1)
    before = contents(log)
    write = MappedFile.write

    def fails_in_the_second_file(file: MappedFile, data: memoryview) -> None:
        if file.start_offset:
            raise DiskFailedError(file.path, "no more")
        write(file, data)

    monkeypatch.setattr(MappedFile, "write", fails_in_the_second_file)
    with pytest.raises(DiskFailedError):
        log.append_bytes(memoryview(bytes(range(256)) * 20))
    monkeypatch.undo()
    assert contents(log) == before
    await close(log)


@pytest.mark.parametrize("kept", [0, 5, 20])
async def test_a_cut_is_durable_before_anything_is_written_behind_it(tmp_path: Path, kept: int) -> None:
    log = open_log(tmp_path)
    ends = [0, *fill(log, 40, seed=2)]
    kept_bytes = contents(log)[: ends[kept]]
    with mock.patch.object(MappedFile, "sync", autospec=True, side_effect=MappedFile.sync) as sync:
        log.cut(ends[kept])
    assert [call.args[0].start_offset for call in sync.call_args_list] == [ends[kept] // SIZE * SIZE]
    assert (log.queue.max_offset, contents(log)) == (ends[kept], kept_bytes)
    file = log.queue.files[-1]
    assert not any(file.view[file.write_position :])
    end = log.place([make_draft(b"after")])
    await close(log)
    again = open_log(tmp_path, clean=False)
    assert again.queue.max_offset == end
    assert contents(again)[: ends[kept]] == kept_bytes
    await close(again)
