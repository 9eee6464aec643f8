"""Commits: what is handled of each queue becomes the group's offset at the leader."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.group.queue_offsets import QueueOffsets

_log: Final = logging.getLogger(__name__)


class Commits:
    """Commits for one consumer, one round after another: an older offset must not overtake a newer one.

    Args:
        group: consumer group.
        offsets: where to.
    """

    def __init__(self, group: str, offsets: QueueOffsets) -> None:
        self.offsets = offsets
        self._group = group
        self._lock = asyncio.Lock()

    async def commit(self, readers: Sequence[QueueReader], deadline_s: float | None = None) -> None:
        """Commit what these readers have handled since they were last committed.

        Raises:
            LedgerMQError: of the first that failed; all were tried.
        """
        async with self._lock:
            behind = [reader for reader in readers if reader.handled != reader.committed]
            rounds = [self._commit_one(reader, deadline_s) for reader in behind]
            outcomes = await asyncio.gather(*rounds, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def run(self, interval_s: float, readers: Callable[[], Sequence[QueueReader]]) -> None:
        """Commit now and then, until cancelled; what fails is tried again in the next round."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.commit(readers())
            except LedgerMQError as failure:
                _log.warning("group %s: commit failed, it will be tried again: %s", self._group, failure)

    async def _commit_one(self, reader: QueueReader, deadline_s: float | None) -> None:
        offset = reader.handled
        assert offset is not None, "it has begun, since it is behind"
        await self.offsets.commit(self._group, reader.queue, offset, deadline_s=deadline_s)
        reader.committed = offset
