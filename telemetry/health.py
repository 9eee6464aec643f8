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
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from telemetry.metrics import CONTENT_TYPE
from telemetry.pages import compressed

Check = Callable[[], tuple[bool, str]]
"""Returns whether the process is healthy, and a sentence of detail. Called on the loop's thread; must be fast."""


Page = Callable[[], AsyncIterator[bytes]]
"""Yields the page of /metrics in pieces."""


CONNECTIONS_MAX: Final = 256
"""Most open connections; a further one is closed at once."""

CONNECTION_S: Final = 60.0
"""Longest life of a connection, in seconds."""


class _NoHttp(logging.Filter):
    """Logs input that is not HTTP as one line instead of a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info, record.args = None, None
            record.msg = f"health port: a request that is no HTTP: {' '.join(error.message.split())[:200]}"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


_http_log: Final = logging.getLogger(__name__ + ".http")
_http_log.addFilter(_NoHttp())


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
        self, page: Page, ready: Check, live: Check = _loop_turns, *, connection_s: float = CONNECTION_S
    ) -> None:
        self._page = page
        self._ready = ready
        self._live = live
        self._connection_s = connection_s
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
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
        app = web.Application()
        app.on_response_prepare.append(_close_after)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0, logger=_http_log)
        await runner.setup()
        self._runner = runner
        try:
            self._listener = await asyncio.get_running_loop().create_server(self._connection, host, port, backlog=128)
        except OSError as error:
            self._runner = None
            await runner.cleanup()
            raise HealthListenError(
                f"health port: cannot listen at {host}:{port}: {error.strerror or error}"
            ) from error
        self._port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening; does nothing when not started."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = self._listener = None

    def _connection(self) -> asyncio.Protocol:
        server = None if self._runner is None else self._runner.server
        if server is None or len(server.connections) >= CONNECTIONS_MAX:
            return _Refused()
        connection = server()
        asyncio.get_running_loop().call_later(self._connection_s, connection.force_close)
        return connection

    async def _livez(self, request: web.Request) -> web.Response:
        return _answer(self._live)

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self._ready)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"})
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        pieces = self._page()
        if _takes_gzip(request.headers.get("Accept-Encoding", "")):
            response.headers["Content-Encoding"] = "gzip"
            pieces = compressed(pieces)
        transport = request.transport
        try:
            async with asyncio.timeout(self._connection_s):
                await _stream(pieces, request, response)
        except TimeoutError:
            if transport is not None:
                transport.abort()  # who reads so slowly must not hold the page any longer
        return response


async def _stream(pieces: AsyncIterator[bytes], request: web.Request, response: web.StreamResponse) -> None:
    first = await anext(pieces, b"")  # what fails before it is answered with 500
    await response.prepare(request)
    await response.write(first)
    async for piece in pieces:
        await response.write(piece)
    await response.write_eof()


def _takes_gzip(accepted: str) -> bool:
    for word in accepted.lower().split(","):
        coding, _, weight = word.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Refused(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _close_after(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


def _answer(check: Check) -> web.Response:
    try:
        ok, detail = check()
    except Exception as error:
        ok, detail = False, f"the check failed: {error!r}"
    body = json.dumps({"ok": ok, "detail": detail})
    return web.Response(text=body, status=200 if ok else 503, content_type="application/json")
