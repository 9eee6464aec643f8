"""The address of this machine that others dial: configured, or chosen here.

No rule is right for every machine with a container bridge or a second network, so the choice is always printed with its
reason and the other candidates.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915
_ANYWHERE = "203.0.113.1"  # documentation address: only its route is looked up, nothing is sent
_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """An IPv4 address of this machine, and its interface."""

    address: str
    interface: str

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A host, the reason for it, and the other candidates (empty when it was configured)."""

    host: str
    reason: str
    others: tuple[InterfaceAddress, ...] = ()

    def sentence(self, what: str, key: str) -> str:
        """Return a line for the user: `what` is the address' purpose, `key` the configuration key that sets it."""
        text = f"{what} address {self.host}: {self.reason}"
        if not self.others:
            return text
        return f"{text}; other candidates: {', '.join(map(str, self.others))}; set {key} to choose"


def list_candidates() -> list[InterfaceAddress]:
    """Return the IPv4 addresses of this machine's interfaces that have one, loopback last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(InterfaceAddress(socket.inet_ntoa(answer[20:24]), interface))
    return sorted(found, key=lambda candidate: ipaddress.ip_address(candidate.address).is_loopback)


def choose_host(
    listen_host: str, towards: Sequence[str] = (), candidates: Sequence[InterfaceAddress] | None = None
) -> HostChoice:
    """Choose the host that others should dial.

    Args:
        listen_host: where the process listens; when it is one address, there is no choice.
        towards: `host:port` of those it will talk to, such as nameservers; the address on the way to the first one
            that is given by number is preferred.
        candidates: of this machine; looked up when None.
    """
    if listen_host not in _WILDCARDS:
        return HostChoice(listen_host, "the process listens there only (bindAddress)")
    candidates = list_candidates() if candidates is None else candidates
    for place in towards:
        host = place.rpartition(":")[0]
        if (local := _local_address_towards(host)) is not None:
            return _choice(local, f"it is on the way to {place}", candidates)
    if (local := _local_address_towards(_ANYWHERE)) is not None:
        return _choice(local, "it is on the way out of this machine", candidates)
    first = candidates[0].address if candidates else "127.0.0.1"
    return _choice(first, "no way out of this machine was found", candidates)


def _choice(host: str, reason: str, candidates: Sequence[InterfaceAddress]) -> HostChoice:
    return HostChoice(host, f"chosen, {reason}", tuple(c for c in candidates if c.address != host))


def _local_address_towards(host: str) -> str | None:
    """Return our address on the way to a host given by number; None when there is no way, or the host is a name."""
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return address
