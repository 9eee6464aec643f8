"""What one end of a connection lets the other end do. Every bound of this package is here."""

from dataclasses import dataclass
from typing import Protocol

from ledgermq.remoting.codec.frame import FIELDS_MAX, FRAME_LENGTH_MAX, HEADER_LENGTH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. The defaults suit a broker; tests use small ones."""

    frame_bytes: int = FRAME_LENGTH_MAX
    """A whole frame. A longer one closes the connection."""
    header_bytes: int = HEADER_LENGTH_MAX
    """A frame's header. A longer one closes the connection."""
    header_fields: int = FIELDS_MAX
    """Fields of a header. One more closes the connection."""
    connections: int = 10_000
    """Connections of one server. One more is closed at once."""
    connections_per_address: int = 1000
    """Connections from one address, those of this machine to itself not counted. One more is closed at once."""
    unfinished_bytes: int = 256 * 1024 * 1024
    """Of all frames that have not arrived whole, without the first 64 KiB of each. Beyond it the oldest are closed."""
    in_flight: int = 16_384
    """Unanswered requests of one connection. One more is answered BUSY."""
    output_high_water_bytes: int = 1024 * 1024
    """Unsent output of one connection above which nothing more is read from it, until half of it has gone."""
    output_hard_bytes: int = 64 * 1024 * 1024
    """Unsent output of one connection that would exceed this closes it: the peer does not read."""
    idle_s: float = 120.0
    """A connection on which nothing moved for this long is closed."""
    handshake_s: float = 5.0
    """A TLS handshake that takes longer than this ends the connection."""
    frame_s: float = 120.0
    """A frame that takes longer than this to arrive closes the connection."""


class ServerSettings(Protocol):
    """What a server's configuration says of its connections; sizes in bytes."""

    @property
    def max_frame_size_bytes(self) -> int: ...
    @property
    def max_header_size_bytes(self) -> int: ...
    @property
    def max_header_fields(self) -> int: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def max_connections_per_address(self) -> int: ...
    @property
    def max_unfinished_bytes(self) -> int: ...
    @property
    def max_requests_in_flight(self) -> int: ...
    @property
    def max_unsent_bytes(self) -> int: ...
    @property
    def connection_idle_timeout_ms(self) -> int: ...


def limits_of(settings: ServerSettings) -> Limits:
    """The limits that a configuration asks for."""
    return Limits(
        frame_bytes=settings.max_frame_size_bytes,
        header_bytes=settings.max_header_size_bytes,
        header_fields=settings.max_header_fields,
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        unfinished_bytes=settings.max_unfinished_bytes,
        in_flight=settings.max_requests_in_flight,
        output_hard_bytes=settings.max_unsent_bytes,
        idle_s=settings.connection_idle_timeout_ms / 1000,
    )
