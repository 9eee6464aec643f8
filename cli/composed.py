"""A cluster of containers for one drill: a profile of docker-compose.yml, started and removed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from chaos.compose import DRILLED, ComposeCluster, ComposeError, compose_command, undisturbed
from cli.described import DescribedFabric
from cli.fabric import interrupt_on_sigterm
from node.errors import CommandError


@contextlib.asynccontextmanager
async def compose_cluster(mode: str) -> AsyncIterator[DescribedFabric]:
    """Build and start the containers of a mode; they and their volumes are removed at the end of the block.

    From now on SIGTERM acts as Ctrl-C, so that the caller cleans up. A second signal does not interrupt that.

    Raises:
        CommandError: there is no engine, or the cluster did not start; the text says why.
    """
    interrupt_on_sigterm()
    try:
        shape = DRILLED[mode]
        cluster = ComposeCluster(compose_command(shape), shape)
        await _start(cluster)
    except ComposeError as error:
        raise CommandError(str(error)) from error
    try:
        yield DescribedFabric(cluster.describe())
    finally:
        with undisturbed():
            await asyncio.to_thread(cluster.down)


async def _start(cluster: ComposeCluster) -> None:
    """Start it in a thread; if this is cancelled, the start ends and removes what it has created."""
    starting = asyncio.ensure_future(asyncio.to_thread(cluster.up))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        cluster.interrupt()
        with undisturbed():
            await asyncio.wait({starting})
            if starting.exception() is None:
                await asyncio.to_thread(cluster.down)
        raise
