"""The header in which a proxy (HAProxy, a cloud's load balancer) names its client. No I/O.

    text     PROXY TCP4 192.0.2.7 10.0.0.1 40000 10911 CR LF          or TCP6, or UNKNOWN with anything behind it
    binary   12 bytes of a signature | version 2, command | family | length u16 | addresses, further parts

It is trusted only from the addresses in the configuration (`Limits.proxies`).

Source: the specification of the PROXY protocol, versions 1 and 2, by HAProxy's authors.
"""

import ipaddress
import struct
from dataclasses import dataclass
from typing import Final

from ledgermq.message.hosts import Host
from ledgermq.remoting.errors import RemotingError

HEADER_MAX: Final = 1024
"""Most bytes of a header; the addresses take 107 at most."""

_TEXT: Final = b"PROXY "
_TEXT_MAX: Final = 107
_BINARY: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED: Final = struct.Struct(">12sBBH")
_VERSION_2: Final = 2
_LOCAL: Final = 0
_PROXIED: Final = 1
_ADDRESSES: Final = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}  # TCP over IPv4, over IPv6
_FAMILIES: Final = {b"TCP4": 4, b"TCP6": 6}


class ProxyHeaderError(RemotingError):
    """A proxy's header cannot be read."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A header of `size` bytes; `client` is None if the proxy names no client or speaks for itself."""

    size: int
    client: Host | None


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Read the header at the beginning of `data`; None if there is none.

    Raises:
        ProxyHeaderError: it is incomplete (it must arrive at once), longer than `HEADER_MAX`, or malformed.
    """
    if data.startswith(_TEXT):
        return _text(data)
    if data.startswith(_BINARY):
        return _binary(data)
    return None


def _text(data: bytes) -> ProxyHeader:
    line, end, _ = data[:_TEXT_MAX].partition(b"\r\n")
    words = line.split(b" ")
    if not end:
        raise ProxyHeaderError("a proxy's header does not end")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(len(line) + 2, None)
    try:
        _, family, source, _, port, _ = words
        address = ipaddress.ip_address(source.decode())
        if address.version != _FAMILIES[family] or not port.isdigit():
            raise ValueError
        return ProxyHeader(len(line) + 2, _host(address, int(port)))
    except (ValueError, KeyError) as error:
        raise ProxyHeaderError(f"a proxy's header cannot be read: {line[:_TEXT_MAX]!r}") from error


def _binary(data: bytes) -> ProxyHeader:
    if len(data) < _FIXED.size:
        raise ProxyHeaderError("a proxy's header does not end")
    _, version, family, length = _FIXED.unpack_from(data)
    size = _FIXED.size + length
    if size > min(len(data), HEADER_MAX):
        raise ProxyHeaderError(f"a proxy's header has {size} bytes, of which {len(data)} came, {HEADER_MAX} at most")
    command = version & 0x0F
    if version >> 4 != _VERSION_2 or command not in (_LOCAL, _PROXIED):
        raise ProxyHeaderError(f"a proxy's header has version and command {version:#x}")
    addresses = _ADDRESSES.get(family)
    if command == _LOCAL or addresses is None:
        return ProxyHeader(size, None)
    if length < addresses.size:
        raise ProxyHeaderError(f"a proxy's header has {length} bytes of addresses")
    source, _, port, _ = addresses.unpack_from(data, _FIXED.size)
    return ProxyHeader(size, _host(ipaddress.ip_address(source), port))


def _host(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> Host:
    if not 0 <= port <= 0xFFFF:
        raise ProxyHeaderError(f"a proxy's header names port {port}")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Host(str(mapped or address), port)
