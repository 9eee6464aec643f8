"""Addresses as users write them: `host:port`, several joined by `;` or `,`."""

from collections.abc import Iterable

from ledgermq.client.core.checks import check_no_bytes, check_text
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting import addresses
from ledgermq.remoting.errors import ConnectError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[IPv6]:port`.

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
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise InvalidArgumentError(f"no nameserver address in {given!r}")
    for address in found:
        split_address(address)
    return found
