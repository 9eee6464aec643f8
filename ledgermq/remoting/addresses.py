"""Addresses as people and sockets write them."""

from ledgermq.message.hosts import Host
from ledgermq.remoting.errors import ConnectError


def split_address(address: str) -> tuple[str, int]:
    """Host (name or address) and port of `host:port` or `[IPv6]:port`.

    Raises:
        ConnectError: another form, or a port outside 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port[:6]) <= 65535:
        raise ConnectError(address, "not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def plain_host(name: tuple[str, int, int, int] | tuple[str, int] | None) -> Host:
    """A socket's name without scope, and without the IPv6 wrapping of an IPv4 address; None is a closed socket's."""
    if name is None:
        return Host("", 0)
    return Host(name[0].partition("%")[0].removeprefix("::ffff:"), name[1])
