"""Limits for the other end of a connection; all limits of this package are here."""

from dataclasses import dataclass
from typing import ClassVar

from ledgermq.remoting.codec.frame import FIELDS_MAX, FRAME_LENGTH_MAX, HEADER_LENGTH_MAX
from ledgermq.remoting.config_key import NETTY, OURS, POSITIVE, SECONDS, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in bytes, times in seconds. The defaults suit a broker; tests use small ones."""

    ORIGIN: ClassVar[str] = OURS

    frame_bytes: int = key("maxFrameSize", POSITIVE, FRAME_LENGTH_MAX, "Most bytes of one request.")
    """A whole frame. A longer one closes the connection."""
    header_bytes: int = key(
        "maxHeaderSize",
        POSITIVE,
        HEADER_LENGTH_MAX,
        "Most bytes of one request's header; a longer one closes the connection.",
    )
    header_fields: int = key(
        "maxHeaderFields", POSITIVE, FIELDS_MAX, "Most fields of one request's header; one more closes the connection."
    )
    connections: int = key("maxConnections", POSITIVE, 10_000, "Most connections; one more is closed at once.")
    connections_per_address: int = key(
        "maxConnectionsPerAddress",
        POSITIVE,
        1000,
        "Most connections from one other address; one more is closed at once.",
    )
    """Connections of this machine to itself are not counted."""
    unfinished_bytes: int = key(
        "maxUnfinishedSize",
        POSITIVE,
        256 << 20,
        "Most bytes of requests that came in part, but 64 KiB of each; the oldest are closed.",
    )
    in_flight: int = key(
        "maxRequestsInFlight",
        POSITIVE,
        16_384,
        "Most unanswered requests of one connection; one more is answered 2, system busy.",
    )
    output_high_water_bytes: int = 1024 * 1024
    """Unsent output of one connection above which nothing more is read from it, until half of it is sent."""
    output_hard_bytes: int = key(
        "maxUnsentSize",
        POSITIVE,
        64 << 20,
        "Most bytes of answers that one connection's peer leaves unread; then it is closed.",
    )
    output_all_bytes: int = key(
        "maxUnsentSizeInAll",
        POSITIVE,
        256 << 20,
        "Bytes of answers that all peers together leave unread before they are held back; at twice as many some are"
        " closed.",
    )
    idle_s: float = key(
        "serverChannelMaxIdleTimeSeconds",
        SECONDS,
        120.0,
        "Idle seconds after which a client's connection is closed.",
        origin=NETTY,
    )
    handshake_s: float = 5.0
    """A TLS handshake that takes longer than this ends the connection."""
    frame_s: float = 120.0
    """A frame that takes longer than this to arrive closes the connection."""
