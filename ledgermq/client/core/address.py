"""Addresses as users write them: `host:port`, several joined by `;` or `,`."""

from collections.abc import Iterable

from ledgermq.client.core.checks import check_no_bytes, check_text
from ledgermq.client.errors import InvalidArgumentError

PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`.

    Raises:
        InvalidArgumentError: no port, or not a port number.
    """
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise InvalidArgumentError(f"address {address!r} is not of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """Nameserver addresses in the order given, each once.

    Raises:
        InvalidArgumentError: none at all, or one is malformed; names it.
    """
    check_no_bytes(namesrv=given)
    try:
        parts = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
    except TypeError:
        raise InvalidArgumentError(f"no nameserver address in {given!r}") from None
    for part in parts:
        check_text(part, "nameserver address")
    addresses = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise InvalidArgumentError(f"no nameserver address in {given!r}")
    for address in addresses:
        split_address(address)
    return addresses
