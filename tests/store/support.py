"""What the store's tests share: drafts, an in-memory log, conditions with a limit."""

import asyncio
import contextlib
import importlib.util
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ledgermq.message.draft import RecordDraft
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import BLANK, check_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import RecordUnavailableError
from store.files.log_span import LogSpan, Read
from store.log.commit_log import CommitLogConfig
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.message_store import MessageStore
from store.opening import OpenStore, open_classic_store
from store.queues.consume_queue import ConsumeQueue
from store.queues.held_units import MAPPED_MIN
from store.queues.queue_kinds import PLAIN_ONLY, QueueKinds
from store.queues.queue_table import QueueTable
from store.recovery.batch_fields import RecordSource
from store.replicated_log import (
    AppendReceipt,
    DiskBacklog,
    Done,
    Generation,
    LogListener,
    LogRole,
    LogState,
    Readiness,
    Replica,
)
from store.store_config import StoreConfig
from telemetry.families import Family
from tests.limits import WAIT_S

GOLDEN = Path(__file__).parents[1] / "golden"


def _load_golden() -> Any:
    """`tests/golden/golden.py`: a folder of fixtures, not a package."""
    spec = importlib.util.spec_from_file_location("golden", GOLDEN / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _load_golden()
HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
LEADING = LogState(LogRole.LEADER, 1, None, None)
FOLLOWING = LogState(LogRole.FOLLOWER, 1, None, Refusal(Cause.NOT_LEADER, "this node follows"))


@contextlib.contextmanager
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: properties open a store hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def fill(
    draft: RecordDraft,
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    tags: str | None = None,
    sys_flag: int = 0,
    queue_offset: int = 0,
) -> None:
    """Set all fields of a draft that the log does not set."""
    properties = encode_properties({} if tags is None else {"TAGS": tags})
    code, born = 0 if tags is None else tags_code(tags), (1_700_000_000_000, HOST)
    draft.fill(topic.encode(), queue_id, body, properties, born=born, sys_flag=sys_flag, tags=code)
    draft.queue_offset = queue_offset


def make_draft(body: bytes = b"body", topic: str = "T", queue_id: int = 0, *, queue_offset: int = 0) -> RecordDraft:
    draft = RecordDraft()
    fill(draft, topic, queue_id, body, queue_offset=queue_offset)
    return draft


def queued(queue: ConsumeQueue, body: bytes = b"body", *, tags: str | None = None, sys_flag: int = 0) -> QueuedDraft:
    draft = QueuedDraft()
    draft.messages = 1
    draft.tally = None
    fill(draft, queue.topic, queue.queue_id, body, tags=tags, sys_flag=sys_flag)
    draft.queue = queue
    return draft


class Outcomes:
    """A `done` that records its arguments."""

    def __init__(self) -> None:
        self.all: list[AppendReceipt | Refusal] = []

    def __call__(self, outcome: AppendReceipt | Refusal) -> None:
        self.all.append(outcome)

    @property
    def causes(self) -> list[Cause | None]:
        return [outcome.cause if isinstance(outcome, Refusal) else None for outcome in self.all]


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds.

    Raises:
        AssertionError: not within the limit.
    """
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.001)


async def open_classic(
    root: Path,
    *,
    flush_mode: FlushMode = FlushMode.ASYNC,
    flush_interval_ms: int = 500,
    file_size: int = 4096,
    queue_file_size: int = 200,
    checkpoint_interval_ms: int = 3_600_000,
    untrusted_walk_bytes: int = 1 << 30,
    kinds: QueueKinds = PLAIN_ONLY,
    hold_from: int = MAPPED_MIN,
    prepare: Callable[[MessageStore], None] | None = None,
) -> OpenStore:
    """A classic store with small files."""
    return await open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=queue_file_size,
            checkpoint_interval_ms=checkpoint_interval_ms,
            untrusted_walk_bytes=untrusted_walk_bytes,
            kinds=kinds,
            hold_from=hold_from,
        ),
        CommitLogConfig(
            directory=root / "commitlog",
            store_host=HOST,
            file_size_bytes=file_size,
            flush_mode=flush_mode,
            flush_interval_ms=flush_interval_ms,
        ),
        prepare=prepare,
    )


async def put_all(store: OpenStore, drafts: Sequence[QueuedDraft]) -> AppendReceipt:
    """Put one batch and wait for its receipt."""
    outcomes = Outcomes()
    store.store.put(drafts, outcomes)
    await eventually(lambda: bool(outcomes.all))
    (outcome,) = outcomes.all
    assert isinstance(outcome, AppendReceipt), outcome
    return outcome


def bodies_of(store: OpenStore, queue: ConsumeQueue) -> list[bytes]:
    """All bodies of a queue, in order, read as a consumer would."""
    found: list[bytes] = []
    offset = queue.min_offset
    while True:
        result = store.store.reader.get(queue, offset, 32, 1 << 20)
        if not result.records:
            return found
        found += [body_of(record) for record in result.records]
        offset = result.next_offset


def body_of(record: memoryview) -> bytes:
    (length,) = struct.unpack_from(">i", record, 84)
    return bytes(record[88 : 88 + length])


class MemoryLog:
    """A `ReplicatedLog` in memory whose role and confirm offset the test moves; entries have a head of 48 bytes."""

    HEAD = 48

    def __init__(self, state: LogState = LEADING) -> None:
        self.state = state
        self.min_offset = 0
        self.confirm_offset = 0
        self.refuse_next: Exception | None = None
        self.dones: list[Done] = []
        self._data = bytearray()
        self._listeners: list[LogListener] = []

    @property
    def directory(self) -> Path:
        return Path("/")

    @property
    def max_offset(self) -> int:
        return len(self._data)

    @property
    def flushed_offset(self) -> int:
        return self.confirm_offset

    def add_listener(self, listener: LogListener) -> None:
        self._listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        if self.refuse_next is not None:
            error, self.refuse_next = self.refuse_next, None
            raise error
        if self.state.refusal is not None:
            raise self.state.refusal
        self.receive(drafts)
        self.dones.append(done)

    def receive(self, drafts: Sequence[RecordDraft]) -> None:
        """Place drafts as a leader's append does, or as bytes that came from one."""
        for draft in drafts:
            start = len(self._data) + self.HEAD
            draft.physical_offset = start
            draft.store_timestamp = 1_700_000_000_000 + start
            self._data += bytes(self.HEAD) + b"".join(draft.pieces(HOST))

    def confirm(self, offset: int | None = None) -> None:
        self.confirm_offset = self.max_offset if offset is None else offset
        for listener in self._listeners:
            listener.on_confirmed(self.confirm_offset)

    def change_role(self, state: LogState) -> None:
        self.state = state
        for listener in self._listeners:
            listener.on_role_change(state)

    def truncate(self, offset: int) -> None:
        self._data = self._data[:offset]
        for listener in self._listeners:
            listener.on_truncated(offset)

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        if not self.min_offset <= physical_offset <= self.confirm_offset - size_bytes:
            raise RecordUnavailableError(physical_offset, size_bytes, self.min_offset, self.confirm_offset)
        return memoryview(bytes(self._data))[physical_offset : physical_offset + size_bytes]

    def reader(self) -> Read:
        return self.read

    def span(self, physical_offset: int) -> LogSpan | None:
        return None

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        view = memoryview(bytes(self._data))
        position = start_offset
        while position < end_offset:
            if view[position : position + 4] == bytes(4):
                position += self.HEAD
            size = check_record(view, position, len(view), check_crc=False)
            assert size != BLANK
            yield position, view[position : position + size]
            position += size

    def batches(self) -> RecordSource | None:
        return None

    def sealed_files(self) -> list[tuple[Path, int]]:
        return []

    def trim(self, before: int) -> int:
        self.min_offset = max(self.min_offset, before)
        return self.min_offset

    def transfer(self, target: str | None) -> str:
        raise Refusal(Cause.NOT_SUPPORTED, "no other node has this log")

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        pass

    def backlog(self) -> DiskBacklog:
        return DiskBacklog(0, self.max_offset - self.confirm_offset, None)

    def readiness(self) -> Readiness:
        return Readiness(True, "in memory")

    def generations(self) -> list[Generation]:
        return []

    def replicas(self) -> list[Replica]:
        return []

    def metrics(self) -> Iterator[Family]:
        return iter(())

    async def close(self) -> None:
        pass


class Recorder:
    """A `StoreListener` that records its calls, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        self.events.append(("dispatched", {(queue.topic, queue.queue_id) for queue in queues}))

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        self.events.append(("state", (physical_offset, body_of(record))))

    def on_cut(self, offset: int) -> None:
        self.events.append(("cut", offset))

    def on_role_change(self, state: LogState) -> None:
        self.events.append(("role", state.writable))

    def of(self, kind: str) -> list[object]:
        return [value for name, value in self.events if name == kind]


def killed_image(root: Path, copy: Path) -> Path:
    """Copy the directory as a kill of the store's process would leave it: stores into mappings are in the page cache.

    Without the trash, which a thread empties while this copies; a start removes what is left of it.
    """
    return Path(shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".trash")))


def queue_table(directory: Path, units: int = 10) -> QueueTable:
    return QueueTable(directory / "consumequeue", units * 20)
