"""Health over HTTP, on a port of its own: what an orchestrator, a compose file or Prometheus asks a process.

    GET /livez    200 while the process can work at all (nothing remote is asked); else 503
    GET /readyz   200 once it can serve, 503 with the reason until then
    GET /metrics  Prometheus text

The bodies of the first two are `{"ok": true, "detail": "..."}`. That an answer comes at all shows that the
event loop turns.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ledgermq.telemetry.metrics import CONTENT_TYPE

Check = Callable[[], tuple[bool, str]]
"""Says whether it is well, and one sentence of detail. Called on the loop's thread; must be quick."""


Page = Callable[[], Awaitable[bytes]]
"""Makes the page of /metrics."""


class _NoHttp(logging.Filter):
    """What somebody sent that is no HTTP is a line, not a traceback."""

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
    """

    def __init__(self, page: Page, ready: Check, live: Check = _loop_turns) -> None:
        self._page = page
        self._ready = ready
        self._live = live
        self._runner: web.AppRunner | None = None
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
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0, logger=_http_log)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise HealthListenError(
                f"health port: cannot listen at {host}:{port}: {error.strerror or error}"
            ) from error
        self._runner = runner
        self._port = runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; does nothing when not started."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    async def _livez(self, request: web.Request) -> web.Response:
        return _answer(self._live)

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self._ready)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._page(), headers={"Content-Type": CONTENT_TYPE})


def _answer(check: Check) -> web.Response:
    try:
        ok, detail = check()
    except Exception as error:
        ok, detail = False, f"the check failed: {error!r}"
    body = json.dumps({"ok": ok, "detail": detail})
    return web.Response(text=body, status=200 if ok else 503, content_type="application/json")
