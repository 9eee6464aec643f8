"""Connections between the members of a group: this node dials one to each peer, and each peer dials one to this node.

    this node --dialed: all its messages to n1--> n1          n1 --dialed: all its messages--> this node
              <-- challenge, hello, nothing else              (accepted here by the listener)

A peer is joined while both stand, and lost as soon as one closes: the end of a process closes both at once, so its
peers need no time-out to notice it. Frames are written at once; the loop joins those of one turn into one system call,
and a span's bytes go from the mapping to the kernel. A connection is closed when more than `queue_limit_bytes` wait for
the peer to read; it is dialed again after 50 ms, 100 ms, ... 1 s, or at once when the peer dials this node.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from dledger.config import PeerAddress
from dledger.errors import ListenError, PeerError
from dledger.peers.hello import Hello
from dledger.peers.link import Accepted, Dialed, PeerLink
from dledger.peers.wire import Encoder, PeerMessage, decode
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.rate_limited_log import RateLimitedLog

_UNKNOWN_MAX: Final = 64
_UNKNOWN_PER_HOST_MAX: Final = 16
_REPORTED_MAX: Final = 1000
_CLOSE_S: Final = 1.0

_log = logging.getLogger(__name__)


class PeerListener(Protocol):
    """Receives the messages of peers. Called on the loop's thread."""

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        """Handle a whole message; its views are valid until this returns. A `PeerError` closes the connection."""

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        """Handle that connections to the peer stand in both directions."""

    def on_peer_lost(self, peer_id: str) -> None:
        """Handle that one of them has closed."""


class TcpTransport:
    """`dledger.ports.Transport` over TCP.

    Args:
        hello: this node's hello; `to` is filled in.
        peers: the other members and their addresses.
        listener: gets messages and changes of connections.
        queue_limit_bytes: most bytes that may wait for one peer to read.
        secrets: secrets one of which members prove to have; none: no proof is asked for.

    Attributes:
        refused_count: connections refused, or closed because of an error of the other end.
    """

    def __init__(
        self,
        hello: Hello,
        peers: Mapping[str, PeerAddress],
        listener: PeerListener,
        queue_limit_bytes: int,
        secrets: Secrets = (),
    ) -> None:
        self.hello = hello
        self.secrets = secrets
        self._listener = listener
        self._encoder = Encoder()
        self.links = {peer_id: PeerLink(self, address, queue_limit_bytes) for peer_id, address in peers.items()}
        self.live: set[Dialed | Accepted] = set()
        self.is_closing = False
        self._server: asyncio.Server | None = None
        self._unknown: dict[Accepted, None] = {}  # accepted and not identified yet, the oldest first
        self._reported: set[str] = set()
        self._of_strangers = RateLimitedLog(_log)
        self.refused_count = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, and dial every peer until `close`.

        Raises:
            ListenError: the address is taken, or not an address of this machine.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Accepted(self).stream, host, port)
        except OSError as error:
            raise ListenError(f"{host}:{port}", str(error)) from error
        for link in self.links.values():
            link.start()

    @property
    def port(self) -> int:
        """The port at which this node listens."""
        assert self._server is not None, "start() comes first"
        return int(self._server.sockets[0].getsockname()[1])

    def send(self, peer_id: str, message: PeerMessage) -> None:
        """Send a message on the connection to the peer; it is dropped when there is none."""
        link = self.links[peer_id]
        if link.is_open:
            link.write(self._encoder.encode(message, link.seals))

    async def close(self) -> None:
        """Close all connections without reporting lost peers."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for accepted in list(self._unknown):
            accepted.abort()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.sleep(0.001)  # a connection may have been accepted in this turn of the loop
                while self.live:
                    await asyncio.sleep(0.001)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- used by the connections

    def report_error(self, error: PeerError) -> None:
        """Count an error of a peer, and log it once for each text."""
        self.refused_count += 1
        text = str(error)
        if text not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(text)
            _log.warning("%s: %s", type(error).__name__, text)

    def report_stranger(self, error: PeerError) -> None:
        """Count an error of an unknown sender that connected to this node; log it from time to time."""
        self.refused_count += 1
        self._of_strangers.warning("%s: %s", type(error).__name__, error)

    def admit(self, accepted: Accepted) -> None:
        """Keep a new connection until its hello; close the oldest one of these when there are too many.

        A host above its share loses its own oldest one, and so does the host with most when there are too many in
        total. So a host that connects again and again does not close the handshake of a member on another host.
        """
        self._unknown[accepted] = None
        counts = Counter(other.host for other in self._unknown)
        busiest, most = counts.most_common(1)[0]
        if most <= _UNKNOWN_PER_HOST_MAX and len(self._unknown) <= _UNKNOWN_MAX:
            return
        oldest = next(other for other in self._unknown if other.host == busiest)
        self.report_stranger(PeerError(f"{busiest} has {most} connections that have not finished their handshake"))
        self.forget(oldest)
        oldest.abort()

    def welcome(self, accepted: Accepted, other: Hello) -> PeerLink:
        """Return the link of an accepted connection with a valid hello.

        Raises:
            WrongPeerError: the sender is not a member of this group.
        """
        self.hello.check(other, accepted.host, frozenset(self.links))
        self.forget(accepted)
        link = self.links[other.node_id]
        link.accepted_from(accepted, other)
        return link

    def forget(self, accepted: Accepted) -> None:
        """Forget a connection that closed before its sender was known."""
        self._unknown.pop(accepted, None)

    def deliver(self, peer_id: str, code: int, body: memoryview) -> None:
        """Decode a frame and pass the message on."""
        self._listener.on_message(peer_id, decode(code, body, peer_id))

    def joined(self, peer_id: str, hello: Hello) -> None:
        self._listener.on_peer_joined(peer_id, hello)

    def lost(self, peer_id: str) -> None:
        self._listener.on_peer_lost(peer_id)
