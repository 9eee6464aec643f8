"""Deletes files that a log no longer uses in a thread, since freeing a gigabyte takes the disk some time.

The oldest file is deleted first, so that a crash leaves a longer log without gaps.
"""

import asyncio
import logging
from collections.abc import Sequence

from store.errors import DiskFailedError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue

log = logging.getLogger(__name__)


class FileRemoval:
    """Deletes taken files of some queues. Owned by the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last: asyncio.Future[None] | None = None

    def start(self, queue: MappedFileQueue, doomed: Sequence[MappedFile]) -> None:
        """Delete the files after those of earlier calls. Failures are logged, and the next start deletes the rest."""
        if doomed:
            self._last = asyncio.ensure_future(self._remove(self._last, queue, doomed), loop=self._loop)

    async def finish(self) -> None:
        """Wait until everything is deleted."""
        if self._last is not None:
            await self._last

    async def _remove(
        self, earlier: "asyncio.Future[None] | None", queue: MappedFileQueue, doomed: Sequence[MappedFile]
    ) -> None:
        if earlier is not None:
            await earlier
        try:
            await self._loop.run_in_executor(None, queue.remove, doomed)
        except (OSError, DiskFailedError) as error:
            log.error("old files of %s, from %s on, cannot all be deleted: %s", queue.directory, doomed[0].path, error)
        else:
            log.info(
                "deleted %d old files of %s, the last of them %s", len(doomed), queue.directory, doomed[-1].path.name
            )
