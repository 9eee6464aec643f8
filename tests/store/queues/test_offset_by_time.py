"""The search by time beside a list: first at or after (LOWER), last at or before (UPPER), over gaps and equal times."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from store.message_reader import MessageReader
from store.queues.batch_queue import BatchQueue
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, QueueEntry
from tests.store.support import MemoryLog, fast_directory, make_draft

START = 1_700_000_000_000
Steps = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40)


def store(log: MemoryLog, time: int) -> tuple[int, int]:
    """A record stored at a time; where it is, and its size."""
    draft = make_draft()
    log.receive([draft])
    struct.pack_into(">q", log._data, draft.physical_offset + 56, time)
    log.confirm_offset = log.max_offset
    return draft.physical_offset, draft.size


@settings(max_examples=80, deadline=None)
@given(Steps, st.integers(-2, 130))
def test_both_bounds_are_those_of_a_list(steps: list[tuple[int, bool]], wanted: int) -> None:
    log, time, times = MemoryLog(), START, []
    with fast_directory() as root:
        queue = ConsumeQueue("T", 0, root / "T" / "0", 10)
        for offset, (step, is_blank) in enumerate(steps):
            time += step
            place, size = store(log, time)
            queue.put(place, BLANK_SIZE if is_blank else size, 0, offset)
            times.append(None if is_blank else time)
        reader, timestamp = MessageReader(log, ColdLimits()), START + wanted
        known = [(offset, at) for offset, at in enumerate(times) if at is not None]
        lower, upper = reader.offset_by_time(queue, timestamp), reader.offset_by_time(queue, timestamp, upper=True)
        first = next((offset for offset, at in known if at >= timestamp), len(times))
        assert all(at is None for at in times[lower:first])
        assert lower <= first
        assert all(at < timestamp for offset, at in known if offset < lower)
        behind = next((offset for offset, at in known if at > timestamp), len(times))
        assert all(at <= timestamp for offset, at in known if offset <= upper) or upper == 0
        assert upper < max(behind, 1)
        assert all(at is None for at in times[upper + 1 : behind])
        queue.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=30), st.integers(-2, 100))
def test_in_a_batch_queue_it_is_the_first_message_of_a_record(records: list[tuple[int, int]], wanted: int) -> None:
    log, time, found = MemoryLog(), START, []
    with fast_directory() as root:
        queue = BatchQueue("T", 0, root / "T" / "0", 7)
        for step, messages in records:
            time += step
            place, size = store(log, time)
            found.append((queue.max_offset, time))
            queue.put_entry(QueueEntry(place, size, 0, queue.max_offset, time, messages))
        lower = MessageReader(log, ColdLimits()).offset_by_time(queue, START + wanted)
        assert lower == next((base for base, at in found if at >= START + wanted), queue.max_offset)
        queue.close()
