"""Makes the parts between the recovery of the store and its start, so that they see every record dispatched.

    recovered store -> tables from config/ -> parts -> replay of the state records behind them -> store starts

It is also the state machine of which a mode of replication takes snapshots.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterator, Mapping
from typing import Protocol, TypeVar

import orjson

from broker.config import BrokerConfig
from broker.context import BrokerContext
from broker.delay.timer_files import DeliveryFiles, open_counts, open_index
from broker.parts import Parts
from broker.state import names
from broker.state.clamping import clamp_to_log
from broker.state.files import load_state
from broker.state.saver import StateSaver
from broker.state.tables import NewerNames, ReplicatedState, StateFormatError
from broker.timers import Timers
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.errors import StateUnknownError, StoreError
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueStarts, QueueTable
from telemetry.metrics import Histogram

log = logging.getLogger(__name__)
_P = TypeVar("_P")


class Announcer(Protocol):
    """Registers this broker's state with the nameservers."""

    def announce_soon(self, changed: Collection[str] | None = None) -> None:
        """Register without waiting; `changed` names the topics that changed, None means that everything may have."""

    def announce(self) -> Awaitable[None]:
        """Register, and wait until the nameservers that answer know, or for a second."""


def replay(store: MessageStore, state: ReplicatedState) -> int:
    """Apply to `state` the dispatched state records that it does not have; return their number.

    Only these records are read: the state topic's own queue has their positions.
    """
    queue = store.queues.find(names.STATE_TOPIC, 0)
    if queue is None:
        return 0
    count = 0
    for physical_offset, record in store.reader.records_from(queue, state.applied_offset):
        count += 1
        try:
            state.apply_record(physical_offset, record)
        except StateFormatError as error:
            log.error("a state record is skipped: %s", error)
    return count


class LogFollower:
    """Makes the parts when the store is recovered, and follows the log with them.

    Attributes:
        flushes: seconds of each sync of the log.
    """

    def __init__(
        self, config: BrokerConfig, store_host: bytes, announcer: Announcer, timers: Timers, flushes: Histogram
    ) -> None:
        self._config = config
        self._store_host = store_host
        self._announcer = announcer
        self._timers = timers
        self._directory = config.store.folders.tables
        self._parts: Parts | None = None
        self._state: ReplicatedState | None = None
        self._saver: StateSaver | None = None
        self._delivery_files: DeliveryFiles | None = None
        self.flushes = flushes

    @property
    def parts(self) -> Parts:
        """The parts.

        Raises:
            Refusal: RECOVERING, before the store is recovered.
        """
        return _recovered(self._parts)

    @property
    def saver(self) -> StateSaver:
        """The saver of the tables; errors as `parts`."""
        return _recovered(self._saver)

    @property
    def delivery_files(self) -> DeliveryFiles:
        """The files of timers and transactions; errors as `parts`."""
        return _recovered(self._delivery_files)

    def load(self) -> ReplicatedState:
        """See `node.log_choice.StoreFollower`; the tables are read once.

        Raises:
            StoreFormatError: the tables on disk cannot be read.
        """
        if self._state is None:
            self._state = load_state(self._directory)
        return self._state

    def prepare(self, store: MessageStore) -> None:
        """See `node.log_choice.StoreFollower`."""
        loop = asyncio.get_running_loop()
        state = self.load()
        is_ahead, lanes = state.applied_offset > store.log.max_offset, state.lanes
        if is_ahead:
            log.warning(
                "the tables in %s are ahead of the log, at %d: they are set back to the end of the log",
                self._directory,
                state.applied_offset,
            )
            clamp_to_log(state, store)
        self._saver = StateSaver(state, self._directory, loop, lambda: store.log.flushed_offset)
        index, counts = open_index(self._config, wall_clock_ms), open_counts(self._config, wall_clock_ms)
        self._delivery_files = DeliveryFiles(self._config, index, counts, store)
        context = BrokerContext(
            self._config,
            state,
            store,
            self._store_host,
            loop,
            announce=self._announcer.announce,
            announce_soon=self._announcer.announce_soon,
            spawn=self._timers.spawn,
        )
        self._parts = parts = Parts(context, index, counts)
        if state.newer:
            self._saver.write_mark()  # says that they are being taken over, until `install` has written the tables
        replayed = replay(store, state)
        if lost := lanes.keys() - state.lanes.keys():  # they go on behind the last of their requests that the log has
            past = ReplicatedState()
            replay(store, past)
            state.lanes |= {key: lane for key, lane in past.lanes.items() if key in lost}
        drop_stale_units(store.queues, state)
        log.info("%d topics, %d groups; %d state records replayed", len(state.topics), len(state.groups), replayed)
        if state.newer:
            log.warning(
                "another program has written the tables in %s since the last stop: its entries are kept",
                self._directory,
            )
            state.newer = NewerNames()
            is_ahead = True
        if is_ahead:
            self._saver.install()
        parts.delay.timer.open()
        parts.cut = self._cut
        parts.follow()

    async def close(self) -> None:
        """Leave the files of timers and transactions as they are now; after `Parts.stop`."""
        if self._parts is not None and self._delivery_files is not None:
            await self._delivery_files.close()
            try:
                self._parts.delay.timer.close()
            except (StoreError, OSError) as error:  # the log has it all, and has still to be closed
                log.error("the timers' files cannot be saved: %s", error)

    def topic_attributes(self, topic: str) -> Mapping[str, str]:
        """See `node.log_choice.StoreFollower`; before `prepare` as the tables on disk have it."""
        found = self.load().topics.get(topic)
        return found.attributes if found is not None else {}

    def needed_records(self, queues: QueueTable, log_end: int) -> Iterator[tuple[int, int]]:
        """See `node.log_choice.StoreFollower`: the state records that the tables on disk lack."""
        queue, applied = queues.find(names.STATE_TOPIC, 0), self.load().applied_offset
        if queue is not None:
            start = queue.bisect(lambda unit: unit[0] < applied) if applied <= log_end else queue.min_offset
            for _, (physical_offset, size, _) in queue.iterate(start, queue.max_offset):
                yield physical_offset, size

    def on_flushed(self, _flushed_offset: int, seconds: float) -> None:
        """Note that one sync of the log is done."""
        self.flushes.observe(seconds)
        if self._saver is not None:
            self._saver.write_durable()

    def needed_of_log(self) -> int:
        """Return the offset from which the next start replays state records: the log must keep all behind it."""
        if self._parts is None or self._saver is None:
            return 0
        is_saved = self._saver.saved_offset == self._parts.context.state.applied_offset
        return self._parts.context.store.dispatched_offset if is_saved else self._saver.saved_offset

    def snapshot(self) -> bytes:
        """Return the tables and where each queue begins, for a member that starts anew; errors as `parts`."""
        tables = orjson.Fragment(self.parts.context.state.snapshot())
        whole = {"tables": tables, "queueStarts": self.parts.context.store.queue_starts()}
        return orjson.dumps(whole, option=orjson.OPT_NON_STR_KEYS)

    def restore(self, state: bytes) -> None:
        """Take a leader's tables and queue numbers; the log has been reset, and both are on disk on return.

        Raises:
            StateFormatError: it is no snapshot; nothing has changed.
            StoreError, OSError: the disk refused.
        """
        parts = self.parts
        starts, tables = _parse_snapshot(state)
        parts.restore(tables)
        parts.context.store.restart(starts)
        if parts.context.store.compaction is not None:
            parts.context.store.compaction.begin_anew(starts)
        parts.context.store.save_checkpoint()  # the log does not say where a queue without messages goes on
        self.saver.install()
        log.warning("the tables were replaced by the leader's, which hold up to %d", parts.context.state.applied_offset)

    def _cut(self, offset: int) -> None:
        """Set tables and timers back to where the log ended at `offset`; the store's queues are cut already.

        Durable on return. The tables are those on disk, or empty ones if the log has all records, and the records
        up to the cut. Queues of topics whose removal lay behind the cut are filled again from the log.

        Raises:
            StateUnknownError: the tables on disk are newer than the cut, and the log has not all records any more.
            StoreError, OSError: the disk refused.
        """
        parts, context = self.parts, self.parts.context
        state, first = self.saver.saved(), context.store.log.min_offset
        if state.applied_offset > offset:
            if first > 0:
                raise StateUnknownError(offset, state.applied_offset, first)
            state = ReplicatedState()
        replay(context.store, state)
        removed = context.state.removed.items()
        back = {name for name, removed_at in removed if removed_at >= offset} & state.topics.keys()
        parts.restore(state.snapshot())
        context.state.ahead_to = state.ahead_to
        context.store.fill_again({name: state.removed.get(name, -1) for name in back})
        self.saver.cut()
        self.delivery_files.wait()
        parts.delay.timer.cut()
        log.warning(
            "the tables were set back to %d, where the log was cut; %d removed topics exist again", offset, len(back)
        )


def _recovered(part: _P | None) -> _P:
    if part is None:
        raise Refusal(Cause.RECOVERING, "the log is being recovered", retry_after_ms=100)
    return part


def drop_stale_units(queues: QueueTable, state: ReplicatedState) -> None:
    """Clear the units that recovery, which knows topics by name only, has entered into queues of removed topics.

    A topic made again under its old name has taken over the first units; those that lie before the removal are stale.
    """
    for name, removed_at in state.removed.items():
        for queue in queues.of_topic(name):
            last = queue.unit(queue.max_offset - 1)
            if last is not None and last[0] <= removed_at:
                _keep_units_behind(queue, removed_at)
        if name not in state.topics:
            queues.delete_topic(name, removed_at)


def _keep_units_behind(queue: ConsumeQueue, removed_at: int) -> None:
    first_stale = queue.bisect(lambda unit: unit[0] > removed_at)
    log.warning("%s: dropped %d units of a removed topic of the same name", queue, queue.max_offset - first_stale)
    if first_stale == queue.min_offset:
        queue.clear()  # its next message has number 0, as everywhere
    else:
        queue.keep_before(first_stale)


def _parse_snapshot(snapshot: bytes) -> tuple[QueueStarts, bytes]:
    try:
        values = orjson.loads(snapshot)
        starts = {
            str(topic): {int(queue_id): int(start) for queue_id, start in queues.items()}
            for topic, queues in values["queueStarts"].items()
        }
        return starts, orjson.dumps(values["tables"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateFormatError("state snapshot", repr(error)) from error
