"""One broker, nameserver or controller as this process, in the foreground, until SIGTERM or Ctrl-C.

    configuration -> node.start() -> ready line -> signal -> node.close()

A signal during the start ends the start. At the stop the node answers what waits, flushes, and closes its files.
"""

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import uvloop

from node.errors import CommandError, UsageError
from telemetry.collector import without_collections
from telemetry.descriptors import allow_all_descriptors

_CLOSE_LIMIT_S = 10.0
_SWITCH_S = 0.001
"""Seconds for which another thread's Python code may keep the loop waiting. Python's default of 5 ms would be spent in
each turn of the loop while a thread writes large tables."""

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_ESCAPES: Final = {
    number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
    for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Control characters, line separators, and those that change the direction of writing."""

_log = logging.getLogger(__name__)


class OneLineFormatter(logging.Formatter):
    """Escapes in the message what would begin a new line or move a terminal's cursor; tracebacks keep their lines."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        record.message = record.message.translate(_ESCAPES)
        return super().formatMessage(record)


class RunnableNode(Protocol):
    """A broker, a nameserver or a controller."""

    async def start(self) -> None:
        """Recover and listen."""

    async def close(self) -> None:
        """Stop in order."""


def run_broker(conf: str | None, overrides: Sequence[str]) -> int:
    """Run a broker of this configuration.

    Raises:
        UsageError: the configuration is wrong.
        CommandError: it cannot start: a port in use, another node's data, a full disk.
    """
    with without_collections():
        from node.broker_assembly import Broker
        from node.config import load_broker_config
        from node.kept_settings import KeptSettings
        from store.errors import StoreError

    config = load_broker_config(_path(conf), overrides)
    try:
        kept = KeptSettings(config)
    except (OSError, StoreError) as error:
        raise CommandError(str(error)) from error
    kept.apply(config)
    return _run(lambda: Broker(config, kept.keep), f"broker {config.broker.broker_name}", config.notices)


def run_nameserver(conf: str | None, overrides: Sequence[str]) -> int:
    """Run a nameserver of this configuration.

    Raises:
        UsageError: the configuration is wrong.
        CommandError: it cannot start.
    """
    with without_collections():
        from nameserver.server import NameServer
        from node.config import load_nameserver_config

    config = load_nameserver_config(_path(conf), overrides)
    return _run(lambda: NameServer(config), "nameserver", config.notices)


def run_controller(conf: str | None, overrides: Sequence[str]) -> int:
    """Run a controller of this configuration.

    Raises:
        UsageError: the configuration is wrong.
        CommandError: it cannot start, or the agreement of the controllers failed in this process.
    """
    with without_collections():
        from ha.controller.server import Controller
        from node.config import load_controller_config

    config = load_controller_config(_path(conf), overrides)
    return _run(lambda: Controller(config), f"controller {config.self_id}", config.notices)


def _path(conf: str | None) -> Path | None:
    if conf is None:
        return None
    path = Path(conf)
    if not path.is_file():
        raise UsageError(f"-c {conf}: no such file")
    return path


def _run(make: Callable[[], RunnableNode], name: str, notices: Sequence[str]) -> int:
    allow_all_descriptors()
    os.umask(0o077)  # messages and passwords are nobody else's on this machine
    sys.setswitchinterval(_SWITCH_S)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for notice in notices:  # choices made for the user, and keys that have no effect here
        _log.info("%s", notice)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(make(), name))
        except _start_errors() as error:
            raise CommandError(_explain(error)) from error
    return 0


def _start_errors() -> tuple[type[Exception], ...]:
    """Return the errors that are explained in one line; any other one is a bug and shows its traceback."""
    from dledger.errors import DLedgerError
    from ha.controller.errors import QuorumError
    from ha.errors import HaError
    from ledgermq.remoting.errors import RemotingError
    from ledgermq.remoting.refusal import Refusal
    from store.errors import StoreError
    from telemetry.health import HealthListenError

    return OSError, StoreError, DLedgerError, HaError, QuorumError, RemotingError, Refusal, HealthListenError


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{error.strerror or error}; choose another port"
    return str(error)


async def _serve(node: RunnableNode, name: str) -> None:
    stopped = stop_signal()
    started = asyncio.ensure_future(node.start())
    await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if started.done():
            started.result()
            print(f"{name} is up", flush=True)
            await stopped
        else:
            started.cancel()
            await asyncio.wait({started})
    finally:
        await _close(node)


async def _close(node: RunnableNode) -> None:
    """Stop in order; after the limit print the stack of each task that still runs.

    Raises:
        CommandError: the stop was not finished within the limit.
    """
    try:
        async with asyncio.timeout(_CLOSE_LIMIT_S):
            await node.close()
    except TimeoutError:
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stdout)
        raise CommandError(
            f"the stop was not finished within {_CLOSE_LIMIT_S:g} s; what it waited for is above"
        ) from None


def stop_signal() -> "asyncio.Future[None]":
    """Return a future of the running loop, done at the first SIGTERM or SIGINT; further ones change nothing."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived)
    return stopped
