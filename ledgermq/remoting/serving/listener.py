"""Where a server listens for clients, and where it serves its health: the same keys for every kind of server."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, Self

from ledgermq.remoting.addresses import is_loopback
from ledgermq.remoting.config_key import NETTY, OURS, PORT, PORT_OR_OFF, TEXT, key

_HEALTH: Final = "/livez, /readyz and /metrics"


class Startable(Protocol):
    """A server with a listening address."""

    async def start(self, host: str, port: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerKeys:
    """Hosts and ports of one server. A port is 0 to 65535; 0 means any free one."""

    ORIGIN: ClassVar[str] = NETTY

    host: str = key("bindAddress", TEXT, "0.0.0.0", "Address of this machine at which the process listens.")
    port: int = key(
        "listenPort",
        PORT,
        0,
        "Port at which clients are served.",
        shown="<10911, for a nameserver 9876> or <this controller's in controllerDLegerPeers>",
    )
    health_host: str = key(
        "healthHost",
        TEXT,
        "0.0.0.0",
        f"Address at which {_HEALTH} are served over HTTP.",
        shown="<bindAddress>",
        origin=OURS,
    )
    health_port: int | None = key(
        "healthPort", PORT_OR_OFF, None, f"Port of {_HEALTH}; off serves none.", shown="<listenPort + 5>", origin=OURS
    )

    def with_port(self) -> Self:
        """Return the same keys with a port that is free now, if it was 0."""
        if self.port:
            return self
        with socket.create_server((self.host, 0)) as server:
            return replace(self, port=server.getsockname()[1])

    def port_above(self, distance: int) -> int:
        """Return the port `distance` above the clients' port; 0 if that is any free one."""
        return self.port and self.port + distance

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the clients' port."""
        return is_loopback(self.host)

    async def open(self, server: Startable, above: int = 0) -> None:
        """Start a server `above` the clients' port. Raises `OSError`: the port cannot be bound."""
        await server.start(self.host, self.port + above)

    async def open_health(self, server: Startable) -> None:
        """Start a server at the health port, unless that is off; raises the server's errors."""
        if self.health_port is not None:
            await server.start(self.health_host, self.health_port)

    def problems(self, *others: tuple[str, int]) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` for each port that is used twice; `others` are further ports by key, 0 for none."""
        taken: dict[int, str] = {}
        for name, port in (("listenPort", self.port), ("healthPort", self.health_port or 0), *others):
            if port and taken.setdefault(port, name) != name:
                yield name, f"port {port} is also taken by {taken[port]}"
