"""Quotas: how much one address, or one user, may ask of a server in a second. No I/O: the time is an argument.

    traffic(address, user, bytes, requests, now) -> seconds for which nothing more is read from that connection

The rule is Kafka's. What was read is served and answered; then the connection is not read until the excess is paid off,
so that a client sees slow answers and no errors. The rate holds for all connections of an address or user together.
One-way requests count like others. An IPv6 address counts with its 64-bit network, all of which one machine may use.

A quota of 0 means no limit. Unused bytes and requests are saved up for one second, connects and creations for ten.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from ledgermq.remoting.config_key import NOT_NEGATIVE, NOT_NEGATIVE_LONG, OURS, key

_DELAY_MAX_S: Final = 60.0
"""Longest pause; below the time after which an idle connection is closed. A larger excess is forgiven."""
_NAMES_MAX: Final = 20_000
_TRAFFIC_BURST_S: Final = 1.0
_SELDOM_BURST_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class AddressQuotas:
    """Quotas of one address on a server."""

    ORIGIN: ClassVar[str] = OURS

    bytes_a_second: int = key(
        "addressBytesPerSecond",
        NOT_NEGATIVE_LONG,
        0,
        "Bytes a second, received and sent, that all connections of one address may have; 0: no quota.",
        live=True,
    )
    requests_a_second: int = key(
        "addressRequestsPerSecond",
        NOT_NEGATIVE,
        0,
        "Requests a second that all connections of one address may send; 0: no quota.",
        live=True,
    )
    connects_a_second: int = key(
        "addressConnectsPerSecond",
        NOT_NEGATIVE,
        200,
        "New connections a second of one address that are read at once; 0: no quota.",
        live=True,
    )


@dataclass(slots=True, kw_only=True)
class UserQuotas:
    """Quotas of one user on a broker, from all addresses, and quotas that only brokers have."""

    ORIGIN: ClassVar[str] = OURS

    bytes_a_second: int = key(
        "userBytesPerSecond",
        NOT_NEGATIVE_LONG,
        0,
        "Bytes a second, received and sent, that all connections of one user may have; 0: no quota.",
        live=True,
    )
    requests_a_second: int = key(
        "userRequestsPerSecond",
        NOT_NEGATIVE,
        0,
        "Requests a second that all connections of one user may send; 0: no quota.",
        live=True,
    )
    creations_a_second: int = key(
        "userCreationsPerSecond",
        NOT_NEGATIVE,
        10_000,
        "Queues of topics and groups that one user may create or change in a second; 0: no quota.",
        live=True,
    )
    creations_of_address: int = key(
        "addressCreationsPerSecond",
        NOT_NEGATIVE,
        10_000,
        "Queues of topics and groups that one address may create or change in a second; 0: no quota.",
        live=True,
    )
    connections: int = key(
        "maxConnectionsPerUser",
        NOT_NEGATIVE,
        0,
        "Most connections of one user; the first request on one more is refused, and it is closed. 0: no bound.",
        live=True,
    )


class Quota:
    """One quota, with the unused rest of each address or user.

    At most 20,000 names are kept; the least recently used one is forgotten, and starts with a full saving again.

    Args:
        of: `address` or `user`, for metrics.
        what: the limited resource, for metrics.
        burst_s: seconds for which an unused rest is saved up.

    Attributes:
        rate: amount allowed in a second; 0: no quota.
        throttled_s: sum of the delays given.
    """

    def __init__(self, of: str, what: str, burst_s: float) -> None:
        self.of = of
        self.what = what
        self.rate = 0
        self.throttled_s = 0.0
        self._burst_s = burst_s
        self._left: dict[str, tuple[float, float]] = {}  # rest and its time by name; the last used one at the end

    def __len__(self) -> int:
        return len(self._left)

    def take(self, name: str, amount: float, now: float) -> float:
        """Use up `amount`; return the seconds, 0 to 60, until more may be used."""
        rate = self.rate
        if not rate:
            return 0.0
        most = rate * self._burst_s
        left, at = self._left.pop(name, (most, now))
        left = max(min(most, left + (now - at) * rate) - amount, -rate * _DELAY_MAX_S)
        self._left[name] = (left, now)
        if len(self._left) > _NAMES_MAX:
            del self._left[next(iter(self._left))]
        if left >= 0:
            return 0.0
        delay_s = -left / rate
        self.throttled_s += delay_s
        return delay_s


class Quotas:
    """All quotas of a process. Every method takes the time in seconds, and returns a delay in seconds as `Quota.take`.

    Args:
        address, user: see `set`.

    Attributes:
        limits_traffic: whether there is a quota of bytes or requests.
        connections_of_user: most connections of one user; 0: no limit.
    """

    def __init__(self, address: AddressQuotas, user: UserQuotas | None = None) -> None:
        self._address_bytes = Quota("address", "bytes", _TRAFFIC_BURST_S)
        self._address_requests = Quota("address", "requests", _TRAFFIC_BURST_S)
        self._address_connects = Quota("address", "connects", _SELDOM_BURST_S)
        self._address_creations = Quota("address", "creations", _SELDOM_BURST_S)
        self._user_bytes = Quota("user", "bytes", _TRAFFIC_BURST_S)
        self._user_requests = Quota("user", "requests", _TRAFFIC_BURST_S)
        self._user_creations = Quota("user", "creations", _SELDOM_BURST_S)
        self.limits_traffic = False
        self.connections_of_user = 0
        self.set(address, user or UserQuotas(creations_a_second=0, creations_of_address=0))

    def __iter__(self) -> Iterator[Quota]:
        yield from (self._address_bytes, self._address_requests, self._address_connects, self._address_creations)
        yield from (self._user_bytes, self._user_requests, self._user_creations)

    def set(self, address: AddressQuotas, user: UserQuotas | None = None) -> None:
        """Apply these settings from now on; None leaves those of users as they are."""
        self._address_bytes.rate = address.bytes_a_second
        self._address_requests.rate = address.requests_a_second
        self._address_connects.rate = address.connects_a_second
        if user is not None:
            self._address_creations.rate = user.creations_of_address
            self._user_bytes.rate = user.bytes_a_second
            self._user_requests.rate = user.requests_a_second
            self._user_creations.rate = user.creations_a_second
            self.connections_of_user = user.connections
        traffic = (self._address_bytes, self._address_requests, self._user_bytes, self._user_requests)
        self.limits_traffic = any(quota.rate for quota in traffic)

    def traffic(self, block: str, user: str | None, size: int, requests: int, now: float) -> float:
        """Count bytes received or sent, and requests received, on a connection.

        Args:
            block: block of the connection's address, see `address_block`.
            user: signer of the last request on it; None: it was not signed.
            size: number of bytes.
            requests: number of requests.
            now: the time in seconds.
        """
        delay_s = self._address_bytes.take(block, size, now)
        if requests:
            delay_s = max(delay_s, self._address_requests.take(block, requests, now))
        if user is not None:
            delay_s = max(delay_s, self._user_bytes.take(user, size, now))
            if requests:
                delay_s = max(delay_s, self._user_requests.take(user, requests, now))
        return delay_s

    def connected(self, block: str, now: float) -> float:
        """Count a new connection."""
        return self._address_connects.take(block, 1, now)

    def created(self, block: str, user: str | None, count: int, now: float) -> float:
        """Count queues and groups that a request has created or changed."""
        delay_s = self._address_creations.take(block, count, now)
        return delay_s if user is None else max(delay_s, self._user_creations.take(user, count, now))


def address_block(address: str) -> str:
    """Return the name under which an address is counted: itself, or the 64-bit network of an IPv6 address."""
    return str(ipaddress.ip_network((address, 64), strict=False)) if ":" in address else address
