"""What one end of a connection lets the other end do. Every bound of this package is here."""

from dataclasses import dataclass

from ledgermq.remoting.frame import FRAME_LENGTH_MAX, HEADER_LENGTH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. The defaults suit a broker; tests use small ones."""

    frame_bytes: int = FRAME_LENGTH_MAX
    """A whole frame. A longer one closes the connection."""
    header_bytes: int = HEADER_LENGTH_MAX
    """A frame's header. A longer one closes the connection."""
    connections: int = 10_000
    """Connections of one server. One more is closed at once."""
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
