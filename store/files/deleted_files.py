"""Deleted files: their names are removed, and readers still hold slices of some of them.

    deleted --> readers release them: blocks free      the usual end, at once or soon
            '-> still held after a while: forced       the blocks are given back; late readers see zeros, never a signal

Source: apache/rocketmq `store/.../ReferenceResource.java` (shutdown, 5.3.3).
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from store.files.mapped_file import MappedFile

FORCED_AFTER_S = 120.0

log = logging.getLogger(__name__)


class DeletedFiles:
    """Files that were deleted under readers. `delete` may be called in a thread.

    Args:
        forced_after_s: how long readers may keep the blocks of a deleted file.
        clock: seconds, monotonic.
    """

    def __init__(self, forced_after_s: float = FORCED_AFTER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._forced_after_s = forced_after_s
        self._clock = clock
        self._held: deque[tuple[float, MappedFile]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def delete(self, file: MappedFile) -> None:
        """Remove a file; its readers keep their bytes for the time being. The caller syncs the directory."""
        if not file.is_mapped:
            file.delete()
            return
        file.pin()
        file.delete()
        if file.is_held:
            self._held.append((self._clock(), file))
        else:
            file.unpin()

    def release_held(self) -> None:
        """Forget files without readers; free the blocks of those that were held too long."""
        for _ in range(len(self._held)):
            deleted_at, file = self._held.popleft()
            if file.is_held and self._clock() - deleted_at < self._forced_after_s:
                self._held.append((deleted_at, file))
                continue
            if file.is_held:
                log.warning(
                    "%s is still being read %.0f s after it was deleted; its disk blocks are freed now",
                    file.path,
                    self._forced_after_s,
                )
                file.reclaim()
            file.unpin()

    def close(self) -> None:
        """Forget all files; the system frees the blocks of each with its last reader."""
        while self._held:
            self._held.popleft()[1].unpin()
