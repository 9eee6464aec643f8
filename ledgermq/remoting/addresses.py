"""Addresses in configuration and of sockets."""

import ipaddress
import re
from typing import Final

from ledgermq.message.hosts import Host
from ledgermq.remoting.errors import ConnectError

_PORT: Final = re.compile("[0-9]{1,5}")


def is_port(text: str) -> bool:
    """Return whether the text is a decimal number from 1 to 65535, of at most five digits."""
    return _PORT.fullmatch(text) is not None and 0 < int(text) < 65536


def split_address(address: str) -> tuple[str, int]:
    """Return host (name or address) and port of `host:port` or `[IPv6]:port`.

    Raises:
        ConnectError: another form, or a port outside 1 to 65535.
    """
    host, _, port = address.rpartition(":")
    if not host or not is_port(port):
        raise ConnectError(address, "not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether `host` reaches only this machine; names other than localhost are not resolved."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def plain_host(name: tuple[str, int, int, int] | tuple[str, int] | None) -> Host:
    """Return address and port of a socket name, without IPv6 scope; an IPv4-mapped address becomes IPv4.

    None, the name of a closed socket, becomes an empty address.
    """
    if name is None:
        return Host("", 0)
    return Host(name[0].partition("%")[0].removeprefix("::ffff:"), name[1])
