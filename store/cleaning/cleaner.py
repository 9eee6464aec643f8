"""Cleaner: carries out the rules of cleaning, round by round.

    measure (thread) --> judge --> refuse or take messages --> log.trim, file by file --> queues --> followers

The log is trimmed first, since units or index entries that point at deleted records are harmless. Files that somebody
still has to read are kept (`holds`), and so are files that the log itself refuses to drop.

Source: apache/rocketmq `store/.../DefaultFollowedStore.java` (CleanCommitLogService, CleanConsumeQueueService,
cleanExpiredConsumerQueue, cleanUnusedTopic, 5.3.3).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ledgermq.wall_clock import wall_clock_ms
from store.cleaning.archive_gate import ArchiveGate
from store.cleaning.config import CleaningConfig
from store.cleaning.disk_space import StoreSpace, bytes_under, disk_space
from store.cleaning.rules import AgedFile, CleaningDecision, expired, judge
from store.errors import StoreError
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_file import QueueFile
from store.store_listener import FollowedStore
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

SLICE_S = 0.005
"""Longest look at queues before the loop gets its turn."""

ROUNDS_BY_HAND = 20
"""Rounds in which an administrator's request deletes old files at any hour."""


def store_space(root: Path, log_directory: Path, *, count: bool) -> StoreSpace:
    """Measure the disks of a store; with `count`, also look at every file to add up the bytes that it holds.

    Raises:
        OSError: a disk cannot be asked.
    """
    folders = {root} if log_directory.is_relative_to(root) else {root, log_directory}
    held = bytes_under(folders) if count else 0
    return StoreSpace(disk_space(log_directory), disk_space(root / "consumequeue"), held)


class Cleaner:
    """Cleans one store. Owned by the loop's thread.

    Args:
        measure: the disks as they are now; called in a thread, may raise OSError.
        now_ms: the clock that files' times are compared with.
        hour: of the local day.

    Attributes:
        holds: functions; each returns the physical offset up to which the log may be dropped as far as its owner is
            concerned.
        followers: functions that are called with the log's `min_offset` when that has risen.
        deleted_files: number of files of the log that were deleted.
        waits_for_archive: old files stay because no archive holds them.
    """

    def __init__(
        self,
        config: CleaningConfig,
        store: FollowedStore,
        *,
        measure: Callable[[], StoreSpace],
        now_ms: Callable[[], int] = wall_clock_ms,
        hour: Callable[[], int] = lambda: time.localtime().tm_hour,
    ) -> None:
        self.config = config
        self.holds: list[Callable[[], int]] = [lambda: store.dispatched_offset]
        self.followers: list[Callable[[int], None]] = []
        self.deleted_files = 0
        path = config.archive_path if config.archive_required else None
        self._gate = ArchiveGate(path) if path is not None else None
        self.waits_for_archive = False
        self._look: asyncio.Task[bool] | None = None
        self._store = store
        self._measure = measure
        self._now_ms = now_ms
        self._hour = hour
        self._rounds_by_hand = 0
        self._cleaned_to = store.log.min_offset  # recovery has removed the units of records that were dropped before
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run rounds from now on."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop, at the next pause of the round that is running."""
        if self._look is not None:
            self._look.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def clean_by_hand(self) -> None:
        """Delete expired files now and in the next rounds, whatever the hour."""
        self._rounds_by_hand = ROUNDS_BY_HAND
        self._wanted.set()

    async def run_round(self) -> None:
        """Run one round: measure the disks, decide, delete files.

        Raises:
            OSError, DiskFailedError: the disk refuses; the next round tries again.
        """
        space = await asyncio.to_thread(self._measure)
        verdict = judge(self.config, space, self._hour(), by_hand=self._rounds_by_hand > 0)
        self._rounds_by_hand = max(self._rounds_by_hand - 1, 0)
        self._take_or_refuse(verdict, space)
        sealed = self._store.log.sealed_files()
        files = await asyncio.to_thread(_ages, sealed)
        ends = expired(self.config, verdict, files, self._now_ms())
        await self._trim([file for file in sealed if file[1] in ends])
        if self.waits_for_archive and not ends and sealed:
            await self._is_archived(sealed[0][0])  # perhaps it is archived by now
        if verdict.at_once and not ends:
            log.warning("the disk is %.0f %% full, and no file of the log can be deleted", space.log.ratio * 100)
        await self.clean_queues()

    async def clean_queues(self) -> None:
        """Remove from queues and followers what the log has dropped since the last call."""
        min_offset = self._store.log.min_offset
        if min_offset <= self._cleaned_to:
            return
        failed = 0
        time_slice = TimeSlice(SLICE_S)
        for queue in list(self._store.queues):
            try:
                doomed = self._forget(queue, min_offset)
            except StoreError as error:
                log.error("old files of %r cannot be deleted now: %s", queue, error)
                doomed, failed = [], failed + 1
            if doomed:
                await asyncio.to_thread(_delete, doomed)
                await asyncio.sleep(self.config.queue_pause_ms / 1000)
            elif time_slice.is_over():
                await asyncio.sleep(0)
            else:
                continue
            time_slice = TimeSlice(SLICE_S)
        for follower in self.followers:
            follower(min_offset)
        if failed == 0:
            self._cleaned_to = min_offset
            self._store.queues.cleaned(min_offset)

    async def clean_expired_queues(self, is_kept: Callable[[str], bool]) -> None:
        """Clean all queues now; remove those without a message in the log, unless their topic `is_kept`.

        RocketMQ removes every such queue of a user's topic, and numbers its next message 0. Here a topic that exists
        keeps its queue offsets, on which consumers' offsets and the other members of a group depend.
        """
        self._cleaned_to = -1
        await self.clean_queues()
        for queue in list(self._store.queues):
            if queue.min_offset == queue.max_offset > 0 and not is_kept(queue.topic):
                log.info("%r is removed: the log has none of its messages any more", queue)
                self._store.queues.delete(queue)
                await asyncio.sleep(0)

    async def clean_unused_topics(self, is_kept: Callable[[str], bool]) -> list[str]:
        """Remove the queues of all topics that are not kept; return those topics."""
        removed = sorted({queue.topic for queue in self._store.queues if not is_kept(queue.topic)})
        for topic in removed:
            log.info("the queues of topic %s are removed: the topic does not exist any more", topic)
            self._store.queues.delete_topic(topic)
            await asyncio.sleep(0)
        return removed

    # ---- internals

    async def _run(self) -> None:
        delay_s = self.config.first_delay_ms / 1000
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):  # wait_for loses a cancellation that comes with the event (3.11)
                    await self._wanted.wait()
            self._wanted.clear()
            delay_s = self.config.interval_ms / 1000
            try:
                await self.run_round()
            except (OSError, StoreError) as error:
                log.error("cleaning failed, the next try is in %.0f s: %s", delay_s, error)
            except Exception:  # whatever the error is, to stop cleaning would be worse: the disk would fill up
                log.exception("cleaning failed, the next try is in %.0f s", delay_s)

    def _take_or_refuse(self, verdict: CleaningDecision, space: StoreSpace) -> None:
        if verdict.refuses is None:
            return
        percent = max(space.log.ratio, space.queues.ratio) * 100
        was_full = self._store.disk_full is not None
        if verdict.refuses:
            limit = self.config.warning_ratio * 100
            self._store.disk_full = f"the broker's disk is {percent:.0f} % full, more than {limit:.0f} %"
            if self.waits_for_archive:
                self._store.disk_full += "; files of the log wait for their archive"
        else:
            self._store.disk_full = None
        if was_full is not verdict.refuses:
            log.warning(
                "the disk is %.0f %% full: messages are %s", percent, "accepted again" if was_full else "refused"
            )

    async def _trim(self, files: Iterable[tuple[Path, int]]) -> None:
        """Drop one file after the other, up to the first that is still needed or not archived."""
        for path, end in files:
            if not await self._is_archived(path):
                return
            limit = min([end, *(hold() for hold in self.holds)])
            if limit < end or self._store.log.trim(end) < end:
                log.info("files of the log before %d are kept: they are still needed", end)
                return
            self.deleted_files += 1
            await asyncio.sleep(self.config.log_pause_ms / 1000)

    async def _is_archived(self, path: Path) -> bool:
        """Return whether the archive allows a file to be deleted.

        A comparison that takes longer than a round continues in its thread, since the disk must be measured; a later
        round uses its result, which the gate keeps.
        """
        gate, look = self._gate, self._look
        if gate is None:
            return True
        is_new = look is None or look.done()
        if look is None or look.done():
            look = self._look = asyncio.create_task(asyncio.to_thread(gate.is_open, path))
        done, _ = await asyncio.wait([look], timeout=self.config.interval_ms / 1000)
        self.waits_for_archive = not (is_new and done and look.result())
        why = gate.fault if done else "the comparison with the archive takes long"
        if why is not None and why != gate.told:
            log.warning("files of the log from %s on are kept until they are archived: %s", path.name, why)
        gate.told = why
        return not self.waits_for_archive

    @staticmethod
    def _forget(queue: ConsumeQueue, min_offset: int) -> "list[QueueFile]":
        queue.correct_min_offset(min_offset)
        return queue.take_expired()


def _ages(files: Sequence[tuple[Path, int]]) -> list[AgedFile]:
    """Return the files with their times of last change, up to the first that does not exist any more."""
    ages: list[AgedFile] = []
    with contextlib.suppress(FileNotFoundError):
        for path, end_offset in files:
            ages.append(AgedFile(end_offset, path.stat().st_mtime_ns // 1_000_000))
    return ages


def _delete(doomed: "Sequence[QueueFile]") -> None:
    for file in doomed:
        file.delete()
