"""The tables of a broker under crash images: topics, groups' offsets and removals, beside a log with ASYNC_FLUSH.

The log of these runs is never trimmed, so after a start the tables must hold exactly what all of its records say. A
client's change after a start must be there after the next start.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from broker.config import BrokerConfig
from broker.log_follower import LogFollower, replay
from broker.state.settings import TopicConfig
from broker.state.tables import ChangeDone, ReplicatedState
from broker.timers import Timers
from chaos.crash.errors import DisagreeError, ImageRefusedError, LostError
from chaos.crash.ledger import Ledger
from chaos.crash.recorder import Recorder
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.refusal import Refusal
from store.errors import StoreError
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.flusher import FlushMode
from store.opening import OpenStore, open_classic_store
from store.store_config import StoreConfig
from telemetry.metrics import Histogram

_HOST = encode_host(Host("127.0.0.1", 10911))
_START_MS = 1_700_000_000_000
_HOUR_MS = 3_600_000
_FILE_BYTES = 1 << 16
_TOPICS = ("T0", "T1", "T2")
_LATE_TOPIC = "late"
_GROUP = "g"


class _Broker:
    """A broker without sockets and clocks: a classic log with ASYNC_FLUSH, and the tables that follow it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        loop = asyncio.get_running_loop()
        store = StoreConfig(root=root, queue_file_size_bytes=400, checkpoint_interval_ms=_HOUR_MS)
        config = BrokerConfig(auto_create_topic=False, timer_log_file_size_bytes=_FILE_BYTES, store=store)
        self._follower = LogFollower(config, _HOST, self, Timers(loop), Histogram([1]))
        self._config = config
        self._store: OpenStore

    async def open(self) -> None:
        """Recover and start; raises as a broker's start."""
        ticks = count(_START_MS)
        self._store = await open_classic_store(
            self._config.store,
            CommitLogConfig(
                directory=self._root / "commitlog",
                store_host=_HOST,
                file_size_bytes=_FILE_BYTES,
                flush_mode=FlushMode.ASYNC,
                flush_interval_ms=_HOUR_MS,
            ),
            make_log=partial(CommitLog, clock=lambda: next(ticks), on_flushed=self._follower.on_flushed),
            prepare=self._follower.prepare,
        )
        self._store.last_steps += [self._follower.close, self._follower.saver.close]

    async def close(self) -> None:
        """Stop cleanly."""
        self._follower.parts.stop()
        await self._store.close()

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        """Do nothing: there is no nameserver."""

    async def announce(self) -> None:
        """Do nothing: there is no nameserver."""

    @property
    def log(self) -> CommitLog:
        """The log."""
        log = self._store.store.log
        assert isinstance(log, CommitLog), log
        return log

    @property
    def state(self) -> ReplicatedState:
        """The tables."""
        return self._follower.parts.context.state

    async def make_topic(self, name: str) -> None:
        """Create a topic of one queue, or change an existing one; return when that is acknowledged."""
        topic = TopicConfig(name=name, read_queues=1, write_queues=1)
        await _done(lambda done: self._follower.parts.context.metadata.put_topic(topic, done))

    async def remove_topic(self, name: str) -> None:
        """Remove a topic and its offsets; return when that is acknowledged."""
        await _done(lambda done: self._follower.parts.context.metadata.remove_topics([name], done))

    async def commit_offset(self, topic: str, offset: int) -> None:
        """Commit an offset of the one group; return when that is acknowledged."""
        offsets = self._follower.parts.context.offsets
        await _done(lambda done: offsets.commit_and_tell(topic, _GROUP, {0: offset}, done))

    async def flush(self) -> None:
        """Flush as the timer of ASYNC_FLUSH does; the log is durable on return."""
        flushed = asyncio.get_running_loop().create_future()
        self.log.local.sync(self.log.max_offset, flushed.set_result)
        await flushed

    def save_tables(self) -> None:
        """Save the tables, as the timer does."""
        self._follower.saver.save_soon()

    def replayed_tables(self) -> ReplicatedState:
        """Return tables to which all records of the log were applied."""
        state = ReplicatedState()
        replay(self._store.store, state)
        return state


async def _done(begin: Callable[[ChangeDone], None]) -> None:
    """Wait until a change is committed.

    Raises:
        Refusal: the change was refused.
    """
    done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    begin(done.set_result)
    refusal = await done
    if refusal is not None:
        raise refusal


@dataclass(frozen=True, slots=True)
class TablesWorkload:
    """A `StoreWorkload` on a broker's tables: `steps` changes, flushes and saves."""

    steps: int = 4

    async def run(self, recorder: Recorder, dice: Random, number: int) -> None:
        """See `StoreWorkload`."""
        broker = _Broker(recorder.root)
        await broker.open()
        for step in range(self.steps):
            topic = dice.choice(_TOPICS)
            if topic not in broker.state.topics:
                await broker.make_topic(topic)
            elif dice.random() < 0.3:
                await broker.remove_topic(topic)
            else:
                await broker.commit_offset(topic, number + step)
            if dice.random() < 0.5:
                broker.save_tables()
            if dice.random() < 0.3:
                await broker.flush()
            await _settled()
        recorder.gate.open()
        await broker.close()

    async def judge(self, root: Path, ledger: Ledger, *, killed: bool, again: bool) -> None:
        """See `StoreWorkload`; with `again`, changes after the start must be there after the next start."""
        broker = await _opened(root)
        try:
            if broker.state.applied_offset > broker.log.max_offset:
                await _change_everything(broker)  # stale tables would take these for changes that they already have
            _compare(broker.state, broker.replayed_tables())
            if again:
                await _change_everything(broker)
        finally:
            await broker.close()
        if again:
            broker = await _opened(root)
            try:
                _compare(broker.state, broker.replayed_tables())
                _expect_changes(broker.state)
            finally:
                await broker.close()


async def _opened(root: Path) -> _Broker:
    broker = _Broker(root)
    try:
        await broker.open()
    except (StoreError, OSError, ValueError) as error:
        raise ImageRefusedError(f"not opened: {error!r}") from error
    return broker


async def _settled() -> None:
    """Let pending tasks end; executors and syncs do their work at once."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _change_everything(broker: _Broker) -> None:
    for topic in (_LATE_TOPIC, *_TOPICS):
        await broker.make_topic(topic)
    await broker.commit_offset(_LATE_TOPIC, 7)
    await broker.remove_topic(_TOPICS[0])
    _expect_changes(broker.state)


def _expect_changes(state: ReplicatedState) -> None:
    offset = state.offsets.get(f"{_LATE_TOPIC}@{_GROUP}", {}).get(0)
    if {_LATE_TOPIC, *_TOPICS} & state.topics.keys() != {_LATE_TOPIC, *_TOPICS[1:]} or offset != 7:
        raise LostError(f"changes after a start have no effect: topics {sorted(state.topics)}, offset {offset}")


def _compare(found: ReplicatedState, told: ReplicatedState) -> None:
    for name in ("topics", "groups", "offsets", "removed", "applied_offset"):
        if getattr(found, name) != getattr(told, name):
            raise DisagreeError(f"{name} are {getattr(found, name)}, the log says {getattr(told, name)}")
