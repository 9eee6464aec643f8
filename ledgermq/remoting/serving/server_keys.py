"""Configuration keys that every kind of server has, each declared once: where it listens and shows its health."""

from typing import Any, Final

from ledgermq.remoting.config_key import NETTY, OURS, PORT_OR_OFF, TEXT, key

_HEALTH: Final = "/livez, /readyz and /metrics"


def listen_host_key() -> Any:
    """A `str`: the address of this machine."""
    return key("bindAddress", TEXT, "0.0.0.0", "Address of this machine at which the process listens.", origin=NETTY)


def health_host_key() -> Any:
    """A `str`: the address of the health listener."""
    text = f"Address at which {_HEALTH} are served over HTTP."
    return key("healthHost", TEXT, "0.0.0.0", text, shown="<bindAddress>", origin=OURS)


def health_port_key() -> Any:
    """An `int`, or None for no health listener."""
    text = f"Port of {_HEALTH}; off serves none."
    return key("healthPort", PORT_OR_OFF, None, text, shown="<listenPort + 5>", origin=OURS)
