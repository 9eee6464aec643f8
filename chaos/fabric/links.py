"""Links between brokers, cut and delayed by Toxiproxy: one proxy for each pair of a dialer and a listener.

    a --dials--> proxy a-b --> b      what a sends on it is the proxy's upstream, what b sends its downstream

What one broker sends to another may take two connections: the one that it dialed (upstream) and the one that the other
dialed (downstream). A cut drops these bytes on both, and none in the other direction. When it ends, Toxiproxy closes
the connections, and the brokers dial again.

Each change is proven by probes through the proxies, which show whether the listener hears and is heard.
"""

import contextlib
import math
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import requests
from toxiproxy import Toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists
from toxiproxy.proxy import Proxy

from chaos.fabric.contract import Link
from node.errors import CommandError

INSTALL = "go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"
_VARIABLE = "TOXIPROXY_SERVER"
_SILENCE_S = 0.25
_PROBE_LIMIT_S = 3.0
_START_LIMIT_S = 10.0
_POLL_S = 0.02


def find_server() -> str:
    """Return the path of Toxiproxy's server: $TOXIPROXY_SERVER, on the PATH, or where `go install` puts it.

    Raises:
        CommandError: it is not installed; the text has the command that installs it.
    """
    go_path = Path(os.environ.get("GOPATH", Path.home() / "go"))
    named = os.environ.get(_VARIABLE)
    installed = Path(os.environ.get("GOBIN", go_path / "bin")) / "server"
    found = named or shutil.which("toxiproxy-server") or (str(installed) if installed.is_file() else None)
    if found is None or not os.access(found, os.X_OK):
        raise CommandError(f"Toxiproxy's server is not here: {INSTALL}, or set {_VARIABLE} to its path")
    told = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=_START_LIMIT_S)
    if "toxiproxy" not in told.stdout + told.stderr:
        raise CommandError(f"{found} is not Toxiproxy's server: {INSTALL}, or set {_VARIABLE} to its path")
    return found


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction of one link: `stream` is Toxiproxy's word."""

    link: Link
    stream: str

    def __str__(self) -> str:
        return f"{self.link.name} {self.stream}"


class Links:
    """The proxies of a running Toxiproxy server. Its calls block; use one thread at a time.

    Args:
        api: `host:port` of the server. Toxiproxy's client knows one server per process.
        links: all links.
    """

    def __init__(self, api: str, links: Sequence[Link]) -> None:
        host, _, port = api.rpartition(":")
        self._api = api
        self._server = Toxiproxy()
        self._server.update_api_consumer(host, int(port))
        self._links = {link.name: link for link in links}
        self._proxies: dict[str, Proxy] = {}
        self._changed: set[_Way] = set()

    def create(self) -> None:
        """Wait for the server and create the proxies.

        Raises:
            CommandError: it does not answer, or refuses.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while not self._server.running():
            if time.monotonic() > deadline:
                raise CommandError(f"Toxiproxy does not answer at {self._api}")
            time.sleep(_POLL_S)
        with _as_command_error():
            for link in self._links.values():
                proxy = self._server.create(upstream=link.upstream, name=link.name, listen=link.listen)
                self._proxies[link.name] = proxy

    def adopt(self) -> None:
        """Take over the proxies of a server that has them already, with their present toxics.

        Raises:
            CommandError: it does not answer, or lacks one.
        """
        with _as_command_error():
            proxies = self._server.proxies()
            for link in self._links.values():
                if link.name not in proxies:
                    raise CommandError(f"Toxiproxy at {self._api} has no proxy {link.name}")
                self._proxies[link.name] = proxies[link.name]
                self._changed.update(_Way(link, stream) for stream in proxies[link.name].toxics())

    def cut(self, pairs: Sequence[str]) -> str:
        """Drop what A sends to B, for each pair `A>B`; return the proof.

        Raises:
            CommandError: there is no such link, bytes still pass, or a proxy takes no connection.
        """
        ways = self._ways(pairs)
        self._put(ways, "timeout", {"timeout": 0})
        for way, after_s in self._crossings(ways, _SILENCE_S):
            if after_s < math.inf:
                raise CommandError(f"{way} still passes bytes, {1000 * after_s:.0f} ms after it was cut")
        return f"no byte passed {len(ways)} streams of proxies within {1000 * _SILENCE_S:.0f} ms"

    def delay(self, pairs: Sequence[str], delay_ms: int) -> str:
        """Delay what A sends to B by so many ms, for each pair `A>B`; return the proof.

        Raises:
            CommandError: there is no such link, bytes pass sooner or not at all, or a proxy takes no connection.
        """
        ways = self._ways(pairs)
        self._put(ways, "latency", {"latency": delay_ms})
        crossings = self._crossings(ways, _PROBE_LIMIT_S)
        for way, after_s in crossings:
            if not delay_ms <= 1000 * after_s < math.inf:
                raise CommandError(f"{way} passes bytes after {1000 * after_s:.0f} ms, not after {delay_ms} ms")
        least_ms = 1000 * min(after_s for _, after_s in crossings)
        return f"bytes took {least_ms:.0f} ms or more on {len(ways)} streams of proxies"

    def heal(self, pairs: Sequence[str]) -> str:
        """Undo cuts and delays of what A sends to B, for each pair `A>B`; return the proof.

        Raises:
            CommandError: there is no such link.
        """
        ways = self._ways(pairs)
        self._remove([way for way in ways if way in self._changed])
        with _as_command_error():
            left = [str(way) for way in ways if way.stream in self._proxies[way.link.name].toxics()]
        if left:
            raise CommandError(f"Toxiproxy has not removed what changed {', '.join(left)}")
        return f"Toxiproxy changes nothing on {len(ways)} streams of proxies"

    def heal_all(self) -> None:
        """Undo everything, also changes whose answers were lost.

        Raises:
            CommandError: Toxiproxy does not answer, or refuses.
        """
        with _as_command_error():
            self._server.reset()
        self._changed.clear()

    def _ways(self, pairs: Sequence[str]) -> list[_Way]:
        """Return the directions of links by which bytes from A reach B, for each pair `A>B`."""
        ways: list[_Way] = []
        for pair in pairs:
            source, _, target = pair.partition(">")
            names = ((f"{source}-{target}", "upstream"), (f"{target}-{source}", "downstream"))
            mine = [_Way(self._links[name], stream) for name, stream in names if name in self._links]
            if not mine:
                raise CommandError(f"there is no link {pair!r}: write SOURCE>TARGET with two brokers of this cluster")
            ways += mine
        return ways

    def _put(self, ways: Sequence[_Way], kind: str, attributes: dict[str, int]) -> None:
        self._remove([way for way in ways if way in self._changed])
        for way in ways:
            with _as_command_error():
                self._proxies[way.link.name].add_toxic(
                    type=kind, stream=way.stream, name=way.stream, attributes=attributes
                )
            self._changed.add(way)

    def _remove(self, ways: Sequence[_Way]) -> None:
        for way in ways:
            with _as_command_error():
                self._proxies[way.link.name].destroy_toxic(way.stream)
            self._changed.discard(way)

    def _crossings(self, ways: Sequence[_Way], limit_s: float) -> list[tuple[_Way, float]]:
        """Return for each way the seconds that a byte needed to cross it; infinity: longer than `limit_s`.

        Raises:
            CommandError: a proxy takes no connection.
        """
        with ThreadPoolExecutor(len(ways)) as threads:
            return list(zip(ways, threads.map(lambda way: _crossing_s(way, limit_s), ways), strict=True))


def _crossing_s(way: _Way, limit_s: float) -> float:
    """Return the seconds until the listener is heard (downstream), or has closed the connection (upstream).

    Raises:
        CommandError: the proxy accepts no connection, which proves nothing about bytes.
    """
    host, _, port = way.link.listen.rpartition(":")
    began_s = time.monotonic()
    try:
        connection = socket.create_connection((host, int(port)), limit_s)
    except OSError as error:
        raise CommandError(f"{way} was not tried: no connection to {way.link.listen}: {error}") from error
    try:
        with connection as probe:
            probe.sendall(way.link.probe)
            while (left_s := began_s + limit_s - time.monotonic()) > 0:
                probe.settimeout(left_s)
                word = probe.recv(4096)
                if not word or way.stream == "downstream":
                    return time.monotonic() - began_s if bool(word) == (way.stream == "downstream") else math.inf
    except TimeoutError:
        return math.inf
    except OSError:  # a reset: the listener closed the connection with bytes unread
        return time.monotonic() - began_s if way.stream == "upstream" else math.inf
    return math.inf


@contextlib.contextmanager
def _as_command_error() -> Iterator[None]:
    """Turn an error of Toxiproxy's client into a CommandError."""
    try:
        yield
    except (requests.RequestException, ProxyExists, NotFound, InvalidToxic, ValueError) as error:
        raise CommandError(f"Toxiproxy: {error}") from error
