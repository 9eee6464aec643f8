"""A read for a bulk pull: records that follow each other in the log share a view, and all else is as without."""

from pathlib import Path

import pytest

from store.errors import RecordUnavailableError
from store.queues.queue_reader import GetResult
from tests.store.support import open_classic, put_all, queued


def told(result: GetResult) -> tuple[object, ...]:
    return b"".join(result.records), result.status, result.next_offset, result.count, result.size_bytes


@pytest.mark.parametrize("first_kept", [0, 700, 2900, 1 << 40])
async def test_joined_records_are_the_same_bytes(
    tmp_path: Path, first_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_classic(tmp_path, queue_file_size=2000)
    queue, other = (opened.store.queues.get("T", number) for number in range(2))
    drafts = [queued(other if number % 7 == 6 else queue, b"x" * (number % 5)) for number in range(70)]
    for draft in drafts:
        await put_all(opened, [draft])
    get, open_reader = opened.store.reader.get, opened.store.log.reader
    views = len(get(queue, 0, 64, 1 << 20, joins=True).records)
    assert views == 10 + 1, "one for each run, and where a file of 4 KiB ends"

    def reader_of_the_rest() -> object:
        read = open_reader()

        def checked(offset: int, size: int) -> memoryview:
            if offset < first_kept:
                raise RecordUnavailableError(offset, size, first_kept, 1 << 40)
            return read(offset, size)

        return checked

    monkeypatch.setattr(opened.store.log, "reader", reader_of_the_rest)
    for start in (0, 1, 30, 59):
        for count in (1, 5, 32, 64):
            for size in (1, 200, 1000, 1 << 20):
                limits = (queue, start, count, size)
                assert told(get(*limits, joins=True)) == told(get(*limits)), limits
    await opened.close()
