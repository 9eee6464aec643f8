"""Connections between the members of a group: one that this node dials to each peer, one that each peer dials to it.

    this node --dialed: everything it says to n1--> n1        n1 --dialed: everything it says--> this node
              <-- challenge, hello, nothing else                 (accepted here by the listener)

A peer is joined while both stand, lost as soon as one closes: a process killed closes both at once, so its peers need
no time-out to notice. Frames go out as they are handed over; the loop joins those of one turn into one system call,
and a span's bytes go from the mapping to the kernel. A peer that does not read is cut off when `queue_limit_bytes`
wait for it; it is dialed again after 50 ms, 100 ms, ... 1 s, or at once when it dials this node.
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
from dledger.peers.link import Accepted, Dialed, Link
from dledger.peers.wire import Encoder, PeerMessage, decode
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.seldom import SeldomLog

_UNKNOWN_MAX: Final = 64
_UNKNOWN_PER_HOST_MAX: Final = 16
_COMPLAINTS_MAX: Final = 1000
_CLOSE_S: Final = 1.0

_log = logging.getLogger(__name__)


class PeerListener(Protocol):
    """Who hears what peers say. Called on the loop's thread."""

    def on_message(self, peer_id: str, message: PeerMessage) -> None:
        """A whole message; what it views is valid until this returns. May raise `PeerError`, which closes."""

    def on_peer_joined(self, peer_id: str, hello: Hello) -> None:
        """Connections stand both ways."""

    def on_peer_lost(self, peer_id: str) -> None:
        """One of them does not any more."""


class Transport:
    """`dledger.ports.Transport` over TCP.

    Args:
        hello: what this node says of itself; `to` is filled in.
        peers: the other members and where they listen.
        listener: gets messages and changes of connections.
        queue_limit_bytes: what may wait for one peer.
        secrets: that members prove to each other to hold; none: they prove nothing.

    Attributes:
        refused_count: connections refused, or closed for what was said on them.
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
        self.links = {peer_id: Link(self, address, queue_limit_bytes) for peer_id, address in peers.items()}
        self.live: set[Dialed | Accepted] = set()
        self.is_closing = False
        self._server: asyncio.Server | None = None
        self._unknown: dict[Accepted, None] = {}  # accepted and not known yet, the oldest first
        self._complained: set[str] = set()
        self._of_strangers = SeldomLog(_log)
        self.refused_count = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, and dial every peer until `close`.

        Raises:
            ListenError: the address is taken or not ours.
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
        """The port that is listened on."""
        assert self._server is not None, "start() comes first"
        return int(self._server.sockets[0].getsockname()[1])

    def send(self, peer_id: str, message: PeerMessage) -> None:
        """Hand a message to the peer's connection; dropped when none stands."""
        link = self.links[peer_id]
        if link.is_open:
            link.write(self._encoder.encode(message, link.seals))

    async def close(self) -> None:
        """Close everything; nobody is told of lost peers."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for accepted in list(self._unknown):
            accepted.abort()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.sleep(0.001)  # a connection may have been accepted in this turn
                while self.live:
                    await asyncio.sleep(0.001)
        if self._server is not None:
            await self._server.wait_closed()

    # ---- used by the connections

    def complain(self, error: PeerError) -> None:
        """Count what a peer did wrong, and log it once for each text."""
        self.refused_count += 1
        text = str(error)
        if text not in self._complained and len(self._complained) < _COMPLAINTS_MAX:
            self._complained.add(text)
            _log.warning("%s: %s", type(error).__name__, text)

    def complain_of_stranger(self, error: PeerError) -> None:
        """Count what somebody did wrong who dialed this node and is not known; log it now and then."""
        self.refused_count += 1
        self._of_strangers.warning("%s: %s", type(error).__name__, error)

    def admit(self, accepted: Accepted) -> None:
        """Somebody has connected and is not known yet; the oldest of these is closed when there are too many.

        A host beyond its share loses its own oldest, and so does the host with most when there are too many in all:
        whoever connects again and again does not push out the handshake of a member on another host.
        """
        self._unknown[accepted] = None
        counts = Counter(other.host for other in self._unknown)
        busiest, most = counts.most_common(1)[0]
        if most <= _UNKNOWN_PER_HOST_MAX and len(self._unknown) <= _UNKNOWN_MAX:
            return
        oldest = next(other for other in self._unknown if other.host == busiest)
        self.complain_of_stranger(PeerError(f"{busiest} has {most} connections that have not finished their handshake"))
        self.forget(oldest)
        oldest.abort()

    def welcome(self, accepted: Accepted, other: Hello) -> Link:
        """The link that an accepted connection with a valid hello belongs to.

        Raises:
            StrangerError: it is nobody of this group.
        """
        self.hello.check(other, accepted.host, frozenset(self.links))
        self.forget(accepted)
        link = self.links[other.node_id]
        link.accepted_from(accepted, other)
        return link

    def forget(self, accepted: Accepted) -> None:
        """A connection closed before it was known who made it."""
        self._unknown.pop(accepted, None)

    def deliver(self, peer_id: str, code: int, body: memoryview) -> None:
        """Decode and hand on one frame."""
        self._listener.on_message(peer_id, decode(code, body, peer_id))

    def joined(self, peer_id: str, hello: Hello) -> None:
        self._listener.on_peer_joined(peer_id, hello)

    def lost(self, peer_id: str) -> None:
        self._listener.on_peer_lost(peer_id)
