"""Runs a coroutine as a task for the time of a `with` block."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[object, object, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run `work` as a task; the end of the block cancels it, or raises the exception with which it ended."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})  # not `await task`, which cannot distinguish its cancellation from the caller's
        if not task.cancelled():
            task.result()
