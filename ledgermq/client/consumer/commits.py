"""Commits: they store the handled offset of each queue as the group's offset at the queue's broker."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.errors import DeadlineExceededError, LedgerMQError
from ledgermq.client.group.queue_offsets import QueueOffsets

_log: Final = logging.getLogger(__name__)


class Commits:
    """Commits for one consumer, one round after another: an older offset must not overtake a newer one.

    Args:
        deadline_s: of one round, unless the caller gives another.
    """

    def __init__(self, group: str, offsets: QueueOffsets, deadline_s: float) -> None:
        self.offsets = offsets
        self._group = group
        self._deadline_s = deadline_s
        self._lock = asyncio.Lock()

    async def commit(self, readers: Sequence[QueueReader], deadline_s: float | None = None) -> None:
        """Commit what these readers have handled since they were last committed.

        `deadline_s` is for all of it, the wait for an earlier round that is under way included.

        Raises:
            LedgerMQError: the first failure; every queue was tried.
        """
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            reason = LedgerMQError("an earlier commit is still under way")
            raise DeadlineExceededError(f"commit of group {self._group!r}", limit_s, 0, (reason,)) from None
        try:
            behind = [reader for reader in readers if reader.handled != reader.committed]
            rounds = [self._commit_one(reader, deadline - loop.time()) for reader in behind]
            outcomes = await asyncio.gather(*rounds, return_exceptions=True)
        finally:
            self._lock.release()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def run(self, interval_s: float, readers: Callable[[], Sequence[QueueReader]]) -> None:
        """Commit every `interval_s` seconds until cancelled; what fails is tried again in the next round."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.commit(readers())
            except LedgerMQError as failure:
                _log.warning("group %s: commit failed, it will be tried again: %s", self._group, failure)

    async def _commit_one(self, reader: QueueReader, deadline_s: float) -> None:
        offset = reader.handled
        assert offset is not None, "handled differs from committed only after the reader has begun"
        await self.offsets.commit(self._group, reader.queue, offset, deadline_s=deadline_s)
        reader.committed = offset
