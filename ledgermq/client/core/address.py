"""Addresses of nameservers as users write them (`host:port`, several joined by `;` or `,`), and our own address.

Brokers know a client by its client id, `ip@pid#nonce`: they count the members of a group by it, and all members sort
the ids to share out queues. It must be unique, and the same on all connections.

Source: apache/rocketmq `client/.../ClientConfig.java` (buildMQClientId, changeInstanceNameToPID).
"""

import os
import socket
import time
from collections.abc import Iterable

from ledgermq.client.core.checks import check_no_bytes, check_text
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting import addresses
from ledgermq.remoting.errors import ConnectError


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[IPv6]:port`.

    Raises:
        InvalidArgumentError: no port, not a port number, or a URL; names the address.
    """
    if "://" in address:
        raise InvalidArgumentError(f"address {address!r} is a URL: write host:port only, for example 127.0.0.1:9876")
    try:
        return addresses.split_address(address.strip())
    except ConnectError:
        raise InvalidArgumentError(f"address {address!r} is not of the form host:port") from None


def parse_addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the nameserver addresses in the order given, each once.

    Raises:
        InvalidArgumentError: there is none, or one is malformed; names it.
    """
    check_no_bytes(namesrv=given)
    try:
        parts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    except TypeError:
        raise InvalidArgumentError(f"no nameserver address in {given!r}") from None
    for part in parts:
        check_text(part, "nameserver address")
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise InvalidArgumentError(f"no nameserver address in {given!r}")
    for address in found:
        split_address(address)
    return found


LOOPBACK = "127.0.0.1"


def local_address_towards(address: str) -> str:
    """Return this machine's IP address for packets to `address` (`host:port`); loopback without a route.

    A datagram socket is connected for that, which sends nothing.
    """
    host, port = split_address(address)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def make_client_id(own_address: str, instance: str | None = None) -> str:
    """Return the client id of the named instance at this address.

    Without a name it is a new id, unique in this process and, by address and process id, beyond it.
    """
    return f"{own_address}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"
