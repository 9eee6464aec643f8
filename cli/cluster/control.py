"""The control socket of a running `cluster up`; `ledgermq.testing.control` has the protocol and the other end."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from ledgermq.testing import control
from ledgermq.testing.control import LINE_LIMIT_BYTES, SOCKET_NAME, Answer, ClusterError, short_path
from node.errors import CommandError

Handler = Callable[[str, Sequence[str]], Awaitable[Answer]]


class ControlServer:
    """Serves requests by `handler(verb, words)`; the text of a CommandError becomes the error of the answer.

    Args:
        directory: the cluster's folder.
        handler: carries out the verb; the words name nodes, and what else the verb needs.
    """

    def __init__(self, directory: Path, handler: Handler) -> None:
        self._directory = directory
        self._handler = handler
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Replace the socket file of an ended process; the caller holds the folder's lock."""
        (self._directory / SOCKET_NAME).unlink(missing_ok=True)
        with short_path(self._directory) as path:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=LINE_LIMIT_BYTES)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            (self._directory / SOCKET_NAME).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            answer = await self._answer(str(request["verb"]), [str(word) for word in request["words"]])
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not one of our commands, or its connection is closed: no answer
        finally:
            writer.close()

    async def _answer(self, verb: str, words: Sequence[str]) -> Answer:
        try:
            return {"ok": await self._handler(verb, words)}
        except CommandError as error:
            return {"error": str(error)}


def ask(directory: Path, verb: str, *words: str, limit_s: float = 60.0) -> Answer:
    """See `ledgermq.testing.control.ask`.

    Raises:
        CommandError: no cluster runs there, or the verb failed; the text says why.
    """
    try:
        return control.ask(directory, verb, *words, limit_s=limit_s)
    except ClusterError as error:
        raise CommandError(str(error)) from None
