"""The control socket of a running `cluster up`: one JSON object a line each way, over a unix socket in its folder.

    request   {"verb": "kill", "words": ["leader"]}
    answer    {"ok": {...}}  or  {"error": "text for the user"}

The path of a unix socket has at most 107 bytes; so that the folder's path may be longer, both ends use /proc/self/fd.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.errors import CommandError

_SOCKET_NAME = "control.sock"
_LINE_LIMIT_BYTES = 1 << 20

Answer = dict[str, Any]
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
        """Listen. The socket file of a process that ended is replaced; the caller holds the folder's lock."""
        (self._directory / _SOCKET_NAME).unlink(missing_ok=True)
        with _short_path(self._directory) as path:
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE_LIMIT_BYTES)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            (self._directory / _SOCKET_NAME).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            answer = await self._answer(str(request["verb"]), [str(word) for word in request["words"]])
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not one of our commands, or it has closed the connection: there is nobody to answer
        finally:
            writer.close()

    async def _answer(self, verb: str, words: Sequence[str]) -> Answer:
        try:
            return {"ok": await self._handler(verb, words)}
        except CommandError as error:
            return {"error": str(error)}


def ask(directory: Path, verb: str, *words: str, limit_s: float = 60.0) -> Answer:
    """Have the `cluster up` of `directory` carry out `verb`; blocks until it is done.

    Raises:
        CommandError: no cluster runs there, or the verb failed; the text says why.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        try:
            with _short_path(directory) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"verb": verb, "words": words}).encode() + b"\n")
            answer = json.loads(connection.makefile("rb").readline(_LINE_LIMIT_BYTES))
        except (FileNotFoundError, ConnectionRefusedError):
            raise CommandError(
                f"no cluster runs in {directory}; start one with: ledgermq cluster up --dir DIR"
            ) from None
        except TimeoutError:
            raise CommandError(f"the cluster in {directory} did not answer within {limit_s:g} s") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"the connection to the cluster in {directory} was lost: {error}") from None
    if "error" in answer:
        raise CommandError(answer["error"])
    result: Answer = answer["ok"]
    return result


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET_NAME}"
    finally:
        os.close(descriptor)
