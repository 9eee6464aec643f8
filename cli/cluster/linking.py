"""Toxiproxy as a child of `cluster up`, and the verbs that cut, delay and heal links."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cli.cluster.child import Child, program
from cli.cluster.plan import ClusterPlan
from node.errors import CommandError

if TYPE_CHECKING:
    from chaos.fabric.links import Links

_DELAY_MAX_MS = 60_000
_STOP_LIMIT_S = 5.0
# Python runs this code and becomes the server, which ends with this process.
_RUN = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); from cli.lifeline import die_with_parent;"
    " die_with_parent(int(sys.argv[2])); os.execv(sys.argv[3], sys.argv[3:])"
)
_ROOMS = str(Path(__file__).resolve().parents[2])


def require_toxiproxy() -> None:
    """Check that Toxiproxy's server and its Python client are installed.

    Raises:
        CommandError: one is not; the text has the command that installs it.
    """
    _links_module().find_server()


def has_toxiproxy() -> bool:
    """Return whether Toxiproxy's server and its Python client are installed."""
    try:
        require_toxiproxy()
    except CommandError:
        return False
    return True


class Linking:
    """The links of one cluster.

    Args:
        plan: has at least one link.
        on_exit: called when Toxiproxy ends.
    """

    def __init__(self, plan: ClusterPlan, on_exit: Callable[[Child], None]) -> None:
        module = _links_module()
        host, _, port = plan.links_api.rpartition(":")
        server = [module.find_server(), "-host", host, "-port", port]
        argv = [sys.executable, "-P", "-c", _RUN, _ROOMS, str(os.getpid()), *server]
        self.child = Child("toxiproxy", program(argv), plan.directory / "toxiproxy.log", on_exit)
        self._links: Links = module.Links(plan.links_api, plan.links)
        self._one_at_a_time = asyncio.Lock()

    async def start(self) -> None:
        """Start the server and create the proxies, before the brokers dial.

        Raises:
            CommandError: it does not answer.
        """
        self.child.start()
        await asyncio.to_thread(self._links.create)

    async def stop(self) -> None:
        """End the server."""
        await self.child.stop(_STOP_LIMIT_S)

    async def change(self, verb: str, words: Sequence[str]) -> str:
        """Carry out `cut`, `delay` or `heal`; `heal` without a link heals all. Return the proof.

        Raises:
            CommandError: a link is not there, or the change had no effect.
        """
        async with self._one_at_a_time:
            if verb == "cut":
                return await asyncio.to_thread(self._links.cut, words)
            if verb == "delay":
                delay_ms = int(words[0]) if words and words[0].isdecimal() else -1
                if not 0 < delay_ms <= _DELAY_MAX_MS:
                    raise CommandError(f"delay takes 1 to {_DELAY_MAX_MS} ms, then links")
                return await asyncio.to_thread(self._links.delay, words[1:], delay_ms)
            if not words:
                await asyncio.to_thread(self._links.heal_all)
                return "Toxiproxy changes nothing"
            return await asyncio.to_thread(self._links.heal, words)


def _links_module() -> ModuleType:
    try:
        from chaos.fabric import links
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed: pip install 'ledgermq-server[chaos]'") from None
    return links
