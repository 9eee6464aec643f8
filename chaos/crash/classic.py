"""The classic store under crash images: its workload, and the judge of each image.

Steps of a workload: batches (with or without a sync under way), checkpoints, replaced small files, trimming, a clean
stop and start. Files are small, so that all kinds roll often.
"""

import asyncio
import contextlib
import struct
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest import mock

from chaos.crash.errors import DisagreeError, ImageRefusedError, InventedError, LostError
from chaos.crash.ledger import Appended, Cut, Durable, FoundAtStart, Item, Ledger, Replaced, Replacing, Trimming
from chaos.crash.recorder import Recorder
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import encode_properties
from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Refusal
from store.directory import boot as boot_of_machine
from store.directory.config_file import write_config
from store.errors import StoreError
from store.index.config import IndexConfig
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.opening import OpenStore, open_classic_store
from store.queues import queue_sync
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from store.queues.dispatch import unit_fields
from store.queues.held_units import MAPPED_MIN
from store.replicated_log import AppendReceipt
from store.store_config import StoreConfig

_HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
_SMALL_FILE = "topics.json"
_START_MS = 1_700_000_000_000
_HOUR_MS = 3_600_000
_KEYS_ASKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """The settings of a store, and the number of steps.

    Attributes:
        queue_files_synced_singly: most queue files that are synced one by one; more are synced with their file system.
        hold_from: as in `StoreConfig`.
    """

    flush_mode: FlushMode = FlushMode.SYNC
    file_size_bytes: int = 8192
    queue_file_size_bytes: int = 400
    body_size_max: int = 900
    long_property: int = 600
    topics: int = 2
    has_index: bool = False
    pool_count: int = 0
    batch_max: int = 5
    steps: int = 14
    queue_files_synced_singly: int = queue_sync.SINGLY_MAX
    hold_from: int = MAPPED_MIN


_boots = count()


async def open_small(root: Path, settings: ClassicSettings) -> OpenStore:
    """Open a store with small files and a clock that counts its calls, so that runs are equal; in a new boot."""
    boot = SimpleNamespace(read_text=lambda _: f"boot {next(_boots)}")
    with mock.patch.object(boot_of_machine, "_BOOT_ID", boot):
        return await _open_small(root, settings)


def _open_small(root: Path, settings: ClassicSettings) -> Awaitable[OpenStore]:
    ticks = count(_START_MS)
    return open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=settings.queue_file_size_bytes,
            checkpoint_interval_ms=_HOUR_MS,
            hold_from=settings.hold_from,
            index=IndexConfig(directory=root / "index", slot_count=10, entry_count=40, is_safe=True)
            if settings.has_index
            else None,
        ),
        CommitLogConfig(
            directory=root / "commitlog",
            store_host=_HOST,
            file_size_bytes=settings.file_size_bytes,
            flush_mode=settings.flush_mode,
            flush_interval_ms=_HOUR_MS,
            transient_pool=settings.pool_count > 0,
            pool_count=settings.pool_count,
        ),
        make_log=partial(CommitLog, clock=lambda: next(ticks)),
    )


class ClassicRun:
    """One run of the workload below `recorder.root`.

    Args:
        number: number of the first message; every message has its own.
    """

    def __init__(self, recorder: Recorder, settings: ClassicSettings, dice: Random, number: int = 0) -> None:
        self._recorder = recorder
        self._settings = settings
        self._dice = dice
        self._number = number
        self._small_count = 0
        self._store: OpenStore

    async def run(self) -> None:
        """Open the store, run the steps, stop cleanly."""
        with mock.patch.object(queue_sync, "SINGLY_MAX", self._settings.queue_files_synced_singly):
            await self._run()

    async def _run(self) -> None:
        await self._open()
        steps = (self._put, self._put, self._put, self._put_while_syncing, self._flush, self._checkpoint)
        rare = (self._replace_small_file, self._trim, self._restart)
        for _ in range(self._settings.steps):
            await self._dice.choice(steps if self._dice.random() < 0.8 else rare)()
        await self._close()

    @property
    def _log(self) -> CommitLog:
        log = self._store.store.log
        assert isinstance(log, CommitLog), log
        return log

    async def _open(self) -> None:
        self._store = await open_small(self._recorder.root, self._settings)
        self._recorder.note(Cut(self._log.max_offset))
        self._recorder.note(
            FoundAtStart({at: bytes(data) for at, data in self._log.walk(self._log.min_offset, self._log.max_offset)})
        )
        self._recorder.note(Durable(self._log.flushed_offset))

    async def _close(self) -> None:
        await self._settle()
        self._recorder.gate.open()
        await self._store.close()
        self._recorder.note(Durable(self._log.max_offset))

    async def _restart(self) -> None:
        await self._close()
        await self._open()

    async def _put(self) -> None:
        self._place()
        await self._settle()

    async def _put_while_syncing(self) -> None:
        """Place a batch during a sync that does not cover it."""
        gate = self._recorder.gate
        gate.is_closed = True
        self._place()
        await self._until_held()
        for _ in range(self._dice.randint(1, 2)):
            self._place()
        await self._settle()
        gate.open()

    async def _flush(self) -> None:
        """Flush as ASYNC_FLUSH's timer does, at a moment that the workload chooses."""
        if self._settings.flush_mode is FlushMode.ASYNC and self._log.local._flusher is not None:
            self._log.local._flusher.request(self._log.max_offset, lambda _: None)
        await self._settle()

    async def _checkpoint(self) -> None:
        await self._settle()
        self._store.checkpointer.save(only_notes=self._settings.hold_from == 0 and self._dice.random() < 0.7)

    async def _replace_small_file(self) -> None:
        self._small_count += 1
        content = b'{"topicConfigTable":{}, "dataVersion":{"counter":%d}}' % self._small_count
        self._recorder.note(Replacing(_SMALL_FILE, content))
        write_config(self._store.directory.config / _SMALL_FILE, content)
        self._recorder.note(Replaced(_SMALL_FILE, content))

    async def _trim(self) -> None:
        await self._settle()
        before = self._dice.randint(0, self._log.confirm_offset)
        self._recorder.note(Trimming(before))
        self._log.trim(before)

    def _place(self) -> None:
        drafts = [self._draft() for _ in range(self._dice.randint(1, self._settings.batch_max))]
        recorder, log = self._recorder, self._log

        def done(outcome: AppendReceipt | Refusal) -> None:
            assert isinstance(outcome, AppendReceipt), outcome
            recorder.note(Durable(log.flushed_offset))

        self._store.store.put(drafts, done)
        recorder.note(Appended(tuple(Item(draft.physical_offset, _encoded(draft)) for draft in drafts)))

    def _draft(self) -> QueuedDraft:
        dice = self._dice
        draft = QueuedDraft()
        draft.messages = 1
        queue = self._store.store.queues.get(
            f"T{dice.randrange(self._settings.topics)}", dice.randrange(self._settings.topics)
        )
        tag = f"tag{self._number % 3}"
        body = b"%d " % self._number + dice.randbytes(dice.randrange(self._settings.body_size_max))
        long = "p" * dice.choice((0, self._settings.long_property))
        properties = encode_properties({"KEYS": str(self._number), "long": long, "TAGS": tag})
        draft.queue = queue
        self._number += 1
        born = _START_MS, _HOST
        return draft.fill(queue.topic_bytes, queue.queue_id, body, properties, born=born, tags=tags_code(tag))

    async def _settle(self) -> None:
        """Wait until every sync, and the work that follows it, has ended."""
        while (
            self._log.local.flush_pending_since is not None or self._store.store.log.confirm_offset < self._expected()
        ):
            self._recorder.gate.let_through()
            await asyncio.sleep(0)

    async def _until_held(self) -> None:
        while self._log.local.flush_pending_since is not None and not self._recorder.gate.waiting:
            await asyncio.sleep(0)

    def _expected(self) -> int:
        return self._log.max_offset


def _encoded(draft: QueuedDraft) -> bytes:
    """Return the bytes of a placed draft's record in the log."""
    return b"".join(draft.pieces(_HOST))


async def judge_classic(root: Path, settings: ClassicSettings, ledger: Ledger, *, again: bool) -> int:
    """Recover the image at `root`, compare it with what was written, and return the end of the log.

    With `again`, also stop cleanly and start once more, which must change nothing.

    Raises:
        Finding: what is wrong.
    """
    try:
        store = await open_small(root, settings)
    except (StoreError, OSError, ValueError) as error:
        raise ImageRefusedError(f"not opened: {error!r}") from error
    try:
        found = _judge_log(store, ledger)
        _judge_queues(store, found)
        await _judge_index(store, found)
        _judge_small_files(root, ledger)
        end = store.store.log.max_offset
    finally:
        await store.close()
    if again:
        await _judge_again(root, settings, found, end)
    return end


async def _judge_again(root: Path, settings: ClassicSettings, found: dict[int, Item], end: int) -> None:
    store = await open_small(root, settings)
    try:
        if store.recovery.record_count or store.store.log.max_offset != end:
            raise DisagreeError(f"after a clean stop {store.recovery}, end {store.store.log.max_offset}, was {end}")
        _judge_queues(store, found)
    finally:
        await store.close()


def _judge_log(store: OpenStore, ledger: Ledger) -> dict[int, Item]:
    """Return the found records by offset, without those known to be damaged."""
    log = store.store.log
    found = dict(log.walk(log.min_offset, log.max_offset))
    if log.min_offset > ledger.start:
        raise LostError(f"the log begins at {log.min_offset}, it was trimmed to {ledger.start} at most")
    good: dict[int, Item] = {}
    for item in ledger.items:
        if item.start < log.min_offset:
            continue
        record = found.pop(item.start, None)
        if record is None:
            if item.end <= ledger.floor:
                raise LostError(f"the record at {item.start} was synced up to {ledger.floor}; log {log!r}")
            break
        if record == item.data:
            good[item.start] = item
        elif item.end <= ledger.floor and item.start not in ledger.torn:
            raise LostError(f"the record at {item.start} was synced up to {ledger.floor}, and is damaged")
    if found:
        raise InventedError(f"records at {sorted(found)} were never written, or behind a gap")
    return good


def _judge_queues(store: OpenStore, good: dict[int, Item]) -> None:
    """Check that each sound record has its unit and each unit a sound record, and that no read gives a damaged one."""
    wanted: dict[tuple[str, int], list[tuple[int, tuple[int, int, int]]]] = defaultdict(list)
    for offset, item in good.items():
        size, queue_id, _, queue_offset, _, topic, code = unit_fields(offset, memoryview(item.data))
        wanted[topic.decode(), queue_id].append((queue_offset, (offset, size, code)))
    for queue in store.store.queues:
        shown = [unit for unit in queue.iterate(queue.min_offset, queue.max_offset) if unit[1][1] != BLANK_SIZE]
        expected = wanted.pop((queue.topic, queue.queue_id), [])
        if shown != expected:
            raise DisagreeError(f"{queue!r} shows {_brief(shown)}, the log has {_brief(expected)}")
        if queue.next_offset != queue.max_offset or _ends_below(queue, expected):
            raise DisagreeError(f"{queue!r} goes on with {queue.next_offset}")
    if wanted:
        raise DisagreeError(f"no queue {sorted(wanted)}, though the log has records of it")


async def _judge_index(store: OpenStore, good: dict[int, Item]) -> None:
    """Check that some records, the oldest and the newest among them, are found by their keys, and nothing else."""
    index = store.store.index
    if index is None or not good:
        return
    offsets = sorted(good)
    for offset in {*offsets[:: max(len(offsets) // _KEYS_ASKED, 1)], offsets[-1]}:
        record = decode_record(good[offset].data)
        found = await index.query(record.topic, record.keys[0], 64, 0, 1 << 60)
        if offset not in found.offsets:
            raise DisagreeError(f"the index does not find the record at {offset} by its key {record.keys[0]}")
        if strange := set(found.offsets) - set(offsets):
            raise DisagreeError(f"the index finds records at {strange}, where there is none")


def _ends_below(queue: ConsumeQueue, expected: list[tuple[int, tuple[int, int, int]]]) -> bool:
    return bool(expected) and queue.max_offset <= expected[-1][0]


def _brief(units: list[tuple[int, tuple[int, int, int]]]) -> str:
    return ", ".join(f"{number}@{unit[0]}+{unit[1]}" for number, unit in units) or "nothing"


def _judge_small_files(root: Path, ledger: Ledger) -> None:
    for name, allowed in ledger.small.items():
        found = None
        for path in (root / "config" / f"{name}.bak", root / "config" / name):
            with contextlib.suppress(FileNotFoundError):
                found = path.read_bytes()
        if found not in allowed:
            raise DisagreeError(f"config/{name} holds {found!r}, it may hold {allowed}")


@dataclass(frozen=True, slots=True)
class ClassicWorkload:
    """A `StoreWorkload` on the classic store."""

    settings: ClassicSettings

    async def run(self, recorder: Recorder, dice: Random, number: int) -> None:
        await ClassicRun(recorder, self.settings, dice, number).run()

    async def judge(self, root: Path, ledger: Ledger, *, killed: bool, again: bool) -> None:
        await judge_classic(root, self.settings, ledger, again=again)
