"""Recovery of queues over a log in which something cannot be read."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ledgermq.message.errors import CorruptRecordError
from store.errors import StoreFormatError
from store.queues.dispatch import unit_fields
from store.queues.queue_kinds import QueueKinds
from store.queues.queue_table import QueueTable
from store.recovery.batch_fields import Dispatch, Part, RecordSource
from store.recovery.queue_recovery import recover_queues
from tests.store.support import MemoryLog, make_draft, queue_table


class Rotting(RecordSource):
    """A log with an entry that will be fetched from another node: until then it ends there.

    Args:
        goes_on: where a recovery goes on; None: at the entry, as a log does.
    """

    def __init__(self, log: MemoryLog, rotten: int, goes_on: int | None = None) -> None:
        self._log, self._rotten, self._goes_on = log, rotten, goes_on
        self._asked = 0

    def batches(self, start: int, end: int) -> Iterator[Part]:
        yield from ()
        raise CorruptRecordError(self._rotten, "its magic has changed")

    def dispatches(self, start: int, end: int) -> Iterator[Dispatch]:
        for offset, record in self._log.walk(start, end):
            if offset >= self._rotten:
                raise CorruptRecordError(self._rotten, "its magic has changed")
            yield offset, True, unit_fields(offset, record)

    def goes_on_at(self, start: int) -> int:
        self._asked += 1
        assert self._asked < 10, "the recovery goes round in circles"
        if self._goes_on is None:
            self._log.confirm_offset = self._rotten
        return self._rotten if self._goes_on is None else self._goes_on


def batch_topics(topic: str) -> Mapping[str, str]:
    return {"queue.type": "BatchCQ"} if topic.startswith("Batch") else {}


def log_of(*topics: str) -> tuple[MemoryLog, list[int]]:
    """A log with a message for each topic, all confirmed; and their physical offsets."""
    log = MemoryLog()
    numbers = dict.fromkeys(topics, 0)
    for topic in topics:
        log.receive([make_draft(topic=topic, queue_offset=numbers[topic])])
        numbers[topic] += 1
    log.confirm()
    return log, [offset for offset, _ in log.walk(0, log.max_offset)]


async def test_queues_of_every_kind_end_at_a_rotten_entry_though_their_files_have_more(tmp_path: Path) -> None:
    log, places = log_of(*["Batch", "Plain"] * 4)
    queues = QueueTable(tmp_path / "consumequeue", 200, QueueKinds(topic_attributes=batch_topics))
    recover_queues(log, queues, None)
    assert [queue.max_offset for queue in queues] == [4, 4]
    found = recover_queues(log, queues, None, batches=Rotting(log, places[5]))
    assert found.dispatched_offset == places[5]
    assert {queue.topic: (queue.max_offset, queue.next_offset) for queue in queues} == {
        "Batch": (3, 3),
        "Plain": (2, 2),
    }
    queues.close()


async def test_a_start_that_finds_no_way_on_behind_a_rotten_entry_says_so(tmp_path: Path) -> None:
    log, places = log_of(*["Plain"] * 3)
    queues = queue_table(tmp_path)
    with pytest.raises(StoreFormatError, match=r"cannot be recovered: .*its magic has changed"):
        recover_queues(log, queues, None, batches=Rotting(log, places[1], goes_on=0))
    queues.close()
