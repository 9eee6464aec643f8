"""Periodic calls and background tasks on the event loop, until the broker stops."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine until it ends or the broker stops."""


class Timers:
    """Calls functions periodically, and owns background tasks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handles: dict[int, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # a set that keeps its order
        self._is_closed = False

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` every `seconds`; what it raises is logged, and it is called again."""
        number = len(self._handles)

        def run() -> None:
            self._handles[number] = self._loop.call_later(seconds, run)
            try:
                action()
            except Exception:  # one bad round must not end all that follow
                log.exception("%s failed", getattr(action, "__qualname__", action))

        self._handles[number] = self._loop.call_later(seconds, run)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or `close` is called."""
        if self._is_closed:
            coroutine.close()
            return
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        """Stop the periodic calls, cancel the tasks, wait for them."""
        self._is_closed = True
        for handle in self._handles.values():
            handle.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task failed", exc_info=error)
