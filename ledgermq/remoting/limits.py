"""Limits for the other end of a connection; all limits of this package are here."""

import asyncio
import logging
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from ledgermq.remoting.codec.frame import FIELDS_MAX, FRAME_LENGTH_MAX, HEADER_LENGTH_MAX
from ledgermq.remoting.config_key import NETTY, NETWORKS, OURS, POSITIVE, SECONDS, Network, key
from ledgermq.remoting.rate_limited_log import RateLimitedLog

_log: Final = logging.getLogger(__name__)
_SAMPLE_S: Final = 0.05
_PATIENCE_S: Final = 5.0
_TURN_MAX_BYTES: Final = 8 << 20
_HEADER_ROOM_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one connection: sizes in bytes, times in seconds. The defaults suit a broker."""

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
        "Most connections from one other address; one more is closed at once. This machine may have three quarters of"
        " maxConnections, if that is more.",
    )
    """An IPv6 address counts with its network of 64 bits."""
    proxies: tuple[Network, ...] = key(
        "trustedProxies",
        NETWORKS,
        (),
        "Addresses or networks, separated by ;, whose PROXY headers (versions 1 and 2) tell a client's address.",
        note="A header from elsewhere closes the connection. RocketMQ believes everybody's.",
    )
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

    @property
    def body_max_bytes(self) -> int:
        """The longest body that fits into a frame with a header."""
        return self.frame_bytes - _HEADER_ROOM_BYTES

    def why_too_large(self, body_bytes: int) -> str | None:
        """Return why messages of so many bytes are too large for a frame; None if they are not."""
        if body_bytes <= self.body_max_bytes:
            return None
        return f"{body_bytes} is too large: a frame of {self.frame_bytes} bytes must hold it with headers"


class Writer(Protocol):
    """A connection. `held_bytes` are bytes that it was given and has not given to the operating system yet."""

    @property
    def held_bytes(self) -> int: ...

    def abort(self, reason: str) -> None:
        """Close at once; what is unsent is dropped."""


class OutputBudget:
    """Answers that the peers of one listener have not read yet, in bytes.

        spent <= limit             no restriction
        above the limit            no large answer is begun for a peer that has something unread (`Connection.is_full`)
        above it for 5 seconds     the peers with most unread bytes are closed, until the sum is below the limit
        above twice the limit      the same at once

    So the answers take at most twice the limit, plus those of one turn of the loop. Small answers that are sent at once
    are not counted. The sum is computed every 50 ms while there is anything.

    Args:
        limit_bytes: sum above which connections are restricted.

    Attributes:
        spent_bytes: unsent bytes of all connections at the last sum.
        closed_count: connections closed because all together held too much.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Writer, int] = {}
        self._turn_bytes = 0
        self._over_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = RateLimitedLog(_log)
        self.spent_bytes = 0
        self.closed_count = 0

    @property
    def is_over(self) -> bool:
        """Whether the sum is above the limit."""
        return self.spent_bytes > self._limit_bytes

    @property
    def is_turn_full(self) -> bool:
        """Whether this turn of the loop has handed over as many bytes as one turn should copy."""
        return self._turn_bytes > _TURN_MAX_BYTES

    def wrote(self, writer: Writer, count: int) -> None:
        """Count bytes given to a connection; with 0 only begin to watch it.

        The connection may be closed because of them.
        """
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._turn_bytes += count
        self._held[writer] = self._held.get(writer, 0) + count
        self.spent_bytes += count
        if self.spent_bytes > 2 * self._limit_bytes:
            self._look()
            self._close_most(2 * self._limit_bytes)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SAMPLE_S, self._sample)

    def forget(self, writer: Writer) -> None:
        """Remove a connection that has ended."""
        self.spent_bytes -= self._held.pop(writer, 0)

    def _begin_turn(self) -> None:
        self._turn_bytes = 0

    def _sample(self) -> None:
        self._timer = None
        self._look()
        loop = asyncio.get_running_loop()
        if not self.is_over:
            self._over_since = None
        elif self._over_since is None:
            self._over_since = loop.time()
        elif loop.time() - self._over_since > _PATIENCE_S:
            self._close_most(self._limit_bytes)
        if self._held:
            self._timer = loop.call_later(_SAMPLE_S, self._sample)

    def _look(self) -> None:
        self._held = {writer: held for writer in self._held if (held := writer.held_bytes)}
        self.spent_bytes = sum(self._held.values())

    def _close_most(self, limit_bytes: int) -> None:
        for writer in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self.spent_bytes <= limit_bytes:
                return
            self.closed_count += 1
            unread, of_all = self._held[writer], self.spent_bytes
            self._refusals.warning("%d bytes are unread by all connections: closing one with %d", of_all, unread)
            writer.abort("all connections together leave too much unread")
            self.forget(writer)
