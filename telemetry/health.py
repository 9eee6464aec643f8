"""Health over HTTP on a port of its own, for orchestrators, compose files and Prometheus.

    GET /livez    200 while the process can work at all (nothing remote is asked); else 503
    GET /readyz   200 once it can serve, 503 with the reason until then
    GET /metrics  Prometheus text, in chunks; as gzip where that is accepted

The bodies of the first two are `{"ok": true, "detail": "..."}`. That an answer comes at all shows that the
event loop turns. A connection is for one request; few are open at once, and none for long: else strangers could take
the descriptors that the process needs for its files.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from telemetry.http_pages import BadRequestError, Page, Request, read_request, write_page
from telemetry.metrics import CONTENT_TYPE
from telemetry.pages import compressed

Check = Callable[[], tuple[bool, str]]
"""Returns whether the process is healthy, and a sentence of detail. Called on the loop's thread; must be fast."""


MetricsPage = Callable[[], AsyncIterator[bytes]]
"""Yields the page of /metrics in pieces."""


CONNECTIONS_MAX: Final = 256
"""Most open connections; a further one is closed at once."""

CONNECTION_S: Final = 60.0
"""Longest life of a connection, in seconds."""

_LINGER_S: Final = 1.0
"""How long after its answer a peer may go on sending; closed earlier, the system could drop the answer on its way."""

_CLOSE_S: Final = 1.0
"""How long answers that are being written have at `close()`."""

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json; charset=utf-8"
_log: Final = logging.getLogger(__name__)


class HealthListenError(Exception):
    """The health port could not be opened: the address and the system's reason are in the text."""


def _loop_turns() -> tuple[bool, str]:
    return True, "the event loop turns"


class HealthServer:
    """Serves the three pages from `start()` to `close()`.

    Args:
        page: what /metrics shows.
        ready: the answer of /readyz.
        live: the answer of /livez.
        connection_s: see `CONNECTION_S`.
    """

    def __init__(
        self, page: MetricsPage, ready: Check, live: Check = _loop_turns, *, connection_s: float = CONNECTION_S
    ) -> None:
        self._page = page
        self._checks = {"/readyz": ready, "/livez": live}
        self._connection_s = connection_s
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def port(self) -> int:
        """The port listened at; 0 before `start()`."""
        return self._port

    async def start(self, host: str, port: int) -> None:
        """Listen at `host:port`; port 0 takes any free one.

        Raises:
            HealthListenError: the address is in use or not of this machine; nothing is left open.
        """
        try:
            self._listener = await asyncio.start_server(self._accept, host, port, backlog=128)
        except OSError as error:
            raise HealthListenError(
                f"health port: cannot listen at {host}:{port}: {error.strerror or error}"
            ) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening; answers that are being written have a second. Does nothing when not started."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._connections - self._answering:
            connection.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=_CLOSE_S)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(self._answering.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request, within the longest life of a connection."""
        try:
            async with asyncio.timeout(self._connection_s):
                await self._answer_one(reader, writer)
            writer.close()
        except (OSError, TimeoutError):
            writer.transport.abort()  # a peer that reads slowly must not hold a page any longer
        except Exception:
            _log.exception("health port: an answer failed")
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            raise

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = None
        try:
            request = await read_request(reader)
            if request is None:
                return
            page = await self._page_of(request)
        except BadRequestError as error:
            _log.warning("health port: %s", error)
            page = _text(error.status, str(error))
        except Exception as error:
            _log.exception("health port: the page cannot be made")
            page = _text(HTTPStatus.INTERNAL_SERVER_ERROR, repr(error))
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            await write_page(writer, request, page)
        finally:
            self._answering.discard(task)
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(1 << 16):
                pass

    async def _page_of(self, request: Request) -> Page:
        if request.path == "/metrics":
            return await self._metrics(request)
        check = self._checks.get(request.path)
        if check is None:
            return _text(HTTPStatus.NOT_FOUND, "the pages are /livez, /readyz and /metrics")
        return _answer(check)

    async def _metrics(self, request: Request) -> Page:
        headers = [("Vary", "Accept-Encoding")]
        if request.method == "HEAD":
            return Page(HTTPStatus.OK, CONTENT_TYPE, None, headers)
        pieces = self._page()
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            headers.append(("Content-Encoding", "gzip"))
            pieces = compressed(pieces)
        first = await anext(pieces, b"")  # a page that fails before its head is written is answered with 500
        return Page(HTTPStatus.OK, CONTENT_TYPE, _chained(first, pieces), headers)


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _takes_gzip(accepted: str) -> bool:
    for word in accepted.lower().split(","):
        coding, _, weight = word.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _text(status: HTTPStatus, detail: str) -> Page:
    return Page(status, _TEXT, f"{status.value}: {detail}\n".encode())


def _answer(check: Check) -> Page:
    try:
        ok, detail = check()
    except Exception as error:
        ok, detail = False, f"the check failed: {error!r}"
    body = json.dumps({"ok": ok, "detail": detail})
    return Page(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE, _JSON, body.encode())
