"""Queues of each kind beside lists: whatever is done to them, they hold and find what the list does."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue, QueueEntry, Unit
from store.queues.ext_queue import ExtQueue, decode_extension, extension_position
from store.queues.held_units import HeldUnits
from store.queues.queue_mapping import MappedQueues
from tests.limits import IS_WHOLE
from tests.store.queues.extensions import HEAD, JavaExtension, encode_extension, extension_address
from tests.store.support import fast_directory

FILE_UNITS = 7
EXTENSION_FILE_BYTES = 90
RECORD = 100
"""Bytes of each record of the log that the queues are of."""


def starts_before(physical_offset: int, unit: Unit) -> bool:
    return unit[0] < physical_offset


@dataclass
class Model:
    """What a queue should hold: its entries in order, and the first offset."""

    entries: list[QueueEntry] = field(default_factory=list)
    start: int = 0
    log_end: int = 0

    @property
    def end(self) -> int:
        return self.entries[-1].queue_offset + self.entries[-1].messages if self.entries else self.start

    def holding(self, offset: int) -> QueueEntry | None:
        return next((e for e in self.entries if e.queue_offset <= offset < e.queue_offset + e.messages), None)


class QueueMachine(RuleBasedStateMachine):
    """A queue and its model."""

    kind: ClassVar[str] = "plain"
    messages_max: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self._context = fast_directory()
        self.root = self._context.__enter__()
        self.model = Model()
        self.queue = self.make()

    def make(self) -> ConsumeQueue:
        folder = self.root / "T" / "0"
        if self.kind == "batch":
            return BatchQueue("T", 0, folder, FILE_UNITS)
        if self.kind == "ext":
            return ExtQueue("T", 0, folder, FILE_UNITS, self.root / "ext" / "T" / "0", EXTENSION_FILE_BYTES)
        memory = HeldUnits(MappedQueues(9), 0) if self.kind == "held" else None
        return ConsumeQueue("T", 0, folder, FILE_UNITS, memory=memory)

    def teardown(self) -> None:
        self.queue.close()
        self._context.__exit__(None, None, None)

    @rule(messages=st.lists(st.integers(1, 4), min_size=1, max_size=9), code=st.integers(-(1 << 31), (1 << 31) - 1))
    def append(self, messages: list[int], code: int) -> None:
        for count in messages:
            model = self.model
            entry = QueueEntry(model.log_end, RECORD, code, model.end, model.log_end + 7, min(count, self.messages_max))
            model.log_end += RECORD
            self.queue.reserve(entry.queue_offset + entry.messages)
            self.queue.put_entry(entry)
            model.entries.append(entry)

    @rule(back=st.integers(1, 12))
    def dispatch_again(self, back: int) -> None:
        for entry in self.model.entries[-back:]:
            self.queue.put_entry(entry)

    @precondition(lambda self: self.model.log_end > 0)
    @rule(part=st.floats(0, 1), scan=st.booleans())
    def recover(self, part: float, scan: bool) -> None:
        first = self.model.entries[0].physical_offset if self.model.entries else self.model.log_end
        end = first + int((self.model.log_end - first) * part)
        self.reopen(end, scan=scan)
        self.model.entries = [entry for entry in self.model.entries if entry.physical_offset + RECORD <= end]
        if not self.model.entries:  # nothing tells where the queue was
            self.queue.restart(0)
            self.model.start = 0

    @rule(scan=st.booleans())
    def open_again(self, scan: bool) -> None:
        if self.model.entries:
            self.reopen(self.model.log_end, scan=scan)

    def reopen(self, end: int, *, scan: bool) -> None:
        first = self.model.entries[0].physical_offset if self.model.entries else 0
        self.queue.write_held()
        self.queue.close()
        self.queue = self.make()
        if (self.root / "T" / "0").is_dir():
            self.queue.load()
        self.queue.recover(end, scan=scan)
        self.queue.correct_min_offset(first)

    @precondition(lambda self: bool(self.model.entries))
    @rule(part=st.floats(0, 1))
    def drop_the_logs_beginning(self, part: float) -> None:
        entries = self.model.entries
        kept = entries[int(len(entries) * part) :]
        end = self.model.end
        self.queue.correct_min_offset(kept[0].physical_offset if kept else self.model.log_end)
        for file in self.queue.take_expired():
            file.delete()
        self.model.entries, self.model.start = kept, kept[0].queue_offset if kept else end

    @rule(offset=st.integers(0, 40))
    def restart(self, offset: int) -> None:
        self.queue.restart(offset)
        self.model.entries, self.model.start = [], offset

    @rule()
    def unmap(self) -> None:
        self.queue.close()

    @rule()
    def sync(self) -> None:
        self.queue.write_held()
        for file in self.queue.take_unflushed():
            file.sync()

    @invariant()
    def bounds_are_those_of_the_model(self) -> None:
        first = self.model.entries[0].queue_offset if self.model.entries else self.model.start
        assert (self.queue.min_offset, self.queue.max_offset) == (first, self.model.end)

    @invariant()
    def each_offset_leads_to_its_record(self) -> None:
        for offset in range(self.queue.min_offset - 1, self.queue.max_offset + 1):
            entry, unit = self.model.holding(offset), self.queue.unit(offset)
            if entry is None:
                assert unit is None
            else:
                assert unit is not None
                assert (*unit[:2], self.queue.tags_code(unit)) == entry[:3]

    @invariant()
    def records_come_in_order_and_are_found_by_halving(self) -> None:
        entries = self.model.entries
        found = [(start, end, unit[0]) for start, end, unit in self.queue.records_from(self.queue.min_offset, 1000)]
        assert found == [(e.queue_offset, e.queue_offset + e.messages, e.physical_offset) for e in entries]
        for wanted in {e.physical_offset + 1 for e in entries[:3] + entries[-2:]}:
            expected = next((e.queue_offset for e in entries if e.physical_offset >= wanted), self.model.end)
            assert self.queue.bisect(partial(starts_before, wanted)) == expected

    @invariant()
    def no_file_is_kept_for_nothing(self) -> None:
        files = sorted(path.name for path in (self.root / "T" / "0").glob("*"))
        assert len(files) <= len(self.model.entries) // FILE_UNITS + 3


class HeldMachine(QueueMachine):
    """Units are in memory for a while."""

    kind = "held"


class BatchMachine(QueueMachine):
    kind = "batch"
    messages_max = 4


class ExtMachine(QueueMachine):
    """Before the node starts, RocketMQ may have put messages whose units have extensions."""

    kind = "ext"

    @initialize(codes=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=30), map_bytes=st.integers(0, 9))
    def java_has_put(self, codes: list[int], map_bytes: int) -> None:
        extension = JavaExtension(self.root / "ext" / "T" / "0", EXTENSION_FILE_BYTES)
        model = self.model
        for code in codes:
            entry = QueueEntry(model.log_end, RECORD, code, model.end, model.log_end + 7, 1)
            model.log_end += RECORD
            address = extension.put(code, entry.store_timestamp, bytes(map_bytes))
            self.queue.reserve(entry.queue_offset + 1)
            self.queue.put(entry.physical_offset, RECORD, address, entry.queue_offset)
            model.entries.append(entry)
        if codes:
            self.reopen(model.log_end, scan=True)


for machine in (QueueMachine, HeldMachine, BatchMachine, ExtMachine):
    machine.TestCase.settings = settings(max_examples=40 if IS_WHOLE else 15, stateful_step_count=25, deadline=None)
TestPlainQueue = QueueMachine.TestCase
TestHeldQueue = HeldMachine.TestCase
TestBatchQueue = BatchMachine.TestCase
TestExtQueue = ExtMachine.TestCase


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 62), st.binary(max_size=300), st.binary(max_size=30))
def test_an_extension_decodes_to_what_was_encoded(code: int, timestamp: int, bit_map: bytes, behind: bytes) -> None:
    encoded = encode_extension(code, timestamp, bit_map)
    assert decode_extension(memoryview(encoded + behind)) == (len(encoded), code, timestamp)
    assert all(decode_extension(memoryview(encoded)[:cut]) is None for cut in range(len(encoded)))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_extension_are_taken_for_none(garbage: bytes) -> None:
    unit = decode_extension(memoryview(garbage))
    if unit is not None:
        bit_map = garbage[HEAD.size : unit.size]
        assert encode_extension(unit.tags_code, unit.store_timestamp, bit_map) == garbage[: unit.size]


@given(st.integers(0, 1 << 62), st.integers(-(1 << 31), (1 << 31) - 1))
def test_no_hash_of_tags_is_an_address(position: int, code: int) -> None:
    assert extension_position(extension_address(position)) == position
    assert extension_position(code) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(70, 200))
def test_extensions_of_any_length_lie_in_files_of_one_size(maps: list[bytes], file_size: int) -> None:
    with fast_directory() as root:
        java = JavaExtension(root / "ext", file_size)
        addresses = [java.put(n, n, bit_map) for n, bit_map in enumerate(maps)]
        queue = ExtQueue("T", 0, root / "T" / "0", FILE_UNITS, root / "ext", file_size)
        queue.load()
        found = [queue.extension((0, RECORD, address)) for address in addresses]
        assert found == [(HEAD.size + len(bit_map), n, n) for n, bit_map in enumerate(maps)]
        queue.close()
