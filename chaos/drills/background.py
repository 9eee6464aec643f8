"""Work beside a block."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[object, object, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """Run `work` beside the block. It is cancelled at the end of the block, which raises the exception of `work`."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})  # not `await task`, which does not tell its cancellation from that of the caller
        if not task.cancelled():
            task.result()
